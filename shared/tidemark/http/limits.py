"""Limits of requests: their rate, and the memory for their bodies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tidemark.http.headers import WRITING
from tidemark.http.paths import is_open
from tidemark.http.requests import DRAIN_BYTES, GIVE_BACK, MAX_BODY_BYTES, RECEIVED, Respond
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
    """Guard that limits the rate of requests, before keys or storage are used. Raises RateLimitExceeded."""
    if not is_open(request.scope) and (wait_seconds := bucket.take()):
        raise RateLimitExceeded(wait_seconds)
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
