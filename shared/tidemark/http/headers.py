"""Headers that every response carries, errors included: browser security (§12.7), CORS and times.

The list of headers that a page may read is half of the response to an append. A browser sends `Origin` with
each request that writes, so responses to writes without it leave the list out. A response to a read may be
cached and sent to any client, so it always has the list.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.http.backend import STORAGE_SECONDS
from tidemark.observability.metrics import PROCESS

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")
WRITING: Final = frozenset({"PUT", "POST", "DELETE"})

_REQUEST_HEADERS: Final = (
    "Authorization",
    "Content-Type",
    "If-Match",
    "If-None-Match",
    "Last-Event-ID",
    "Producer-Epoch",
    "Producer-Id",
    "Producer-Seq",
    "Snapshot-Upload",
    "Stream-Closed",
    "Stream-Compact",
    "Stream-Compact-After",
    "Stream-Compact-Key",
    "Stream-Compact-Tombstones",
    "Stream-Expires-At",
    "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
    "Stream-Forked-From",
    "Stream-Retain-Bytes",
    "Stream-Retain-Seconds",
    "Stream-Seq",
    "Stream-TTL",
)
#: What libraries for tracing add to a page's requests. The last stands for those of any
#: vendor; browsers before 2022 take it for a name.
_TRACING_HEADERS: Final = ("baggage", "Cache-Control", "sentry-trace", "traceparent", "tracestate", "*")
_RESPONSE_HEADERS: Final = (
    "Accept-Encoding",
    "ETag",
    "Location",
    "Producer-Epoch",
    "Producer-Expected-Seq",
    "Producer-Received-Seq",
    "Producer-Seq",
    "Retry-After",
    "Server-Timing",
    "Stream-Closed",
    "Stream-Compact",
    "Stream-Compact-After",
    "Stream-Compact-Key",
    "Stream-Compact-Tombstones",
    "Stream-Compacted-Offset",
    "Stream-Cursor",
    "Stream-Expires-At",
    "Stream-Next-Offset",
    "Stream-Retain-Bytes",
    "Stream-Retain-Seconds",
    "Stream-Retained-Offset",
    "Stream-SSE-Data-Encoding",
    "Stream-Snapshot-Offset",
    "Stream-TTL",
    "Stream-Up-To-Date",
    "WWW-Authenticate",
)
_ALWAYS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "cross-origin",
    # The last header of all. Over plain HTTP, Chromium takes a response that was cut off inside its headers
    # for a complete one with an empty body, and a client would skip what it did not receive. Without this
    # header a page gets an error.
    "Access-Control-Allow-Origin": "*",
}
#: Browsers keep a preflight's answer for at most a day.
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": ", ".join(METHODS),
    "Access-Control-Allow-Headers": ", ".join(_REQUEST_HEADERS + _TRACING_HEADERS),
    "Access-Control-Max-Age": "86400",
}
_RAW: Final = [(name.lower().encode(), value.encode()) for name, value in _ALWAYS.items()]
_EXPOSED: Final = (b"access-control-expose-headers", ", ".join(_RESPONSE_HEADERS).encode())


class ResponseHeaders:
    """ASGI middleware around the whole application: adds the headers of every response, leaves the body out
    of those to HEAD (RFC 9110 §9.3.2: an HTTP API would not), and counts and times the responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, started, spent = scope["method"], perf_counter(), [0.0]
        STORAGE_SECONDS.set(spent)
        is_no_page = method in WRITING and not any(name == b"origin" for name, _ in scope["headers"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = perf_counter() - started
                PROCESS.answered(method if method in METHODS else "other", message["status"], seconds)
                durations = b"storage;dur=%.2f, total;dur=%.2f" % (spent[0] * 1000, seconds * 1000)
                timing = (b"server-timing", durations)
                added = [timing, *_RAW] if is_no_page else [timing, _EXPOSED, *_RAW]
                message["headers"] = [*message.get("headers", ()), *added]
            elif method == "HEAD":
                message["body"] = b""  # Content-Length stays: it says how long the body of GET is.
            await send(message)

        await self._app(scope, receive, send_with_headers)
