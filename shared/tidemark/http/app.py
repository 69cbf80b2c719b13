"""The applications, and the guards of every request: headers, limits, authorization."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tidemark.http.backend import Backend
from tidemark.http.error_handlers import error_response
from tidemark.http.headers import WRITING, add_headers
from tidemark.http.metrics import CountedTraffic, Rates, Traffic
from tidemark.http.paths import Find, HttpApplication, Operation, Operations, is_open
from tidemark.http.requests import DRAIN_BYTES, GIVE_BACK, MAX_BODY_BYTES, RECEIVED, Guard, Respond
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


async def limit_rate(respond: Respond, request: Request, *, bucket: TokenBucket) -> Response:
    """Guard that limits the rate of requests, before keys or storage are used."""
    if not is_open(request.scope) and (wait_seconds := bucket.take()):
        return error_response(request, RateLimitExceeded(wait_seconds))
    return await respond(request)


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
    """Guard that limits the memory for large bodies. A body reserves its length, or the maximum if the length
    is unknown, until there is a response or the handler releases it. If too little is left, the request gets
    429 when the application reads the body. A client without `Expect: 100-continue` (RFC 9110 §10.1.1) reads
    a response only after it has sent the body, so that body is read and dropped first."""

    def __init__(self) -> None:
        self._held = 0

    async def __call__(self, respond: Respond, request: Request) -> Response:
        if request.method not in WRITING:
            return await respond(request)
        scope, headers = request.scope, dict(request.scope["headers"])
        length = int(headers.get(b"content-length", 0))
        own, received, more = 0, 0, True

        async def receive_piece() -> Message:
            nonlocal received, more
            message = await request.receive()
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
            return await respond(Request(scope, receive_with_room))
        finally:
            give_back()


def create_app(
    backend: Backend, outermost: Iterable[Guard] = (), *, with_metrics: bool = False
) -> HttpApplication:
    """Make the application of a server. `with_metrics` adds `/v1/metrics`, `/v1/rates` and `/v1/traffic`."""
    from tidemark.http.api import control_operations
    from tidemark.http.compression import compress
    from tidemark.http.proxy import proxy_operations

    operations = Operations([*stream_operations(), *control_operations(), *proxy_operations(backend)])
    rates = Rates(Traffic()) if with_metrics else None
    guards = guards_of(backend, operations.find, outermost)
    guards += [compress, BodiesAtOnce()]
    if rates:
        guards.append(CountedTraffic(rates.traffic))
    return HttpApplication(backend, operations.find, guards, rates)


def create_data_path(backend: Backend, check_format: Callable[[], None]) -> HttpApplication:
    """Make the application of a function: the operations of a stream. FastAPI is imported with the first
    request for another path (`streams.py`)."""

    def load_more() -> list[Operation]:
        from tidemark.http.api import control_operations
        from tidemark.http.proxy import proxy_operations

        return [*control_operations(), *proxy_operations(backend)]

    operations = Operations(stream_operations(), load_more)
    guards = guards_of(backend, operations.find)
    return HttpApplication(backend, operations.find, guards, check_format=check_format)


def guards_of(backend: Backend, find: Find, outermost: Iterable[Guard] = ()) -> list[Guard]:
    """The guards that the settings turn on, the outermost first. Without keys the application is open to
    everybody, so a deployed function calls `check_not_open` first.

    The imports are here because the libraries add 0.1 s to a cold start.
    """
    settings, per_second = backend.settings.authorization, backend.settings.requests_per_second
    guards: list[Guard] = [add_headers, *outermost]
    if per_second:
        guards.append(partial(limit_rate, bucket=TokenBucket(per_second)))
    if settings.has_edge:
        from tidemark.http.security.origin_secret import behind_edge, origin_secret_loader

        load = origin_secret_loader(settings, asyncio.to_thread)
        guards.append(partial(behind_edge, load=load, is_required=settings.edge_only))
    if settings.is_on:
        from tidemark.http.security.authorization import Authorization, make_check

        check = make_check(settings, asyncio.to_thread)
        guards.append(Authorization(find, check, settings.public_read_buckets))
    return guards
