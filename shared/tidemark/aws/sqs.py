"""The one seam to SQS: short-lived queues, and what can go wrong with them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import ClientError

from tidemark.aws.clients import make_client

#: The longest that SQS lets a receive wait, and the shortest that it keeps a message.
MAX_RECEIVE_SECONDS: Final = 20
RETENTION_SECONDS: Final = 60
#: What one call sends or receives at most.
BATCH: Final = 10

#: Longer than a message lives: one that was received never comes again, so none has to be
#: deleted, and that is a third of the queue's calls. A ring whose answer got lost on the way
#: is covered by looking again after a receive that failed.
_VISIBILITY_SECONDS: Final = 2 * RETENTION_SECONDS
_GONE: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})


class QueueGone(Exception):
    """There is no such queue, any more or yet."""


class QueueUnavailable(Exception):
    """SQS did not answer, or refused; the cause is attached."""


_TWICE: Final = {"mode": "standard", "total_max_attempts": 2}
#: Readers wait for a queue to be made, and a notifier's other queues for one to be rung: an SQS that
#: does not answer must not keep either for long.
_PROMPT: Final = Config(read_timeout=3, retries=_TWICE)
_PATIENT: Final = Config(read_timeout=MAX_RECEIVE_SECONDS + 5, retries=_TWICE)


def sqs_client() -> Any:
    return make_client("sqs", _PROMPT)


def receiving_client() -> Any:
    """One that waits for as long as a receive may last."""
    return make_client("sqs", _PATIENT)


class Queues:
    """The queues of one system: all whose names begin with `prefix`. Clients are made when
    first needed: most requests wait for nothing. `make_receiving` is for who receives."""

    def __init__(
        self,
        make_client: Callable[[], Any],
        prefix: str,
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
        """The URL of a new queue. Its name says when it was made, so that a sweep need not
        ask for it, and is never used again."""
        name = f"{self._prefix}{now_ms // 1000:x}-{secrets.token_hex(8)}"
        attributes = {
            "MessageRetentionPeriod": str(RETENTION_SECONDS),
            "VisibilityTimeout": str(_VISIBILITY_SECONDS),
        }
        with _translated():
            url: str = self._client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def made_ms(self, url: str) -> int | None:
        """When `create` made it; None for a queue that it did not make."""
        name = url.rpartition("/")[2]
        made, _, random = name.removeprefix(self._prefix).partition("-")
        if not name.startswith(self._prefix) or not random:
            return None
        try:
            return int(made, 16) * 1000
        except ValueError:
            return None

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        """Up to ten messages; none after `wait_seconds`. Raises QueueGone, QueueUnavailable."""
        with _translated():
            answer = self._receiving.receive_message(
                QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=wait_seconds
            )
        return [message["Body"] for message in answer.get("Messages", ())]

    def send(self, url: str, bodies: Sequence[str]) -> None:
        """Ten with one call. Raises QueueGone, QueueUnavailable; some may be sent then."""
        for start in range(0, len(bodies), BATCH):
            entries = [
                {"Id": str(index), "MessageBody": body}
                for index, body in enumerate(bodies[start : start + BATCH])
            ]
            with _translated():
                answer = self._client.send_message_batch(QueueUrl=url, Entries=entries)
            if failed := answer.get("Failed"):
                raise QueueUnavailable(f"{failed[0].get('Code')}: {failed[0].get('Message')}")

    def delete(self, url: str) -> None:
        """Raises QueueGone, QueueUnavailable."""
        with _translated():
            self._client.delete_queue(QueueUrl=url)

    def all(self) -> Iterator[str]:
        """The URL of every queue, as far as SQS knows it by now. Raises QueueUnavailable."""
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
    except ClientError as fault:
        if fault.response.get("Error", {}).get("Code") in _GONE:
            raise QueueGone from fault
        raise QueueUnavailable(str(fault)) from fault
    except exceptions.BotoCoreError as fault:
        raise QueueUnavailable(str(fault)) from fault
