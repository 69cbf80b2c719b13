"""HTTP client for a Durable Streams server: connection pool, retries, and an exception for every refusal."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import urllib3

from tidemark.protocol.errors import PicklableError
from tidemark.spark.options import ConnectionOptions

_T = TypeVar("_T")

_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0


def retry(act: Callable[[], _T], seconds: float, *errors: type[Exception]) -> _T:
    """Return the result of `act`. Retries after the `errors` with exponential back-off and jitter; after
    `seconds` raises the last error."""
    deadline = time.monotonic() + seconds
    delay = _FIRST_DELAY_SECONDS
    while True:
        try:
            return act()
        except errors:
            if time.monotonic() + delay > deadline:
                raise
        time.sleep(random.uniform(0.5, 1) * delay)
        delay = min(_LONGEST_DELAY_SECONDS, 2 * delay)


#: Statuses after which the same request may succeed a moment later.
RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_TIMEOUT: Final = urllib3.Timeout(connect=5, read=60)
#: urllib3 follows redirects, without the token if to another host. `HttpClient` does all other retries.
_REDIRECTS: Final = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=3)
_SHOWN_BYTES: Final = 300


class HttpFault(PicklableError):
    """The server refused the request, or did not answer any retry (status 0)."""

    def __init__(self, method: str, url: str, status: int, text: str) -> None:
        text = " ".join(text.split())
        super().__init__(f"tidemark: {method} {url}: {status or 'no answer'} {text}")
        self.status = status
        self.text = text


class RetryableHttpFault(HttpFault):
    """The same request may succeed a moment later."""


class ForbiddenHttpFault(HttpFault):
    """The token is missing or invalid, or does not allow the request (401, 403)."""


class HttpClient:
    """Client for idempotent requests only, because it may send a request twice: reads, creations, appends
    with producer headers."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._token, self._token_file = connection.token, connection.token_file
        self._pool = urllib3.PoolManager(maxsize=16, timeout=_TIMEOUT, retries=_REDIRECTS)
        self._retry_seconds = connection.retry_seconds
        #: The last `Date` header, in seconds since 1970, and the monotonic time of its arrival.
        self._dated: tuple[float, float] | None = None

    def _authorization(self) -> dict[str, str]:
        """Read the token file for each request, so that a renewed token is used at once. Raises
        PermissionError if the file is empty."""
        token = self._token
        if self._token_file and not (token := Path(self._token_file).read_text("utf-8-sig").strip()):
            raise PermissionError(f"tidemark: tokenFile {self._token_file} is empty: write a token into it")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def now_ms(self) -> int:
        """Return the time by the server's clock, or a little earlier; 0 if no response had a `Date`."""
        if self._dated is None:
            return 0
        date, arrived = self._dated
        return int(1000 * (date + time.monotonic() - arrived))

    def _note_date(self, text: str) -> None:
        with suppress(ValueError):
            self._dated = (parsedate_to_datetime(text).timestamp(), time.monotonic())

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        stream: bool = False,
        allow: frozenset[int] = frozenset(),
    ) -> urllib3.BaseHTTPResponse:
        """Return a response with a status of 2xx or in `allow`. Raises HttpFault.

        With `stream` the caller reads the body and releases the connection.
        """

        def once() -> urllib3.BaseHTTPResponse:
            try:
                response = self._pool.request(
                    method,
                    url,
                    headers=self._authorization() | dict(headers or {}),
                    body=body,
                    preload_content=not stream,
                    redirect=method in ("GET", "HEAD"),
                )
            except urllib3.exceptions.HTTPError as failure:
                raise RetryableHttpFault(method, url, 0, str(failure)) from failure
            self._note_date(response.headers.get("Date", ""))
            # A fenced producer gets 403 with an epoch, which is not about the token (§5.2.1).
            is_fenced = response.status == 403 and "Producer-Epoch" in response.headers
            is_forbidden = response.status in {401, 403} and not is_fenced
            if 200 <= response.status < 300 or (response.status in allow and not is_forbidden):
                return response
            text = response.data[:_SHOWN_BYTES].decode(errors="replace")
            if is_forbidden:
                raise ForbiddenHttpFault(method, url, response.status, self._explain_401(response) or text)
            kind = RetryableHttpFault if response.status in RETRYABLE else HttpFault
            raise kind(method, url, response.status, text)

        return retry(once, self._retry_seconds, RetryableHttpFault)

    def _explain_401(self, response: urllib3.BaseHTTPResponse) -> str:
        """Explain a 401 by its headers, because the response to HEAD has no body."""
        if response.status != 401:
            return ""
        if not (self._token or self._token_file):
            return "the server wants a token: give it as the option token or tokenFile, or in TIDEMARK_TOKEN"
        reason = re.search(r'error_description="([^"]*)"', response.headers.get("WWW-Authenticate", ""))
        why = f" ({reason[1]})" if reason else ""
        return f"the server refuses the token{why}: give a valid one as the option token or tokenFile"

    def posts_in_order(self, url: str) -> PostsInOrder:
        return PostsInOrder(url, self._authorization())


class PostsInOrder:
    """Concurrent POSTs to one URL, each on its own connection. One thread sends the requests in order, so a
    server that handles requests as they arrive has them in order."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        place = urlsplit(url)
        self._kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        self._host = place.netloc
        self._path = f"{place.path}?{place.query}" if place.query else place.path
        self._headers = headers
        self._connections: list[HTTPConnection] = []

    def send(self, headers: Sequence[Mapping[str, str]], bodies: Sequence[bytes]) -> list[bool]:
        """Send the requests. Returns for each whether its response is a 2xx; a request without it may have
        succeeded too."""
        while len(self._connections) < len(bodies):
            self._connections.append(self._kind(self._host, timeout=_TIMEOUT.read_timeout))
        for connection, own, body in zip(self._connections, headers, bodies, strict=False):
            with suppress(OSError, HTTPException):
                connection.request("POST", self._path, body, {**self._headers, **own})
        return [self._is_taken(connection) for connection in self._connections[: len(bodies)]]

    def _is_taken(self, connection: HTTPConnection) -> bool:
        try:
            response = connection.getresponse()
            response.read()
        except (OSError, HTTPException):
            # The next request reconnects.
            connection.close()
            return False
        return 200 <= response.status < 300

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
