"""HTTP to a Durable Streams server: pooled, patient, and told apart by what an answer means."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Final

import urllib3

#: Answers after which the same request may succeed a moment later.
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_TRIES: Final = 8
_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0
_TIMEOUT: Final = urllib3.Timeout(connect=5, read=60)
_SHOWN_BYTES: Final = 300


class HttpFault(Exception):
    """The server said no, or said nothing however often it was asked (status 0)."""

    def __init__(self, method: str, url: str, status: int, text: str) -> None:
        super().__init__(f"tidemark: {method} {url}: {status or 'no answer'} {text}")
        self.status = status
        self.text = text


class Web:
    """Every request made here may be sent twice: reads, creations, appends with producer headers."""

    def __init__(self, token: str | None, *, tries: int = _TRIES) -> None:
        self._pool = urllib3.PoolManager(maxsize=16, timeout=_TIMEOUT, retries=False)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tries = tries

    def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        stream: bool = False,
        allow: frozenset[int] = frozenset(),
    ) -> urllib3.BaseHTTPResponse:
        """The answer, once it is a 2xx or one of `allow`. Raises HttpFault.

        With `stream` the body is still to be read, and to be released.
        """
        fault = HttpFault(method, url, 0, "")
        for tried in range(self._tries):
            if tried:
                time.sleep(_delay(tried))
            try:
                answer = self._pool.request(
                    method,
                    url,
                    headers=self._headers | dict(headers or {}),
                    body=body,
                    preload_content=not stream,
                    redirect=method in ("GET", "HEAD"),
                )
            except urllib3.exceptions.HTTPError as failure:
                fault = HttpFault(method, url, 0, str(failure))
                continue
            if 200 <= answer.status < 300 or answer.status in allow:
                return answer
            fault = HttpFault(method, url, answer.status, answer.data[:_SHOWN_BYTES].decode(errors="replace"))
            if answer.status not in PASSING:
                break
        raise fault


def _delay(tried: int) -> float:
    return random.uniform(0.5, 1) * min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2**tried)
