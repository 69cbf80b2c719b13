"""The one seam to the connections of API Gateway's WebSocket API: messages to them, and what can go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlsplit

from tidemark.aws.http import Account, AwsRequest, BlockingHttp, Http
from tidemark.aws.retry import Attempts, Failure, RetryPolicy

TELLING_SECONDS: Final = 3.0
#: The notifier has others to tell: three attempts within a second, where API Gateway answers at once.
_PROMPT: Final = RetryPolicy(3, 3.0, lambda failed: 0.2 * failed)


class SocketGone(Exception):
    """The client has closed the connection, or API Gateway has."""


class SocketUnavailable(Failure):
    """API Gateway did not answer, or refused; the cause is attached, or the message says why."""


class SocketApi:
    """One WebSocket API, by the ids of its connections. Safe to share between threads. A reader may be one of
    ten thousand at a stream, so this is not boto3's client (`aws/http.py`)."""

    def __init__(self, http: Http, stage: str) -> None:
        self._http = http
        self._path = f"{stage}/@connections/"
        self.sleep: Callable[[float], None] = time.sleep

    def send(self, connection_id: str, frames: Sequence[str]) -> None:
        """One call for each. Raises SocketGone, SocketUnavailable; some may have been sent then.

        A connection that cannot be told anything, as that of a client that does not read, is cut off: the
        others that wait must not wait for it. A client that comes back watches again, and misses nothing."""
        path = self._path + quote(connection_id, safe="")
        try:
            for frame in frames:
                self._ask(AwsRequest("POST", path, {}, frame.encode()))
        except SocketUnavailable as failure:
            self._ask(AwsRequest("DELETE", path, {}))
            raise SocketGone from failure

    def _ask(self, request: AwsRequest) -> None:
        attempts = Attempts(self.sleep, time.monotonic, _PROMPT)
        while True:
            try:
                status, answer = self._http(request)
                if status == HTTPStatus.GONE:
                    raise SocketGone
                if status in {HTTPStatus.OK, HTTPStatus.NO_CONTENT}:
                    return
                refusal = SocketUnavailable(f"status {status}: {answer[:200].decode(errors='replace')}")
                refusal.retryable = status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS
                raise refusal
            except Failure as failure:
                if not attempts.go_on_after(failure):
                    raise SocketUnavailable(str(failure)) from failure


def connect_sockets(account: Account, endpoint: str) -> SocketApi:
    """`endpoint` is the URL of the API's stage."""
    return SocketApi(BlockingHttp(account.sockets(endpoint), TELLING_SECONDS), urlsplit(endpoint).path)
