"""The interface to SQS: short-lived queues, and their failures."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from tidemark.aws.clients import make_client

#: The longest wait of a receive that SQS allows, and the shortest retention of a message.
MAX_RECEIVE_SECONDS: Final = 20
RETENTION_SECONDS: Final = 60
#: The most messages that one call sends or receives.
BATCH: Final = 10
#: The longest delay of a message that SQS allows.
MAX_DELAY_SECONDS: Final = 900

#: Longer than the retention, so a received message never reappears and needs no deletion, which saves a third
#: of the calls. After a receive whose reply was lost, the receiver reads the stream again.
_VISIBILITY_SECONDS: Final = 2 * RETENTION_SECONDS
_GONE: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})


class QueueGone(Exception):
    """The queue does not exist: it was deleted, or SQS does not know it yet."""


class QueueUnavailable(Exception):
    """SQS did not answer, or refused; the cause is attached."""


#: One quick retry: readers wait for a new queue, and a notifier has other queues to notify.
_TWICE: Final = {"mode": "standard", "total_max_attempts": 2}


def sqs_client() -> Any:
    return make_client("sqs", read_timeout=3, retries=_TWICE)


def receiving_client() -> Any:
    """Return a client whose timeout exceeds the longest receive."""
    return make_client("sqs", read_timeout=MAX_RECEIVE_SECONDS + 5, retries=_TWICE)


class Queues:
    """The queues of one system, with the name prefix `prefix`. Clients are created at their first use,
    because most requests use no queue. `make_receiving` creates a second client for receiving."""

    def __init__(
        self,
        make_client: Callable[[], Any],
        prefix: str = "",
        make_receiving: Callable[[], Any] | None = None,
    ) -> None:
        self._make_client = make_client
        self._make_receiving = make_receiving
        self._prefix = prefix

    @cached_property
    def _client(self) -> Any:
        return self._make_client()

    @cached_property
    def _receiving(self) -> Any:
        return self._make_receiving() if self._make_receiving else self._client

    def create(self, now_ms: int) -> str:
        """Create a queue and return its URL. The unique name contains the time, for sweeps."""
        name = f"{self._prefix}{now_ms // 1000:x}-{secrets.token_hex(8)}"
        attributes = {
            "MessageRetentionPeriod": str(RETENTION_SECONDS),
            "VisibilityTimeout": str(_VISIBILITY_SECONDS),
        }
        with _translated():
            url: str = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def made_ms(self, url: str) -> int | None:
        """Return the time at which `create` made the queue; None for any other queue."""
        name = url.rpartition("/")[2]
        made, _, random = name.removeprefix(self._prefix).partition("-")
        if not name.startswith(self._prefix) or not random:
            return None
        try:
            return int(made, 16) * 1000
        except ValueError:
            return None

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        """Return up to ten messages; none after `wait_seconds`. Raises QueueGone, QueueUnavailable."""
        with _translated():
            answer = self._receiving.receive_message(
                QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=wait_seconds
            )
        return [message["Body"] for message in answer.get("Messages", ())]

    def send(self, url: str, bodies: Sequence[str], delay_seconds: int = 0) -> None:
        """Send the messages, ten a call, delayed by at most MAX_DELAY_SECONDS. Raises QueueGone or
        QueueUnavailable; some may be sent then."""
        more = {"DelaySeconds": delay_seconds} if delay_seconds else {}
        for start in range(0, len(bodies), BATCH):
            entries = [
                {"Id": str(index), "MessageBody": body, **more}
                for index, body in enumerate(bodies[start : start + BATCH])
            ]
            with _translated():
                answer = self._client.send_message_batch(QueueUrl=url, Entries=entries)
            if failed := answer.get("Failed"):
                raise QueueUnavailable(f"{failed[0].get('Code')}: {failed[0].get('Message')}")

    def delete(self, url: str) -> None:
        """Delete the queue. Raises QueueGone, QueueUnavailable."""
        with _translated():
            self._client.delete_queue(QueueUrl=url)

    def all(self) -> Iterator[str]:
        """Yield the URL of every queue that SQS lists; a new one may be missing. Raises QueueUnavailable."""
        with _translated():
            pages = self._client.get_paginator("list_queues").paginate(
                QueueNamePrefix=self._prefix, PaginationConfig={"PageSize": 1000}
            )
            for page in pages:
                yield from page.get("QueueUrls", ())


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _GONE:
            raise QueueGone from error
        if isinstance(error, (ClientError, BotoCoreError)):
            raise QueueUnavailable(str(error)) from error
        raise
