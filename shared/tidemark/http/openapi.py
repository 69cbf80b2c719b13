"""Completes the OpenAPI document that FastAPI makes from the routes: the protocol's headers and parameters,
and the errors of every operation.

Tests compare the document with the code, and fuzz the code from the document.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Final

from tidemark.http.headers import COUNT, REQUEST_HEADERS, RESPONSE_HEADERS, TEXT, TOKEN, Part, like, one_of

#: The headers of responses.
HEADERS: Final[dict[str, Part]] = {
    each.name: {"description": each.sentence, "schema": each.schema} for each in RESPONSE_HEADERS
}

_NAME: Final = r"^[^/\u0000-\u001f\u007f]+$"
_A_STREAM: Final = "The stream's name: segments with `/` between, at most 1,000 bytes in UTF-8."
_AN_ID: Final = "A stream's id. Together with the bucket's id at most 122 bytes in UTF-8."
_FROM: Final = "A `Stream-Next-Offset`, the `id` of an event, `-1` for the beginning, `now` for the tail."
_LIVE: Final = "Wait for new data: one response, or server-sent events. Needs `offset`."
_CURSOR: Final = "The last `Stream-Cursor`, so that caches collapse readers (§10.1)."
_LAST: Final = "Read backwards: the number of messages before `offset`, where the response ends."
_WHERE: Final = (
    "Only messages that meet the condition `<JSON pointer>:<operator>[:<JSON value>]`, of a JSON stream."
)
_FROM_PATTERN: Final = r"^(-1|now|[0-9]{16}(\.[0-9]{1,16})?(\.closed)?)$"
_BEARER: Final = "The bearer token of an EventSource, which cannot send headers; with `live=sse` only."

#: The parameters and headers of requests, by name.
PARAMETERS: Final[dict[str, Part]] = {
    name: {"name": name, "in": place, "required": place == "path", "description": text, "schema": schema}
    | ({} if example is None else {"example": example})
    for place, name, text, schema, example in (
        ("path", "path", _A_STREAM, like(_NAME, minLength=1, maxLength=1000), "chat-42"),
        ("path", "bucket", "A bucket's id.", like("^[a-z0-9_-]{4,64}$", minLength=1), "agents"),
        ("path", "stream", _AN_ID, like(_NAME.replace("+", "{1,40}"), minLength=1), "run-7"),
        ("path", "at", "The snapshot's offset.", like("^[0-9]{16}$", minLength=1), "0" * 16),
        ("path", "id", "The subscription's id.", like(_NAME, minLength=1), "mailer"),
        ("path", "file", "A file of the console.", like("^[a-z.-]+$", minLength=1), "console.css"),
        ("query", "offset", _FROM, like(_FROM_PATTERN, default="-1"), TOKEN["example"]),
        ("query", "last", _LAST, COUNT | {"minimum": 1, "maximum": 10_000}, None),
        ("query", "live", _LIVE, one_of("long-poll", "sse"), "sse"),
        ("query", "cursor", _CURSOR, COUNT, 1234567),
        (
            "query",
            "where",
            _WHERE,
            like(r"^(/.*)?:(exists|(eq|in|prefix):.+)$", maxLength=1000),
            '/type:eq:"order"',
        ),
        ("query", "access_token", _BEARER, TEXT, None),
        *(("header", each.name, each.sentence, each.schema, each.example) for each in REQUEST_HEADERS),
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
    "401": ("The token is missing or invalid.", ("WWW-Authenticate",)),
    "403": ("The token may read the stream, but not do this; or a page of another origin writes.", ()),
    "404": ("The stream does not exist, or the token may not read it.", ()),
    "410": (
        "The stream is deleted and kept for its forks, or the data is no longer retained.",
        ("Stream-Next-Offset",),
    ),
    "415": ("The body has a Content-Encoding.", ("Accept-Encoding",)),
    "421": ("A server without keys is asked by a name that is not its own.", ()),
    "429": ("Too many requests for this stream, or the table.", ("Retry-After",)),
    "500": ("An error of the server: try again.", ()),
    "503": ("Storage does not answer.", ("Retry-After",)),
}
_EVERY_HEADER: Final = ("Cache-Control", "Server-Timing", "Vary")

#: Any type. Generators of clients skip `*/*`, so bytes are listed first.
AS_BYTES: Final[Part] = {
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    "*/*": {},
}
#: The stream's own type, often one of these. JSON is sent as a message or an array, and read as an array.
AS_STORED: Final[Part] = AS_BYTES | {
    "application/json": {"schema": {"type": "array", "items": {}}},
    "text/plain": {"schema": TEXT},
}
_SENT: Final[Part] = AS_STORED | {"application/json": {"schema": {"type": "object"}}}


def answers(described: Mapping[int, tuple[str, ...]], content: Part | None = None) -> dict[int | str, Part]:
    """The `responses` of a route, from the meaning and the header names of each status. Successes get
    `content`, if any."""
    return {
        status: {"description": meaning, "headers": _headers(*names)}
        | ({"content": content} if content and status in {200, 201, 202} else {})
        for status, (meaning, *names) in described.items()
    }


def camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def takes(*names: str, body: bool = False) -> Part:
    """The `openapi_extra` of a route: its parameters, and whether it takes a body of any kind."""
    extra: Part = {"parameters": [{"$ref": f"#/components/parameters/{name}"} for name in names]}
    return extra | ({"requestBody": {"required": False, "content": _SENT}} if body else {})


def _headers(*names: str) -> Part:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


TAGS: Final = {
    "streams": "The protocol itself: create, append, read, follow, close, delete (§5).",
    "buckets": "Streams in buckets, their listings, snapshots and bootstrap (extensions).",
    "catalog": "For people and monitors: listings, stats, start points, a token's scopes.",
    "subscriptions": "Deliveries to workers when a stream has new data (§6, §7).",
    "console": "Pages for people.",
    "server": "Facts about this server, and its health check.",
}


def complete(document: Part) -> Part:
    """Add to FastAPI's document: parameters in paths, errors of all operations, HEAD beside GET, and that one
    of the rights is enough."""
    for path, item in document["paths"].items():
        for operation in item.values():
            _complete_operation(operation)
        if "get" in item and "head" not in item:
            item["head"] = head = copy.deepcopy(item["get"])
            head["operationId"] += "Metadata"
            for response in head["responses"].values():
                response.pop("content", None)
        if names := re.findall(r"{(\w+)}", path):
            item["parameters"] = takes(*names)["parameters"]
    components = document["components"]
    components |= {"headers": HEADERS, "parameters": PARAMETERS}
    components["schemas"]["Error"] = ERROR
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI adds them; no response here has them.
        components["schemas"].pop(unused, None)
    return document


def _complete_operation(operation: Part) -> None:
    operation["parameters"] = [each for each in operation.get("parameters", ()) if each.get("in") != "path"]
    operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
    refusal = "SubscriptionRefusal" if "subscriptions" in operation["tags"] else "Error"
    schema = {"$ref": f"#/components/schemas/{refusal}"}
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
