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
from tidemark.http.operations import ENDPOINTS, Endpoint, Operation

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
_REFUSAL: Final = "http.subscriptions.models:SubscriptionRefusal"
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
