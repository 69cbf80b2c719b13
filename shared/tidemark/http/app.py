"""The applications, wrapped in the middleware of every request: headers, limits, authorization."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.http.backend import Backend
from tidemark.http.error_handlers import error_response
from tidemark.http.headers import WRITING, ResponseHeaders
from tidemark.http.metrics import CountedTraffic, Rates, Traffic
from tidemark.http.paths import Find, HttpApplication, Operation, Operations, is_open
from tidemark.http.requests import DRAIN_BYTES, GIVE_BACK, MAX_BODY_BYTES, RECEIVED
from tidemark.http.streams import stream_operations
from tidemark.protocol.errors import RateLimitExceeded


class TokenBucket:
    """Gains `per_second` tokens a second, and holds one second's worth. Used from one event loop."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._holds = max(1.0, per_second)
        self._tokens = self._holds
        self._clock = clock
        self._filled_at = clock()

    def take(self) -> float:
        """Take a token and return 0; without a token, return the seconds until there is one."""
        now = self._clock()
        self._tokens = min(self._holds, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / self._per_second
        self._tokens -= 1
        return 0.0


class RateLimited:
    """ASGI middleware that limits the rate of requests, before keys or storage are used."""

    def __init__(self, app: ASGIApp, bucket: TokenBucket) -> None:
        self._app = app
        self._bucket = bucket

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or is_open(scope):
            return self._app(scope, receive, send)
        wait_seconds = self._bucket.take()
        rejection = error_response(Request(scope), RateLimitExceeded(wait_seconds)) if wait_seconds else None
        return (rejection or self._app)(scope, receive, send)


#: Bodies up to this size need no room: the connection's buffer is as large anyhow, and small appends must not
#: wait for large ones.
SMALL_BODY_BYTES: Final = 64 * 1024
#: The most bytes of larger bodies in memory at once; each takes about 3 times its size. Bodies are packed and
#: stored one after the other, so a higher limit gains no speed, and other requests would wait longer.
MAX_HELD_BYTES: Final = 16 * MAX_BODY_BYTES
_TOO_MANY_BODIES: Final = (
    f"Too many large bodies at once: this server takes {MAX_HELD_BYTES // MAX_BODY_BYTES} of "
    f"{MAX_BODY_BYTES >> 20} MiB"
)


class BodiesAtOnce:
    """ASGI middleware that limits the memory for large bodies. A body reserves its length, or the maximum if
    the length is unknown, until the response is sent or the handler releases it. If too little is left, the
    request gets 429 when the application reads the body. A client without `Expect: 100-continue` (RFC 9110
    §10.1.1) reads a response only after it has sent the body, so that body is read and dropped first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in WRITING:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = int(headers.get(b"content-length", 0))
        own, received, more = 0, 0, True

        async def receive_piece() -> Message:
            nonlocal received, more
            message = await receive()
            received += len(message.get("body", b""))
            scope[RECEIVED], more = received, message.get("more_body", False)
            return message

        async def receive_with_room() -> Message:
            nonlocal own
            if more and not own and max(length, received) > SMALL_BODY_BYTES:
                room = min(length or MAX_BODY_BYTES, MAX_BODY_BYTES)
                if self._held + room > MAX_HELD_BYTES:
                    while b"expect" not in headers and received < DRAIN_BYTES and more:
                        await receive_piece()
                    raise RateLimitExceeded(1, _TOO_MANY_BODIES)
                own, self._held = room, self._held + room
            return await receive_piece()

        def give_back() -> None:
            nonlocal own
            self._held, own = self._held - own, 0

        scope[GIVE_BACK] = give_back
        try:
            await self._app(scope, receive_with_room, send)
        finally:
            give_back()


def create_app(backend: Backend, *, with_metrics: bool = False) -> ResponseHeaders:
    """Make the application of a server. `with_metrics` adds `/v1/metrics`, `/v1/rates` and `/v1/traffic`."""
    from tidemark.http.api import control_operations
    from tidemark.http.compression import Compressed
    from tidemark.http.proxy import proxy_operations

    operations = Operations([*stream_operations(), *control_operations(), *proxy_operations(backend)])
    rates = Rates(Traffic()) if with_metrics else None
    app = HttpApplication(backend, operations.find, rates)
    counted = CountedTraffic(app, rates.traffic) if rates else app
    return guarded(Compressed(BodiesAtOnce(counted)), backend, operations.find)


def create_data_path(backend: Backend, check_format: Callable[[], None]) -> ASGIApp:
    """Make the application of a function: the operations of a stream. FastAPI is imported with the first
    request for another path (`streams.py`)."""

    def load_more() -> list[Operation]:
        from tidemark.http.api import control_operations
        from tidemark.http.proxy import proxy_operations

        return [*control_operations(), *proxy_operations(backend)]

    operations = Operations(stream_operations(), load_more)
    app = HttpApplication(backend, operations.find, check_format=check_format)
    return guarded(app, backend, operations.find)


def guarded(app: ASGIApp, backend: Backend, find: Find) -> ResponseHeaders:
    """Wrap the application in the checks that the settings turn on. Without keys the application is open to
    everybody, so a deployed function calls `check_not_open` first.

    The imports are here because the libraries add 0.1 s to a cold start.
    """
    settings = backend.settings.authorization
    if settings.is_on:
        from tidemark.http.security.authorization import Authorization, make_check

        check = make_check(settings, asyncio.to_thread)
        app = Authorization(app, find, check, settings.public_read_buckets)
    if settings.has_edge:
        from tidemark.http.security.origin_secret import BehindEdge, origin_secret_loader

        load = origin_secret_loader(settings, asyncio.to_thread)
        app = BehindEdge(app, load, is_required=settings.edge_only)
    if backend.settings.requests_per_second:
        app = RateLimited(app, TokenBucket(backend.settings.requests_per_second))
    return ResponseHeaders(app)
