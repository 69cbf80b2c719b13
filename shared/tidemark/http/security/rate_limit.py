"""The rate limit of a server, in requests a second. An HTTP API limits requests before they reach functions.

It is for a process that serves many requests: a function's environment has one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.http.dispatch import is_open
from tidemark.http.error_handlers import error_response
from tidemark.protocol.errors import RateLimitExceeded


class TokenBucket:
    """Gains `per_second` tokens a second, up to one second's worth. Used from one event loop."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._holds = max(1.0, per_second)
        self._tokens = self._holds
        self._clock = clock
        self._filled_at = clock()

    def take(self) -> float:
        """0 where there was a token; else the seconds until there is one."""
        now = self._clock()
        self._tokens = min(self._holds, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_second
        self._tokens -= 1
        return 0.0


class RateLimited:
    """ASGI middleware. A refused request costs nothing: neither keys nor storage are used."""

    def __init__(self, app: ASGIApp, bucket: TokenBucket) -> None:
        self._app = app
        self._bucket = bucket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope):
            await self._app(scope, receive, send)
            return
        wait_seconds = self._bucket.take()
        rejection = error_response(Request(scope), RateLimitExceeded(wait_seconds)) if wait_seconds else None
        await (rejection or self._app)(scope, receive, send)
