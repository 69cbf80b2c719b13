"""Headers that every response carries, errors included: browser security (§12.7), CORS and times.

The list of headers that a page may read is half of the response to an append. A browser sends `Origin` with
each request that writes, so responses to writes without it leave the list out. A response to a read may be
cached and sent to any client, so it always has the list.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.http.backend import SPENT_IN_STORAGE
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.compaction import LAST_BY_KEY, MAX_POINTER, POINTER

Part = dict[str, Any]
"""A part of the OpenAPI document."""

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
#: In the scope of a request whose response has begun.
STARTED: Final = "tidemark.started"
WRITING: Final = frozenset({"PUT", "POST", "DELETE"})


class Header(NamedTuple):
    """`schema`, `sentence` and `example` are what the OpenAPI document says of it."""

    name: str
    sent_by: Literal["client", "server", "both"]
    schema: Part
    sentence: str
    example: Any = None


def one_of(*values: str) -> Part:
    return {"type": "string", "enum": list(values)}


def like(pattern: str, **more: Any) -> Part:
    return {"type": "string", "pattern": pattern} | more


TEXT: Final[Part] = {"type": "string"}
COUNT: Final[Part] = {"type": "integer", "minimum": 0}
_PATH: Final = like(r"^/[!-~]+$")
_OFFSET_OR_NONE: Final = like("^(-1|[0-9]{16})$")
TOKEN: Final = like("^[0-9]{16}$", example="0000000000000042")
_URL: Final[Part] = {"type": "string", "format": "uri-reference"}
_WHEN: Final[Part] = {"type": "string", "format": "date-time"}
#: Generators of clients take no `date-time` in a header of a request.
_UTC: Final = like("^20[0-9]{2}-(0[1-9]|1[0-2])-([01][1-9]|2[0-8])T([01][0-9]|2[0-3])(:[0-5][0-9]){2}Z$")
#: Without a comma, because gateways join repeated headers with one.
_WORD: Final[Part] = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-+\\--~]+$"}
_TRUE, _MODE, _BASE64, _IDENTITY = map(one_of, ("true", LAST_BY_KEY, "base64", "identity"))
_POINTER: Final = like(f"^{POINTER.pattern}$", maxLength=MAX_POINTER)
_CODINGS: Final = "Content codings that a request's body may have: none."
_MATCH: Final = "Append only behind this tail: the `ETag` of HEAD or of an append; `*` is any (an extension)."
_ETAG: Final = "Of a page: names its bytes. Of HEAD and of writes: names the tail, for `If-Match`."
_CURSOR: Final = "Send it as `cursor` with the next read (§10.1): caches may then answer."
_EPOCH: Final = "Grows when the producer starts anew. In an answer: the producer's present epoch."
_LAND_ONCE: Final = "With epoch and sequence, makes a repeated append land once (§5.2.1)."
_SEQ: Final = "Counts from 0 in each epoch. In an answer: the highest sequence number accepted."

#: For CORS and the OpenAPI document, in which `Authorization` and `Content-Type` are no parameters.
_TABLE: Final = (
    Header("Cache-Control", "server", TEXT, "What caches may do (§10). `private` unless everybody may read."),
    Header("Accept-Encoding", "server", _IDENTITY, _CODINGS),
    Header("ETag", "server", TEXT, _ETAG),
    Header("If-Match", "client", like(r'^(\*|"[!#-~]*")$'), _MATCH, "*"),
    Header("If-None-Match", "client", TEXT, "An `ETag`: 304 where it still holds."),
    Header("Last-Event-ID", "client", TEXT, "The `id` of the last event: the answer leads to what follows."),
    Header("Location", "server", _URL, "The new stream's URL; where a redirect leads."),
    Header("Producer-Epoch", "both", COUNT, _EPOCH, 0),
    Header("Producer-Expected-Seq", "server", COUNT, "The sequence number that is next."),
    Header("Producer-Id", "client", _WORD, _LAND_ONCE, "worker-1"),
    Header("Producer-Received-Seq", "server", COUNT, "The sequence number that came."),
    Header("Producer-Seq", "both", COUNT, _SEQ, 7),
    Header("Retry-After", "server", COUNT, "Seconds after which to try again."),
    Header("Server-Timing", "server", TEXT, "How long the answer took, and how much of that was storage."),
    Header("Snapshot-Upload", "client", TEXT, "The upload that holds the snapshot's bytes."),
    Header("Stream-Closed", "both", _TRUE, "Closes the stream. In an answer: it is closed.", "true"),
    Header("Stream-Compact", "both", _MODE, "Keeps the last message of each key (JSON only)."),
    Header("Stream-Compact-After", "both", COUNT, "Keeps all messages for so many seconds.", 3600),
    Header("Stream-Compact-Key", "both", _POINTER, "Where a message's key is (RFC 6901).", "/id"),
    Header("Stream-Compact-Tombstones", "both", COUNT, "Keeps deletions for so many seconds.", 86400),
    Header("Stream-Compacted-Offset", "server", TOKEN, "Below it, superseded messages are gone."),
    Header("Stream-Cursor", "server", COUNT, _CURSOR),
    Header("Stream-Expires-At", "client", _UTC, "End at this instant (RFC 3339).", "2027-01-15T12:00:00Z"),
    Header("Stream-Expires-At", "server", _WHEN, "When the stream ends by itself, as it was created with."),
    Header("Stream-Fork-Offset", "client", TOKEN, "Where to leave it; its tail if absent.", TOKEN["example"]),
    Header("Stream-Fork-Sub-Offset", "client", COUNT, "So many messages (JSON) or bytes beyond that.", 2),
    Header("Stream-Forked-From", "client", _PATH, "The stream to fork (§4.2).", "/v1/stream/chat-42"),
    Header("Stream-Next-Offset", "server", TOKEN, "Where to read on from."),
    Header("Stream-Retain-Bytes", "both", COUNT, "Keeps at least the last so many bytes."),
    Header("Stream-Retain-Seconds", "both", COUNT, "Keeps messages for at least so many seconds."),
    Header("Stream-Retained-Offset", "server", TOKEN, "The first offset that can be read."),
    Header("Stream-SSE-Data-Encoding", "server", _BASE64, "Data events are base64: the type is not text."),
    Header("Stream-Seq", "client", _WORD, "Must grow from append to append, compared bytewise.", "0007"),
    Header("Stream-Snapshot-Offset", "server", _OFFSET_OR_NONE, "What the snapshot stands for; -1: none."),
    Header("Stream-Start-Offset", "server", TOKEN, "Of a read with `last`: where its messages begin."),
    Header("Stream-TTL", "both", COUNT, "Seconds without a read or write until the stream ends.", 3600),
    Header("Stream-Up-To-Date", "server", _TRUE, "The answer reaches the tail."),
    Header("Vary", "server", TEXT, "`Authorization` where the answer depends on who asks."),
    Header("WWW-Authenticate", "server", TEXT, "What is wrong with the token (RFC 6750)."),
)
REQUEST_HEADERS: Final = [each for each in _TABLE if each.sent_by != "server"]
RESPONSE_HEADERS: Final = [each for each in _TABLE if each.sent_by != "client"]
#: What libraries for tracing add to a page's requests. The last stands for those of any
#: vendor; browsers before 2022 take it for a name.
_TRACING: Final = ["baggage", "Cache-Control", "sentry-trace", "traceparent", "tracestate", "*"]
#: Of the durable proxy (§10.2 of its protocol), which the OpenAPI document leaves to that.
_OF_PROXY: Final = ["Idempotency-Key", "Upstream-Authorization", "Upstream-Method", "Upstream-URL"]
_OF_PROXYS_ANSWERS: Final = ["Upstream-Content-Type", "Upstream-Error", "Upstream-Status"]
_ALLOWED: Final = ["Authorization", "Content-Type", *(each.name for each in REQUEST_HEADERS), *_OF_PROXY]
#: Every page may read `Cache-Control`, and `Vary` is for caches alone.
_TOLD: Final = [each.name for each in RESPONSE_HEADERS if each.name not in {"Cache-Control", "Vary"}]
EXPOSED: Final = _TOLD + _OF_PROXYS_ANSWERS
_ALWAYS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    # The last header of all. Over plain HTTP, Chromium takes a response that was cut off inside its headers
    # for a complete one with an empty body, and a client would skip what it did not receive. Without this
    # header a page gets an error.
    (b"access-control-allow-origin", b"*"),
]
#: Browsers keep a preflight's answer for at most a day.
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": ", ".join(METHODS),
    "Access-Control-Allow-Headers": ", ".join(_ALLOWED + _TRACING),
    "Access-Control-Max-Age": "86400",
}
_EXPOSE: Final = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())


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
        SPENT_IN_STORAGE.set(spent)
        is_no_page = method in WRITING and not any(name == b"origin" for name, _ in scope["headers"])

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[STARTED], seconds = True, perf_counter() - started
                PROCESS.answered(method if method in METHODS else "other", message["status"], seconds)
                durations = b"storage;dur=%.2f, total;dur=%.2f" % (spent[0] * 1000, seconds * 1000)
                timing = (b"server-timing", durations)
                added = [timing, *_ALWAYS] if is_no_page else [timing, _EXPOSE, *_ALWAYS]
                message["headers"] = [*message.get("headers", ()), *added]
            elif method == "HEAD":
                message["body"] = b""  # Content-Length stays: it says how long the body of GET is.
            await send(message)

        await self._app(scope, receive, send_with_headers)
