"""The bucket surface: `/{bucket}` and what lies under it (extensions §1 to §3)."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidemark.http import routes
from tidemark.http.headers import METHODS
from tidemark.http.requests import parse_place
from tidemark.protocol.bucket import Resource
from tidemark.protocol.errors import Malformed


async def operate(request: Request) -> Response:
    place = parse_place(request)
    operation = operations_at(place.resource).get(request.method)
    if operation is None and place.resource is Resource.LISTING and request.method in routes.OPERATIONS:
        raise Malformed(
            "'streams' is reserved for GET, which lists the bucket's streams; take another stream id"
        )
    if operation is None:
        raise HTTPException(405)
    return await operation(request)


def operations_at(resource: Resource) -> Mapping[str, routes.Operation]:
    """What each method does there."""
    if resource is Resource.STREAM:
        return routes.OPERATIONS
    from tidemark.http.bucket_operations import OPERATIONS

    return OPERATIONS[resource]


def allowed_methods(request: Request) -> tuple[str, ...]:
    """Raises what is wrong with the path: where no resource is, no method is right."""
    operations = operations_at(parse_place(request).resource)
    return tuple(name for name in METHODS if name in operations or name == "OPTIONS")


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
    app.add_route("/{path:bucket_path}", operate, methods=list(routes.OPERATIONS))
