"""The OpenAPI document of what is served, at `/v1/openapi.json`.

Written by hand beside the routes: the protocol lives in headers and offsets, of which a
framework knows nothing. Tests hold it against the code, and fuzz the code from it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import orjson

from tidemark import __version__
from tidemark.http.control_routers import describe
from tidemark.http.openapi.buckets import bucket_paths
from tidemark.http.openapi.parts import (
    ANY_BYTES,
    AS_STORED,
    ERROR,
    HEADERS,
    PARAMETERS,
    Part,
    answer,
    fault,
    faults,
    headless,
    parameters,
)

_TAIL: Final = ("Stream-Next-Offset", "Stream-Closed")
_READ: Final = (*_TAIL, "ETag", "Stream-Up-To-Date", "Stream-Cursor", "Stream-SSE-Data-Encoding")
_ANSWERED_NOW: Final = ("ETag", "Producer-Epoch", "Producer-Seq")

_CREATE: Final[Part] = {
    "operationId": "createStream",
    "summary": "Create a stream, or find it there as asked for (§5.1); or fork one (§4.2)",
    "parameters": parameters(
        "Stream-TTL",
        "Stream-Expires-At",
        "Stream-Retain-Seconds",
        "Stream-Retain-Bytes",
        "Stream-Closed",
        "Stream-Forked-From",
        "Stream-Fork-Offset",
        "Stream-Fork-Sub-Offset",
    ),
    "requestBody": {"required": False, "description": "The stream's first content.", "content": ANY_BYTES},
    "responses": {
        "201": answer("It was made.", "Location", *_TAIL),
        "200": answer("It was there already, the same.", *_TAIL, "ETag"),
        **faults(
            _409=fault("A different stream is there, or the source cannot be forked."),
            _413=fault("The body is too large."),
        ),
    },
    "security": [{"bearer": ["write"]}, {"bearer": ["manage"]}, {}],
}
_APPEND: Final[Part] = {
    "operationId": "appendToStream",
    "summary": "Append, close, or both (§5.2, §5.3)",
    "parameters": parameters(
        "Stream-Closed", "Stream-Seq", "Producer-Id", "Producer-Epoch", "Producer-Seq", "If-Match"
    ),
    "requestBody": {"required": False, "description": "In the stream's content type.", "content": ANY_BYTES},
    "responses": {
        "200": answer("A producer's append was accepted.", *_TAIL, *_ANSWERED_NOW),
        "204": answer("Accepted, or a producer's repetition of what was.", *_TAIL, *_ANSWERED_NOW),
        **faults(
            _403=fault("The producer's epoch is stale, or the token does not grant this.", "Producer-Epoch"),
            _409=fault(
                "Closed, of another content type, or out of sequence.",
                *_TAIL,
                "Producer-Expected-Seq",
                "Producer-Received-Seq",
            ),
            _412=fault("`If-Match` names another tail.", "ETag", "Stream-Next-Offset"),
            _413=fault("The body is too large."),
        ),
    },
    "security": [{"bearer": ["write"]}, {}],
}
_READING: Final[Part] = {
    "operationId": "readStream",
    "summary": "Read a page, wait for one, or follow as an event stream (§5.6 to §5.8)",
    "parameters": parameters("offset", "live", "cursor", "access_token", "If-None-Match"),
    "responses": {
        "200": answer("Data, events, or nothing yet.", *_READ, content=AS_STORED),
        "204": answer("Nothing came while waiting.", *_READ),
        "304": answer("The client has it already.", *_READ),
        **faults(),
    },
    "security": [{"bearer": ["read"]}, {}],
}
_METADATA: Final[Part] = {
    "operationId": "streamMetadata",
    "summary": "What kind of stream it is, and where its tail is (§5.5)",
    "parameters": [],
    "responses": {
        "200": answer(
            "It is there.",
            *_TAIL,
            "ETag",
            "Stream-TTL",
            "Stream-Expires-At",
            "Stream-Retain-Seconds",
            "Stream-Retain-Bytes",
            "Stream-Retained-Offset",
        ),
        **{status: headless(part) for status, part in faults().items()},
    },
    "security": [{"bearer": ["read"]}, {}],
}
_DELETE: Final[Part] = {
    "operationId": "deleteStream",
    "summary": "Delete a stream (§5.4)",
    "parameters": [],
    "responses": {"204": answer("It is gone."), **faults()},
    "security": [{"bearer": ["manage"]}, {}],
}


def _open(summary: str, operation_id: str, schema: Part) -> Part:
    return {
        "operationId": operation_id,
        "summary": summary,
        "responses": {
            "200": {"description": "It says so.", "content": {"application/json": {"schema": schema}}}
        },
        "security": [{}],
    }


_STREAM: Final = {
    "put": _CREATE,
    "post": _APPEND,
    "get": _READING,
    "head": _METADATA,
    "delete": _DELETE,
}
_ALIAS: Final = {
    method: part | {"operationId": f"{part['operationId']}ByAlias"} for method, part in _STREAM.items()
}
PATHS: Final[dict[str, Part]] = {
    "/": {
        "get": _open("What this server is, and where its documentation is", "frontPage", {"type": "object"})
    },
    "/favicon.ico": {
        "get": {
            "operationId": "favicon",
            "summary": "There is no icon",
            "responses": {"204": {"description": "None."}},
            "security": [{}],
        }
    },
    "/v1/stream/{path}": {"parameters": parameters("path"), **_STREAM},
    "/v1/streams/{path}": {"parameters": parameters("path"), **_ALIAS},
    **bucket_paths(_STREAM),
    "/v1/health": {
        "get": _open(
            "Whether the server is up",
            "health",
            {
                "type": "object",
                "properties": {
                    "status": {"const": "ok"},
                    "version": {"type": "string"},
                    "commit": {
                        "type": ["string", "null"],
                        "description": "What the deployed package was built from; null in a checkout.",
                    },
                },
                "required": ["status", "version", "commit"],
            },
        )
    },
    "/v1/openapi.json": {"get": _open("This document", "openapi", {"type": "object"})},
}

_SECURITY: Final = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "Rights are in its `scope` claim: `read:bucket/prefix*`. Absent on open servers.",
    }
}


TAGS: Final = {
    "streams": "The protocol itself: create, append, read, follow, close, delete (§5).",
    "buckets": "Streams in buckets, their listings, snapshots and bootstrap (extensions).",
    "catalog": "What people and monitors ask: listings, stats, start points, what a token may do.",
    "subscriptions": "Workers that are woken by what streams have new (§6, §7).",
    "console": "Pages for people.",
    "server": "What this server is, and whether it is up.",
}


def _tagged(paths: dict[str, Part]) -> dict[str, Part]:
    """Each operation says which of the tags it belongs to, by its path."""
    tagged = {}
    for path, item in paths.items():
        tag = "buckets" if path.startswith("/{bucket}") else "streams" if "{path}" in path else "server"
        tagged[path] = {
            name: part if name == "parameters" else part | {"tags": [tag]} for name, part in item.items()
        }
    return tagged


@cache
def document() -> dict[str, Any]:
    """The data path's part as it stands above, and what FastAPI says of the control surface."""
    control = describe()
    schemas = control.get("components", {}).get("schemas", {})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": __version__,
            "description": "Durable Streams. § names sections of the protocol's specification.",
        },
        "servers": [{"url": "/", "description": "The server that this document comes from."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": _tagged(PATHS) | control.get("paths", {}),
        "components": {
            "headers": HEADERS,
            "parameters": PARAMETERS,
            "schemas": {"Error": ERROR} | schemas,
            "securitySchemes": _SECURITY,
        },
    }


@cache
def rendered() -> bytes:
    return orjson.dumps(document())
