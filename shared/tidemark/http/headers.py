"""The API's headers, and the headers of every response: browser security (§12.7) and CORS.

`Access-Control-Expose-Headers`, the list of headers that a page may read, is half of the response to an
append. Browsers send `Origin` with each write, so responses to writes without `Origin` omit the list. A
response to a read may be cached for other clients, so reads always get the list.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from tidemark.protocol.compaction import LAST_BY_KEY, MAX_POINTER, POINTER

Part = dict[str, Any]
"""A part of the OpenAPI document."""

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")
WRITING: Final = frozenset({"PUT", "POST", "DELETE"})


class Header(NamedTuple):
    """A header. `schema`, `sentence` and `example` appear in the OpenAPI document."""

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
#: A pattern, because generators of clients do not support `date-time` in a request header.
_UTC: Final = like("^20[0-9]{2}-(0[1-9]|1[0-2])-([01][1-9]|2[0-8])T([01][0-9]|2[0-3])(:[0-5][0-9]){2}Z$")
#: Without a comma, because gateways join repeated headers with one.
_WORD: Final[Part] = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-+\\--~]+$"}
_TRUE, _MODE, _BASE64, _IDENTITY = map(one_of, ("true", LAST_BY_KEY, "base64", "identity"))
_POINTER: Final = like(f"^{POINTER.pattern}$", maxLength=MAX_POINTER)
_CODINGS: Final = "`identity`: the body must not have a Content-Encoding."
_MATCH: Final = "Append only at this tail: the `ETag` of HEAD or of an append; `*` is any (an extension)."
_NONE_MATCH: Final = "An `ETag`: 304 if it is still current. `*`: append only to a stream that is missing."
_CREATE: Final = "Creates a missing stream of this type; empty: of `Content-Type`'s (an extension)."
_ETAG: Final = "The entity tag: of the page for reads; of the tail for HEAD and writes, for `If-Match`."
_CURSOR: Final = "Send it as `cursor` with the next read (§10.1), so that caches can answer."
_EPOCH: Final = "Grows with each restart of the producer. In a response: the producer's current epoch."
_LAND_ONCE: Final = "With epoch and sequence number, makes retries of an append idempotent (§5.2.1)."
_SEQ: Final = "Counts from 0 in each epoch. In a response: the highest accepted sequence number."

#: For CORS and the OpenAPI document, in which `Authorization` and `Content-Type` are no parameters.
_TABLE: Final = (
    Header("Cache-Control", "server", TEXT, "Rules for caches (§10). `private` unless everybody may read."),
    Header("Accept-Encoding", "server", _IDENTITY, _CODINGS),
    Header("ETag", "server", TEXT, _ETAG),
    Header("If-Match", "client", like(r'^(\*|"[!#-~]*")$'), _MATCH, "*"),
    Header("If-None-Match", "client", TEXT, _NONE_MATCH),
    Header("Last-Event-ID", "client", TEXT, "The `id` of the last event: redirects to the events after it."),
    Header("Location", "server", _URL, "The new stream's URL, or a redirect's target."),
    Header("Producer-Epoch", "both", COUNT, _EPOCH, 0),
    Header("Producer-Expected-Seq", "server", COUNT, "The expected sequence number."),
    Header("Producer-Id", "client", _WORD, _LAND_ONCE, "worker-1"),
    Header("Producer-Received-Seq", "server", COUNT, "The sequence number of the request."),
    Header("Producer-Seq", "both", COUNT, _SEQ, 7),
    Header("Retry-After", "server", COUNT, "Seconds after which to retry."),
    Header("Server-Timing", "server", TEXT, "The duration in the server, and in storage."),
    Header("Snapshot-Upload", "client", TEXT, "The id of the upload with the snapshot's bytes."),
    Header("Stream-Closed", "both", _TRUE, "Closes the stream. In a response: it is closed.", "true"),
    Header("Stream-Compact", "both", _MODE, "Keeps the last message of each key (JSON only)."),
    Header("Stream-Compact-After", "both", COUNT, "Seconds for which all messages are kept.", 3600),
    Header("Stream-Compact-Key", "both", _POINTER, "JSON pointer to a message's key (RFC 6901).", "/id"),
    Header("Stream-Compact-Tombstones", "both", COUNT, "Seconds for which deletions are kept.", 86400),
    Header("Stream-Compacted-Offset", "server", TOKEN, "Superseded messages before it are gone."),
    Header("Stream-Create", "client", TEXT, _CREATE, "application/json"),
    Header("Stream-Cursor", "server", COUNT, _CURSOR),
    Header("Stream-Expires-At", "client", _UTC, "End at this instant (RFC 3339).", "2027-01-15T12:00:00Z"),
    Header(
        "Stream-Expires-At", "server", _WHEN, "The time when the stream expires, as given at its creation."
    ),
    Header("Stream-Fork-Offset", "client", TOKEN, "The fork's offset; default: the tail.", TOKEN["example"]),
    Header("Stream-Fork-Sub-Offset", "client", COUNT, "Messages (JSON) or bytes after the fork's offset.", 2),
    Header("Stream-Forked-From", "client", _PATH, "The stream to fork (§4.2).", "/v1/stream/chat-42"),
    Header("Stream-Next-Offset", "server", TOKEN, "The offset of the next read."),
    Header("Stream-Retain-Bytes", "both", COUNT, "The number of last bytes that are kept at least."),
    Header("Stream-Retain-Seconds", "both", COUNT, "Seconds for which messages are kept at least."),
    Header("Stream-Retained-Offset", "server", TOKEN, "The first offset that can be read."),
    Header("Stream-SSE-Data-Encoding", "server", _BASE64, "Data events are base64: the type is not text."),
    Header("Stream-Seq", "client", _WORD, "Must grow from append to append, compared bytewise.", "0007"),
    Header("Stream-Snapshot-Offset", "server", _OFFSET_OR_NONE, "The snapshot's offset; -1: no snapshot."),
    Header("Stream-Start-Offset", "server", TOKEN, "For a read with `last`: the first message's offset."),
    Header("Stream-TTL", "both", COUNT, "Seconds without a read or write until the stream ends.", 3600),
    Header("Stream-Up-To-Date", "server", _TRUE, "The response reaches the tail."),
    Header("Vary", "server", TEXT, "`Authorization` if the response depends on the token."),
    Header("WWW-Authenticate", "server", TEXT, "The fault of the token (RFC 6750)."),
)
REQUEST_HEADERS: Final = [each for each in _TABLE if each.sent_by != "server"]
RESPONSE_HEADERS: Final = [each for each in _TABLE if each.sent_by != "client"]
#: Headers that tracing libraries add to a page's requests. `*` allows all others; browsers before 2022 do not
#: understand it.
_TRACING: Final = ["baggage", "Cache-Control", "sentry-trace", "traceparent", "tracestate", "*"]
#: Headers of the durable proxy (§10.2 of its protocol), which are not in the OpenAPI document.
_OF_PROXY: Final = ["Idempotency-Key", "Upstream-Authorization", "Upstream-Method", "Upstream-URL"]
_OF_PROXYS_ANSWERS: Final = ["Upstream-Content-Type", "Upstream-Error", "Upstream-Status"]
_ALLOWED: Final = ["Authorization", "Content-Type", *(each.name for each in REQUEST_HEADERS), *_OF_PROXY]
#: Without `Cache-Control`, which every page may read anyway, and `Vary`, which only caches need.
_TOLD: Final = [each.name for each in RESPONSE_HEADERS if each.name not in {"Cache-Control", "Vary"}]
EXPOSED: Final = _TOLD + _OF_PROXYS_ANSWERS
ALWAYS: Final = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    # Must be the last header. Over plain HTTP, Chromium treats a response that was cut off inside its headers
    # as complete, with an empty body, and the client would skip data. Without this header, which is cut off
    # too, the page gets an error.
    (b"access-control-allow-origin", b"*"),
]
#: A preflight counts for a day, the longest time that browsers grant.
PREFLIGHT: Final = {
    "Access-Control-Allow-Methods": ", ".join(METHODS),
    "Access-Control-Allow-Headers": ", ".join(_ALLOWED + _TRACING),
    "Access-Control-Max-Age": "86400",
}
EXPOSE: Final = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
