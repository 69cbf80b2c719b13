"""The OpenAPI document of what is served, at `/v1/openapi.json`: made from the table of operations.

A summary is the first line of a handler's documentation. Tests hold the document against the code, and fuzz
the code from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import orjson
from pydantic import TypeAdapter

from tidemark import __version__
from tidemark.http.operations import ENDPOINTS, Endpoint, Operation
from tidemark.protocol.errors import ProtocolError

Part = dict[str, Any]

_OFFSET: Final = r"^[0-9]{16}$"
_COUNT: Final = {"type": "integer", "minimum": 0}
_TRUE: Final = {"type": "string", "enum": ["true"]}
_TOKEN: Final = {"type": "string", "pattern": _OFFSET, "example": "0000000000000042"}

#: The headers of responses.
HEADERS: Final[dict[str, Part]] = {
    "Cache-Control": {
        "description": "What caches may do (§10). `private` unless everybody may read.",
        "schema": {"type": "string"},
    },
    "Accept-Encoding": {
        "description": "Content codings that a request's body may have: none.",
        "schema": {"type": "string", "enum": ["identity"]},
    },
    "ETag": {
        "description": "Of a page: names exactly these bytes of exactly this stream. Of HEAD and of writes: "
        "names the tail, for `If-Match`.",
        "schema": {"type": "string"},
    },
    "Location": {"description": "The new stream's URL.", "schema": {"type": "string", "format": "uri"}},
    "Producer-Epoch": {"description": "The producer's present epoch.", "schema": _COUNT},
    "Producer-Expected-Seq": {"description": "The sequence number that is next.", "schema": _COUNT},
    "Producer-Received-Seq": {"description": "The sequence number that came.", "schema": _COUNT},
    "Producer-Seq": {"description": "The highest sequence number accepted.", "schema": _COUNT},
    "Retry-After": {"description": "Seconds after which to try again.", "schema": _COUNT},
    "Server-Timing": {
        "description": "How long the answer took, and how much of that was storage.",
        "schema": {"type": "string"},
    },
    "Stream-Closed": {"description": "The stream takes no more appends.", "schema": _TRUE},
    "Stream-Cursor": {
        "description": "Send it as `cursor` with the next read (§10.1): caches may then answer.",
        "schema": _COUNT,
    },
    "Stream-Expires-At": {
        "description": "When the stream ends by itself, as it was created with.",
        "schema": {"type": "string", "format": "date-time"},
    },
    "Stream-Next-Offset": {"description": "Where to read on from.", "schema": _TOKEN},
    "Stream-Retain-Bytes": {"description": "It keeps at least its last so many bytes.", "schema": _COUNT},
    "Stream-Retain-Seconds": {"description": "It keeps messages for so long.", "schema": _COUNT},
    "Stream-Retained-Offset": {"description": "The first offset that can be read.", "schema": _TOKEN},
    "Stream-SSE-Data-Encoding": {
        "description": "Data events are base64: the stream's type is not text.",
        "schema": {"type": "string", "enum": ["base64"]},
    },
    "Stream-Snapshot-Offset": {
        "description": "The offset that the snapshot stands for; -1 without one.",
        "schema": {"type": "string", "pattern": "^(-1|[0-9]{16})$"},
    },
    "Stream-TTL": {"description": "Seconds without reads and writes until it ends.", "schema": _COUNT},
    "Stream-Up-To-Date": {"description": "The answer reaches the tail.", "schema": _TRUE},
    "Vary": {
        "description": "`Authorization` where the answer depends on who asks.",
        "schema": {"type": "string"},
    },
    "WWW-Authenticate": {
        "description": "What is wrong with the token (RFC 6750).",
        "schema": {"type": "string"},
    },
}


def _sent(name: str, description: str, schema: Part) -> Part:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _asked(name: str, description: str, schema: Part) -> Part:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _named(name: str, description: str, pattern: str, example: str) -> Part:
    schema = {"type": "string", "minLength": 1, "pattern": pattern}
    return {"name": name, "in": "path", "required": True, "description": description} | {
        "schema": schema,
        "example": example,
    }


_EXAMPLES: Final[dict[str, Any]] = {
    "prefix": "run-",
    "after": "run-7",
    "limit": 50,
    "of": "/v1/stream/chat/42",
    "last": 100,
    "from": "2026-11-21T10:00Z",
    "page": "0000000000000042",
    "offset": "0000000000000042",
    "live": "sse",
    "cursor": 1234567,
    "Stream-TTL": 3600,
    "Stream-Expires-At": "2027-01-15T12:00:00Z",
    "Stream-Closed": "true",
    "Stream-Forked-From": "/v1/stream/chat-42",
    "Stream-Fork-Offset": "0000000000000042",
    "Stream-Fork-Sub-Offset": 2,
    "Stream-Seq": "0007",
    "Producer-Id": "worker-1",
    "Producer-Epoch": 0,
    "Producer-Seq": 7,
    "If-Match": "*",
}
_PARAMETERS: Final[dict[str, Part]] = {
    "path": {
        "name": "path",
        "in": "path",
        "required": True,
        "description": "The stream's name: segments with `/` between, at most 1,000 bytes in UTF-8.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1000,
            "pattern": r"^[^/\u0000-\u001f\u007f]+$",
        },
        "example": "chat-42",
    },
    "bucket": _named("bucket", "A bucket's id.", "^[a-z0-9_-]{4,64}$", "agents"),
    "stream": _named(
        "stream",
        "A stream's id: with its bucket's, at most 122 bytes in UTF-8.",
        r"^[^/\u0000-\u001f\u007f]{1,40}$",
        "run-7",
    ),
    "at": _named("at", "The snapshot's offset.", _OFFSET, "0" * 16),
    "id": _named("id", "The subscription's id.", r"^[^/\u0000-\u001f\u007f]+$", "mailer"),
    "file": _named("file", "A file of the console.", "^[a-z.-]+$", "console.css"),
    "prefix": _asked("prefix", "Only names that begin like this.", {"type": "string"}),
    "after": _asked("after", "The `next_cursor` of the page before.", {"type": "string"}),
    "limit": _asked("limit", "So many at most.", {"type": "integer", "minimum": 1, "maximum": 1000}),
    "offset": _asked(
        "offset",
        "Where to read from: a `Stream-Next-Offset`, `-1` for the beginning, `now` for the tail.",
        {"type": "string", "pattern": r"^(-1|now|[0-9]{16})$", "default": "-1"},
    ),
    "live": _asked(
        "live",
        "Wait for what is to come: one answer, or an event stream. Needs `offset`.",
        {"type": "string", "enum": ["long-poll", "sse"]},
    ),
    "cursor": _asked("cursor", "The last `Stream-Cursor`, so that caches collapse readers (§10.1).", _COUNT),
    "of": _asked("stream", "The stream's path, as in its URL.", {"type": "string"}),
    "last": _asked("last", "A number of messages.", {"type": "integer", "minimum": 1}),
    "from": _asked("from", "Written from this time on (RFC 3339).", {"type": "string"}),
    "page": _asked(
        "offset", "Of the page, as in its read.", {"type": "string", "pattern": r"^(-1|[0-9]{16})$"}
    ),
    "access_token": _asked(
        "access_token",
        "The bearer token of an EventSource, which cannot send headers; with `live=sse` only.",
        {"type": "string"},
    ),
    "If-Match": _sent(
        "If-Match",
        "Append only behind this tail: the `ETag` of HEAD or of an append; `*` is any (an extension).",
        {"type": "string", "pattern": r'^(\*|"[!#-~]*")$'},
    ),
    "If-None-Match": _sent("If-None-Match", "An `ETag`: 304 where it still holds.", {"type": "string"}),
    "Stream-TTL": _sent("Stream-TTL", "End after so many seconds without reads and writes.", _COUNT),
    "Stream-Retain-Bytes": _sent(
        "Stream-Retain-Bytes", "Let go of what lies before the last so many bytes (an extension).", _COUNT
    ),
    "Stream-Retain-Seconds": _sent(
        "Stream-Retain-Seconds", "Let go of messages that are older (an extension).", _COUNT
    ),
    "Stream-Expires-At": _sent(
        "Stream-Expires-At", "End at this instant (RFC 3339).", {"type": "string", "format": "date-time"}
    ),
    "Stream-Closed": _sent("Stream-Closed", "Close the stream with this request.", _TRUE),
    "Stream-Forked-From": _sent(
        "Stream-Forked-From",
        "Path of the stream to fork (§4.2).",
        {"type": "string", "pattern": r"^/[!-~]+$"},
    ),
    "Stream-Fork-Offset": _sent("Stream-Fork-Offset", "Where to leave it; its tail if absent.", _TOKEN),
    "Stream-Fork-Sub-Offset": _sent(
        "Stream-Fork-Sub-Offset", "So many messages (JSON) or bytes beyond that.", _COUNT
    ),
    "Snapshot-Upload": _sent(
        "Snapshot-Upload", "The upload that holds the snapshot's bytes.", {"type": "string"}
    ),
    "Stream-Seq": _sent(
        "Stream-Seq",
        "Must grow from append to append, compared bytewise.",
        {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-+\\--~]+$"},
    ),
    "Producer-Id": _sent(
        "Producer-Id",
        "With epoch and sequence, makes a repeated append land once (§5.2.1).",
        {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-+\\--~]+$"},
    ),
    "Producer-Epoch": _sent("Producer-Epoch", "Grows when the producer starts anew.", _COUNT),
    "Producer-Seq": _sent("Producer-Seq", "Counts from 0 in each epoch.", _COUNT),
}
#: The parameters and headers of requests, by name.
PARAMETERS: Final[dict[str, Part]] = {
    name: part | ({"example": _EXAMPLES[name]} if name in _EXAMPLES else {})
    for name, part in _PARAMETERS.items()
}

ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {"error": {"type": "string", "minLength": 1}},
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


def answer(description: str, *headers: str, content: Part | None = None) -> Part:
    named = {name: {"$ref": f"#/components/headers/{name}"} for name in (*headers, *_EVERY_HEADER)}
    return {"description": description, "headers": named} | ({"content": content} if content else {})


def fault(schema: Part, description: str, *headers: str) -> Part:
    return answer(description, *headers, content={"application/json": {"schema": schema}})


def headless(part: Part) -> Part:
    """The same answer to HEAD."""
    return {name: each for name, each in part.items() if name != "content"}


def faults(schema: Part) -> dict[str, Part]:
    """The errors that every operation may answer, with bodies of this schema."""
    return {status: fault(schema, text, *headers) for status, (text, headers) in _ALWAYS.items()}


def parameters(*names: str) -> list[Part]:
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


#: An answer has the stream's own type, or that of an event stream.
AS_STORED: Final[Part] = {"*/*": {}}
ANY_BYTES: Final = {"*/*": {"schema": {"type": "string", "format": "binary"}}}


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
_SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Rights are in its `scope` claim: `read:bucket/prefix*`. Absent on open servers.",
    }
}
#: Errors of subscriptions have a code.
_REFUSAL: Final = "http.subscription_bodies:SubscriptionRefusal"
_CONTENT: Final[Mapping[str, Part]] = {
    "bytes": AS_STORED,
    "json": {"application/json": {"schema": {"type": "object"}}},
}


def _described(endpoint: Endpoint, operation: Operation, schemas: Mapping[str, Part]) -> Part:
    name = operation.handler.rpartition(":")[2]
    camel = re.sub("_(.)", lambda found: found[1].upper(), name)
    is_subscription = endpoint.tag == "subscriptions"
    refusal = schemas[_REFUSAL] if is_subscription else {"$ref": "#/components/schemas/Error"}
    described: Part = {
        "operationId": camel + endpoint.suffix,
        "summary": (operation.load().__doc__ or "").partition("\n")[0].rstrip("."),
        "parameters": parameters(*operation.takes),
        "responses": faults(refusal) | dict(_answers(operation, schemas, refusal)),
        "security": [*({"bearer": [right]} for right in operation.rights.split()), {}],
        "tags": [endpoint.tag],
    }
    if operation.body:
        content = ANY_BYTES
        if operation.body in schemas:
            content = {"application/json": {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": operation.body in schemas, "content": content}
    return described


def _answers(operation: Operation, schemas: Mapping[str, Part], refusal: Part) -> Iterator[tuple[str, Part]]:
    for status, (meaning, *headers) in operation.answers.items():
        content = None
        if operation.returns and status in {200, 201, 202}:
            schema = schemas.get(operation.returns)
            content = (
                _CONTENT[operation.returns] if schema is None else {"application/json": {"schema": schema}}
            )
        made = (
            fault(refusal, meaning, *headers) if status >= 400 else answer(meaning, *headers, content=content)
        )
        yield str(status), made


def _path_item(endpoint: Endpoint, schemas: Mapping[str, Part]) -> Part:
    named = parameters(*re.findall(r"{(\w+)}", endpoint.path))
    item: Part = {"parameters": named} if named else {}
    for method, operation in endpoint.by_method.items():
        described = _described(endpoint, operation, schemas)
        if method == "HEAD":
            described["responses"] = {
                status: headless(part) for status, part in described["responses"].items()
            }
            if operation.method != "HEAD":
                described["operationId"] += "Metadata"
        item[method.lower()] = described
    return item


def _load_schemas() -> tuple[dict[str, Part], dict[str, Part]]:
    """The document's reference to each model that an operation names; and the components."""
    modes = {operation.returns: "serialization" for each in ENDPOINTS for operation in each.operations}
    modes |= {operation.body: "validation" for each in ENDPOINTS for operation in each.operations}
    modes[_REFUSAL] = "serialization"
    inputs: Any = [
        (name, mode, TypeAdapter(_load_model(name))) for name, mode in modes.items() if ":" in name
    ]
    found, made = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return {str(name): schema for (name, _), schema in found.items()}, made["$defs"]


def _load_model(name: str) -> Any:
    module, _, model = name.partition(":")
    return getattr(import_module(f"tidemark.{module}"), model)


@cache
def document() -> dict[str, Any]:
    schemas, components = _load_schemas()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": __version__,
            "description": "Durable Streams. § names sections of the protocol's specification.",
        },
        "servers": [{"url": "/", "description": "The server that this document comes from."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": {each.path: _path_item(each, schemas) for each in ENDPOINTS if each.tag},
        "components": {
            "headers": HEADERS,
            "parameters": PARAMETERS,
            "schemas": {"Error": ERROR} | components,
            "securitySchemes": _SECURITY,
        },
    }


@cache
def rendered() -> bytes:
    return orjson.dumps(document())
