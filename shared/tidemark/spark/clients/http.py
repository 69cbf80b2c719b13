"""HTTP to a Durable Streams server: pooled, patient, and told apart by what an answer means."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import urllib3

#: Answers after which the same request may succeed a moment later.
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0
_TIMEOUT: Final = urllib3.Timeout(connect=5, read=60)
#: Redirects are followed (a snapshot may lie elsewhere), without the token if to another host;
#: what else is tried again is decided here and not there.
_REDIRECTS: Final = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=3)
_SHOWN_BYTES: Final = 300


class HttpFault(Exception):
    """The server said no, or said nothing however often it was asked (status 0)."""

    def __init__(self, method: str, url: str, status: int, text: str) -> None:
        super().__init__(f"tidemark: {method} {url}: {status or 'no answer'} {text}")
        self.status = status
        self.text = text


class HttpClient:
    """Every request made here may be sent twice: reads, creations, appends with producer headers."""

    def __init__(self, token: str | None, *, retry_seconds: float) -> None:
        self._pool = urllib3.PoolManager(maxsize=16, timeout=_TIMEOUT, retries=_REDIRECTS)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._retry_seconds = retry_seconds

    def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        stream: bool = False,
        redirect: bool = True,
        allow: frozenset[int] = frozenset(),
    ) -> urllib3.BaseHTTPResponse:
        """The answer, once it is a 2xx or one of `allow`. Raises HttpFault.

        With `stream` the body is still to be read, and to be released.
        """
        for pause in patience(self._retry_seconds):
            try:
                answer = self._pool.request(
                    method,
                    url,
                    headers=self._headers | dict(headers or {}),
                    body=body,
                    preload_content=not stream,
                    redirect=redirect and method in ("GET", "HEAD"),
                )
            except urllib3.exceptions.HTTPError as failure:
                pause(HttpFault(method, url, 0, str(failure)))
                continue
            if 200 <= answer.status < 300 or answer.status in allow:
                return answer
            fault = HttpFault(method, url, answer.status, answer.data[:_SHOWN_BYTES].decode(errors="replace"))
            if answer.status not in PASSING:
                raise fault
            pause(fault)
        raise AssertionError("unreachable")


def patience(seconds: float) -> Iterator[Callable[[Exception], None]]:
    """For each try a function that waits before the next one, longer each time, or raises the
    fault once the time is up."""
    deadline = time.monotonic() + seconds
    delay = _FIRST_DELAY_SECONDS

    def pause(fault: Exception) -> None:
        if time.monotonic() + delay > deadline:
            raise fault
        time.sleep(random.uniform(0.5, 1) * delay)

    while True:
        yield pause
        delay = min(_LONGEST_DELAY_SECONDS, 2 * delay)
