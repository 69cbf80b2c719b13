"""What the OpenAPI document says beside what FastAPI reads from the routes: the protocol's headers and
parameters, and the errors that every operation may answer.

Tests hold the document against the code, and fuzz the code from it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tidemark.protocol.compaction import MAX_POINTER, POINTER
from tidemark.protocol.errors import ProtocolError

Part = dict[str, Any]

_OFFSET: Final = r"^[0-9]{16}$"
_TEXT: Final = {"type": "string"}
_URL: Final = {"type": "string", "format": "uri-reference"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_INSTANT: Final = {"type": "string", "format": "date-time"}
#: Generators of clients take no `date-time` in a header of a request.
_AN_INSTANT: Final = {
    "type": "string",
    "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-([01][1-9]|2[0-8])T([01][0-9]|2[0-3])(:[0-5][0-9]){2}Z$",
}
_TRUE: Final = {"type": "string", "enum": ["true"]}
_TOKEN: Final = {"type": "string", "pattern": _OFFSET, "example": "0000000000000042"}
#: Without a comma, because gateways join repeated headers with one.
_WORD: Final = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-+\\--~]+$"}


def _one_of(*values: str) -> Part:
    return {"type": "string", "enum": list(values)}


def _like(pattern: str, **more: Any) -> Part:
    return {"type": "string", "pattern": pattern} | more


_POINTER: Final = _like(f"^{POINTER.pattern}$", maxLength=MAX_POINTER)

#: The headers of responses.
HEADERS: Final[dict[str, Part]] = {
    name: {"description": description, "schema": schema}
    for name, description, schema in (
        ("Cache-Control", "What caches may do (§10). `private` unless everybody may read.", _TEXT),
        ("Accept-Encoding", "Content codings that a request's body may have: none.", _one_of("identity")),
        ("ETag", "Of a page: names its bytes. Of HEAD and of writes: names the tail, for `If-Match`.", _TEXT),
        ("Location", "The new stream's URL; where a redirect leads.", _URL),
        ("Producer-Epoch", "The producer's present epoch.", _COUNT),
        ("Producer-Expected-Seq", "The sequence number that is next.", _COUNT),
        ("Producer-Received-Seq", "The sequence number that came.", _COUNT),
        ("Producer-Seq", "The highest sequence number accepted.", _COUNT),
        ("Retry-After", "Seconds after which to try again.", _COUNT),
        ("Server-Timing", "How long the answer took, and how much of that was storage.", _TEXT),
        ("Stream-Closed", "The stream takes no more appends.", _TRUE),
        ("Stream-Compact", "It keeps the last message of each key.", _one_of("last-by-key")),
        ("Stream-Compact-After", "For so many seconds it keeps all.", _COUNT),
        ("Stream-Compact-Key", "Where a message's key is (RFC 6901).", _POINTER),
        ("Stream-Compact-Tombstones", "It keeps deletions for so many seconds.", _COUNT),
        ("Stream-Compacted-Offset", "Below it, superseded messages are gone.", _TOKEN),
        ("Stream-Cursor", "Send it as `cursor` with the next read (§10.1): caches may then answer.", _COUNT),
        ("Stream-Expires-At", "When the stream ends by itself, as it was created with.", _INSTANT),
        ("Stream-Next-Offset", "Where to read on from.", _TOKEN),
        ("Stream-Retain-Bytes", "It keeps at least its last so many bytes.", _COUNT),
        ("Stream-Retain-Seconds", "It keeps messages for so long.", _COUNT),
        ("Stream-Retained-Offset", "The first offset that can be read.", _TOKEN),
        ("Stream-SSE-Data-Encoding", "Data events are base64: the type is not text.", _one_of("base64")),
        ("Stream-Snapshot-Offset", "What the snapshot stands for; -1: none.", _like("^(-1|[0-9]{16})$")),
        ("Stream-TTL", "Seconds without reads and writes until it ends.", _COUNT),
        ("Stream-Up-To-Date", "The answer reaches the tail.", _TRUE),
        ("Vary", "`Authorization` where the answer depends on who asks.", _TEXT),
        ("WWW-Authenticate", "What is wrong with the token (RFC 6750).", _TEXT),
    )
}


def _parameter(place: str, name: str, description: str, schema: Part, example: Any = None) -> Part:
    told = {"name": name, "in": place, "required": place == "path", "description": description}
    return told | {"schema": schema} | ({} if example is None else {"example": example})


_named: Final = partial(_parameter, "path")
_asked: Final = partial(_parameter, "query")
_sent: Final = partial(_parameter, "header")

_NAME: Final = r"^[^/\u0000-\u001f\u007f]+$"
_A_STREAM: Final = "The stream's name: segments with `/` between, at most 1,000 bytes in UTF-8."
_AN_ID: Final = "A stream's id: with its bucket's, at most 122 bytes in UTF-8."
_FROM: Final = "A `Stream-Next-Offset`, the `id` of an event, `-1` for the beginning, `now` for the tail."
_LIVE: Final = "Wait for what is to come: one answer, or an event stream. Needs `offset`."
_CURSOR: Final = "The last `Stream-Cursor`, so that caches collapse readers (§10.1)."
_BEARER: Final = "The bearer token of an EventSource, which cannot send headers; with `live=sse` only."
_IF_MATCH: Final = (
    "Append only behind this tail: the `ETag` of HEAD or of an append; `*` is any (an extension)."
)
_LAND_ONCE: Final = "With epoch and sequence, makes a repeated append land once (§5.2.1)."

#: The parameters and headers of requests, by name.
PARAMETERS: Final[dict[str, Part]] = {
    part["name"]: part
    for part in (
        _named("path", _A_STREAM, _like(_NAME, minLength=1, maxLength=1000), "chat-42"),
        _named("bucket", "A bucket's id.", _like("^[a-z0-9_-]{4,64}$", minLength=1), "agents"),
        _named("stream", _AN_ID, _like(_NAME.replace("+", "{1,40}"), minLength=1), "run-7"),
        _named("at", "The snapshot's offset.", _like(_OFFSET, minLength=1), "0" * 16),
        _named("id", "The subscription's id.", _like(_NAME, minLength=1), "mailer"),
        _named("file", "A file of the console.", _like("^[a-z.-]+$", minLength=1), "console.css"),
        _asked("prefix", "Only names that begin like this.", _TEXT, "run-"),
        _asked("after", "The `next_cursor` of the page before.", _TEXT, "run-7"),
        _asked("limit", "So many at most.", {"type": "integer", "minimum": 1, "maximum": 1000}, 50),
        _asked(
            "offset", _FROM, _like(r"^(-1|now|[0-9]{16}(\.[0-9]{1,16})?)$", default="-1"), "0000000000000042"
        ),
        _asked("live", _LIVE, _one_of("long-poll", "sse"), "sse"),
        _asked("cursor", _CURSOR, _COUNT, 1234567),
        _asked("access_token", _BEARER, _TEXT),
        _sent("If-Match", _IF_MATCH, _like(r'^(\*|"[!#-~]*")$'), "*"),
        _sent("If-None-Match", "An `ETag`: 304 where it still holds.", _TEXT),
        _sent("Last-Event-ID", "The `id` of the last event: the answer leads to what follows.", _TEXT),
        _sent("Stream-TTL", "End after so many seconds without reads and writes.", _COUNT, 3600),
        _sent("Stream-Compact", "Keep the last message of each key, of JSON.", _one_of("last-by-key")),
        _sent("Stream-Compact-After", "Keep all messages for so many seconds.", _COUNT, 3600),
        _sent("Stream-Compact-Key", "Where a message's key is (RFC 6901).", _POINTER, "/id"),
        _sent("Stream-Compact-Tombstones", "Keep deletions for so many seconds.", _COUNT, 86400),
        _sent("Stream-Retain-Bytes", "Let go of what lies before the last so many bytes.", _COUNT),
        _sent("Stream-Retain-Seconds", "Let go of messages that are older.", _COUNT),
        _sent("Stream-Expires-At", "End at this instant (RFC 3339).", _AN_INSTANT, "2027-01-15T12:00:00Z"),
        _sent("Stream-Closed", "Close the stream with this request.", _TRUE, "true"),
        _sent("Stream-Forked-From", "The stream to fork (§4.2).", _like(r"^/[!-~]+$"), "/v1/stream/chat-42"),
        _sent("Stream-Fork-Offset", "Where to leave it; its tail if absent.", _TOKEN, "0000000000000042"),
        _sent("Stream-Fork-Sub-Offset", "So many messages (JSON) or bytes beyond that.", _COUNT, 2),
        _sent("Snapshot-Upload", "The upload that holds the snapshot's bytes.", _TEXT),
        _sent("Stream-Seq", "Must grow from append to append, compared bytewise.", _WORD, "0007"),
        _sent("Producer-Id", _LAND_ONCE, _WORD, "worker-1"),
        _sent("Producer-Epoch", "Grows when the producer starts anew.", _COUNT, 0),
        _sent("Producer-Seq", "Counts from 0 in each epoch.", _COUNT, 7),
    )
}

ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {"type": "string", "minLength": 1},
        "outcome": {"const": "unknown", "description": "A write may have been carried out (503)."},
    },
}

#: The responses that every operation may send.
_ALWAYS: Final = {
    "400": ("The request breaks a rule of form.", ()),
    "401": ("No token, or one that does not hold.", ("WWW-Authenticate",)),
    "403": ("The stream may be read, but not this; or a page of another origin writes.", ()),
    "404": ("There is no such stream, or none that the token may read.", ()),
    "410": (
        "Deleted but kept for its forks, or no longer retained.",
        ("Stream-Next-Offset",),
    ),
    "415": ("The body has a Content-Encoding.", ("Accept-Encoding",)),
    "421": ("A server without keys is asked by a name that is not its own.", ()),
    "429": ("Too much for this stream, or the table, right now.", ("Retry-After",)),
    "500": ("An error of the server's; it may be tried again.", ()),
    "503": ("Storage does not answer: the outcome is unknown.", ("Retry-After",)),
}
_EVERY_HEADER: Final = ("Cache-Control", "Server-Timing", "Vary")


#: Any type. Generators of clients skip that, so they are offered bytes first.
AS_BYTES: Final[Part] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    "*/*": {},
}
#: The stream's own type, often one of these. JSON is sent as a message or an array of them, read
#: as an array.
AS_STORED: Final[Part] = AS_BYTES | {
    "application/json": {"schema": {"type": "array", "items": {}}},
    "text/plain": {"schema": _TEXT},
}
_SENT: Final[Part] = AS_STORED | {"application/json": {"schema": {"type": "object"}}}


def answers(told: Mapping[int, tuple[str, ...]], content: Part | None = None) -> dict[int | str, Part]:
    """The `responses` of a route: for each status its meaning and the names of its headers. Those that
    succeed have `content`, if any."""
    found: dict[int | str, Part] = {}
    for status, (meaning, *names) in told.items():
        found[status] = {"description": meaning, "headers": _headers(*names)}
        if content is not None and status in {200, 201, 202}:
            found[status]["content"] = content
    return found


def takes(*names: str, body: bool = False) -> Part:
    """The `openapi_extra` of a route: its parameters, and whether it takes a body of any kind."""
    extra: Part = {"parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names]}
    return extra | ({"requestBody": {"required": False, "content": _SENT}} if body else {})


def _headers(*names: str) -> Part:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def statuses_refused(kind: type[ProtocolError] = ProtocolError) -> set[int]:
    """The statuses of all errors."""
    return {kind.status}.union(*(statuses_refused(below) for below in kind.__subclasses__()))


TAGS: Final = {
    "streams": "The protocol itself: create, append, read, follow, close, delete (§5).",
    "buckets": "Streams in buckets, their listings, snapshots and bootstrap (extensions).",
    "catalog": "What people and monitors ask: listings, stats, start points, what a token may do.",
    "subscriptions": "Workers that are woken by what streams have new (§6, §7).",
    "console": "Pages for people.",
    "server": "What this server is, and whether it is up.",
}
#: Errors of subscriptions have a code.
_SCHEMAS: Final = {"subscriptions": "SubscriptionRefusal"}


def complete(document: Part) -> Part:
    """FastAPI's document with what all operations have: names in paths, errors, HEAD beside GET, and that any
    of the rights is enough."""
    for path, item in document["paths"].items():
        for operation in item.values():
            _complete_operation(operation)
        if "get" in item and "head" not in item:
            item["head"] = _metadata_of(item["get"])
        if names := re.findall(r"{(\w+)}", path):
            item["parameters"] = takes(*names)["parameters"]
    components = document["components"]
    components |= {"headers": HEADERS, "parameters": PARAMETERS}
    components["schemas"]["Error"] = ERROR
    for unused in ("HTTPValidationError", "ValidationError"):  # No answer of ours is one.
        components["schemas"].pop(unused, None)
    return document


def _complete_operation(operation: Part) -> None:
    schema = {"$ref": f"#/components/schemas/{_SCHEMAS.get(operation['tags'][0], 'Error')}"}
    responses = operation["responses"]
    responses.pop("422", None)
    for status, (text, names) in _ALWAYS.items():
        responses.setdefault(status, {"description": text, "headers": _headers(*names)})
    for status, response in responses.items():
        response["headers"] = response.get("headers", {}) | _headers(*_EVERY_HEADER)
        if int(status) >= 400:
            response["content"] = {"application/json": {"schema": schema}}
    rights = [right for each in operation.get("security", ()) for right in each["bearer"]]
    operation["security"] = [*({"bearer": [right]} for right in rights), {}]


def _metadata_of(operation: Part) -> Part:
    """GET without the content of its answers."""
    told = copy.deepcopy(operation) | {"operationId": operation["operationId"] + "Metadata"}
    for response in told["responses"].values():
        response.pop("content", None)
    return told
