"""The one seam to the connections of API Gateway's WebSocket API: messages to them, and what can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final

from tidemark.aws.clients import make_client

#: One repetition, soon: the notifier has others to tell.
_TWICE: Final = {"mode": "standard", "total_max_attempts": 2}


class SocketGone(Exception):
    """The client has closed the connection, or API Gateway has."""


class SocketUnavailable(Exception):
    """API Gateway did not answer, or refused; the cause is attached."""


class Sockets:
    """The connections of one API. The client is made when first needed, because most records wake no
    socket."""

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._make_client = make_client

    @cached_property
    def _client(self) -> Any:
        return self._make_client()

    def send(self, connection_id: str, frames: Sequence[str]) -> None:
        """One call for each. Raises SocketGone, SocketUnavailable; some may have been sent then."""
        for frame in frames:
            with _translated():
                self._client.post_to_connection(ConnectionId=connection_id, Data=frame.encode())


def connect_sockets(endpoint: str) -> Sockets:
    """`endpoint` is the URL of the API's stage."""
    return Sockets(partial(make_client, "apigatewaymanagementapi", endpoint, read_timeout=3, retries=_TWICE))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ClientError

        if isinstance(error, ClientError):
            # By the status: it is on the first line of a reply, and cannot be missing from one that is cut.
            status = error.response["ResponseMetadata"].get("HTTPStatusCode")
            failure = SocketGone if status == HTTPStatus.GONE else SocketUnavailable
            raise failure(str(error)) from error
        if isinstance(error, BotoCoreError):
            raise SocketUnavailable(str(error)) from error
        raise
