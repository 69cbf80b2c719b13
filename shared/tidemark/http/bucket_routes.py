"""The bucket surface: `/{bucket}` and what lies under it (extensions §1 to §3)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidemark.http import routes
from tidemark.http.requests import STREAM_ROOT, parse_place
from tidemark.protocol.bucket import Resource
from tidemark.protocol.errors import Malformed


class BucketSurface:
    """ASGI application, because a route of Starlette would refuse methods before the place is known."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        response = await operation_at(request)(request)
        await response(scope, receive, send)


def operation_at(request: Request) -> routes.Operation:
    """Raises what is wrong with the path, and HTTPException where nothing has this method."""
    if request.method == "OPTIONS":
        raise HTTPException(405)  # A preflight: no place is looked at.
    place = parse_place(request)
    operations = operations_at(place.resource)
    if request.method in operations:
        return operations[request.method]
    if place.resource is Resource.LISTING and request.method in routes.OPERATIONS:
        raise Malformed(
            "'streams' is reserved for GET, which lists the bucket's streams; take another stream id"
        )
    hint = f"a stream's path is {STREAM_ROOT}{place.bucket} or /{place.bucket}/{{stream id}}"
    is_bucket = place.resource is Resource.BUCKET
    raise HTTPException(405, hint if is_bucket else None, {"Allow": ", ".join(operations)})


def operations_at(resource: Resource) -> Mapping[str, routes.Operation]:
    """What each method does there."""
    if resource is Resource.STREAM:
        return routes.OPERATIONS
    from tidemark.http.bucket_operations import OPERATIONS

    return OPERATIONS[resource]


class _BucketPath(Convertor[str]):
    """Everything but `/v1`, which is the plain surface's and can never be a bucket."""

    regex = r"(?s:(?!v1(?:/|\Z)).+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("bucket_path", _BucketPath())


def install(app: Starlette) -> None:
    """One route: places are told apart by the path as it was sent, and the framework matches
    the path as it decoded it."""
    app.router.routes.append(Route("/{path:bucket_path}", BucketSurface()))
