"""FastAPI's routes for everything but the operations of a stream, and the OpenAPI document of all routes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any, Final

import orjson
from fastapi import APIRouter, Security, params
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tidemark import __version__
from tidemark.http import buckets, bulk_read, catalog, openapi, pages, streams, subscriptions
from tidemark.http.dependencies import STREAM_IN_BUCKET, Requires
from tidemark.http.paths import STREAM_PATHS, Operation
from tidemark.http.requests import Respond, check_each_given_once, read_body
from tidemark.protocol.authorization import Right
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription, Malformed, ProtocolError

router: Final = APIRouter(tags=["server"])
#: The scope keys in which FastAPI expects a stack, for dependencies that end with the request.
_STACKS: Final = tuple(f"fastapi_{name}_astack" for name in ("middleware", "inner", "function"))


def routes() -> list[APIRoute]:
    """The routes, in the order in which a path is matched against them."""
    catalogs = (catalog.router, bulk_read.router)
    routers = (subscriptions.router, *catalogs, pages.console_router, pages.router, router, buckets.router)
    found = [each for area in routers for each in area.routes if isinstance(each, APIRoute)]
    for each in found:
        each.operation_id = openapi.camel(each.name)
    return found


def control_operations() -> list[Operation]:
    found = []
    for route in routes():
        [method], app = route.methods or {"GET"}, controlled(route)
        operation = Operation(method, route.path, app)
        for each in route.dependencies:
            if isinstance(each, params.Security) and isinstance(each.dependency, Requires):
                rights = frozenset(map(Right, each.scopes or ()))
                operation = Operation(method, route.path, app, rights, each.dependency.demand)
        found.append(operation)
    return found


def controlled(route: APIRoute) -> Respond:
    """The route with the rules of all routes: each query parameter occurs once, and a body is JSON of at most
    the size of an append. Caches keep no response unless the handler sets Cache-Control."""
    handle, takes_body = route.get_route_handler(), route.body_field is not None
    refuse = InvalidSubscription if "subscriptions" in route.tags else Malformed

    async def respond(request: Request) -> Response:
        check_each_given_once(request)
        if takes_body:
            body, receive = await read_json(request, refuse), request.receive
            messages: list[Message] = [{"type": "http.request", "body": body}]

            async def receive_again() -> Message:
                return messages.pop() if messages else await receive()

            request = Request(request.scope, receive_again)
        async with AsyncExitStack() as stack:
            request.scope.update(dict.fromkeys(_STACKS, stack))
            try:
                response = await handle(request)
            except RequestValidationError as error:
                plain = error.with_traceback(None)  # FastAPI's frame holds the error.
                raise refused_input(plain, refuse) from None
        response.headers.setdefault("Cache-Control", NO_STORE)
        return response

    return respond


async def read_json(request: Request, refuse: Callable[[str], ProtocolError]) -> bytes:
    """Read the body and check that it is JSON. FastAPI's parser, which is Python's, would also accept NaN and
    other encodings than UTF-8. Raises what `refuse` makes, PayloadTooLarge, UnsupportedEncoding."""
    body = await read_body(request)
    sent = request.headers.get("Content-Type", "")
    essence = sent.partition(";")[0].strip().lower()
    if essence != "application/json" and not essence.endswith("+json"):
        raise refuse(f"Send the body with Content-Type: application/json, not {sent[:80]!r}")
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise refuse(f"The body: Invalid JSON: {error}") from None
    return body


def refused_input(error: RequestValidationError, refuse: Callable[[str], ProtocolError]) -> ProtocolError:
    """Make an error that names the wrong parameter, or with `refuse` the member of the body."""
    first = error.errors()[0]
    place, *names = first["loc"]
    name = ".".join(map(str, names))
    if place == "body":
        return refuse(f"{name or 'The body'}: {first['msg']}")
    if first["type"] == "missing":
        return Malformed(f"{name} is missing")
    return Malformed(f"{name}: {first['msg']}, got {first['input']!r:.80}")


def _documented() -> None:
    """Stand in for a stream's handler, whose parameters FastAPI does not understand."""


def _stream_routes() -> list[APIRoute]:
    """The operations of a stream, only for the document: `streams.py` serves them."""
    return [
        APIRoute(
            path,
            _documented,
            methods=[each.method],
            description=each.handler.__doc__,
            tags=["buckets" if suffix == "InBucket" else "streams"],
            operation_id=openapi.camel(each.handler.__name__) + suffix,
            dependencies=[Security(STREAM_IN_BUCKET, scopes=each.rights.split())],
            status_code=min(status for status in each.answers if status < 400),
            response_class=Response,
            responses=openapi.answers(each.answers, openapi.AS_STORED if each.data else None),
            openapi_extra=openapi.takes(*each.takes, body=each.body),
        )
        for suffix, path in STREAM_PATHS.items()
        for each in streams.OPERATIONS
    ]


@cache
def document() -> dict[str, Any]:
    return openapi.complete(
        get_openapi(
            title="Tidemark",
            version=__version__,
            description="Durable Streams. § names sections of the protocol's specification.",
            servers=[{"url": "/", "description": "The server that this document comes from."}],
            tags=[{"name": name, "description": text} for name, text in openapi.TAGS.items()],
            routes=[*_stream_routes(), *routes()],
        )
    )


@router.get("/v1/openapi.json")
async def openapi_document() -> Response:
    """This document."""
    return Response(
        orjson.dumps(document()), media_type="application/json", headers={"Cache-Control": DOCUMENT}
    )
