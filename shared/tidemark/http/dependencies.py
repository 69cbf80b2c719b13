"""The dependencies of FastAPI's routes: what a token must grant, and the values that handlers take.

`Security(BUCKET, scopes=["write", "manage"])`: any of the rights is enough. `Authorization` asks for it
before anything is looked up, and a path that is not in the application is not served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Final

from fastapi import Depends, Query
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field
from starlette.requests import Request

from tidemark.http.backend import Backend, backend_of
from tidemark.http.requests import ACCESS, parse_stream_parameter, single
from tidemark.protocol.authorization import EVERYTHING, Access, RequiredScope, Right, Target
from tidemark.protocol.errors import BucketNotFound
from tidemark.protocol.stream_key import MAX_LIMIT, PLAIN_BUCKET, RESERVED_SEGMENT, StreamKey

_SUBSCRIPTIONS: Final = f"{RESERVED_SEGMENT}/subscriptions/"


class Requires(HTTPBearer):
    """A right to what `target` says of a request; every token may have what has no target. `absent` is the
    message of the 404 for a token that may not even read it."""

    def __init__(self, target: Callable[[Request], Target] | None, absent: str | None = None) -> None:
        description = "Rights are in its `scope` claim: `read:bucket/prefix*`. Absent on open servers."
        super().__init__(scheme_name="bearer", bearerFormat="JWT", description=description, auto_error=False)
        self._target = target
        self._absent = absent

    def demand(self, request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
        """Raises the ProtocolError of an invalid name."""
        if self._target is not None:
            yield RequiredScope(self._target(request), rights, self._absent)


def _in_bucket(request: Request) -> Target:
    return Target(request.path_params["bucket"], request.path_params.get("stream"))


def _prefix_in_bucket(request: Request) -> Target:
    prefix = request.query_params.get("prefix", "")
    return Target(request.path_params.get("bucket", PLAIN_BUCKET), prefix, is_prefix=True)


def _named(request: Request) -> Target:
    key = parse_stream_parameter(single(request, "stream"))
    return Target(key.bucket, key.stream_id)


def _subscription(request: Request) -> Target:
    """Subscriptions are named like streams, `v1/__ds/subscriptions/<id>`. A client with only read scopes does
    not see them: they have the URLs of webhooks."""
    return Target(PLAIN_BUCKET, _SUBSCRIPTIONS + request.path_params.get("id", ""))


def id_prefix(access: Access, name: str) -> str:
    """Begins all ids of subscriptions that the token may manage beside this one; empty for all ids, and for
    grants of single ids."""
    target = Target(PLAIN_BUCKET, _SUBSCRIPTIONS + name)
    granted = (each for each in access.grants if each.right is Right.MANAGE and not each.exact)
    prefixes = (each.prefix for each in granted if each.covers(target))
    return min(prefixes, key=len, default="")[len(_SUBSCRIPTIONS) :]


def _subscriptions(request: Request) -> Target:
    return Target(PLAIN_BUCKET, _SUBSCRIPTIONS + request.query_params.get("prefix", ""), is_prefix=True)


STREAM_IN_BUCKET: Final = Requires(_in_bucket)
BUCKET: Final = Requires(_in_bucket, BucketNotFound().message)
STREAMS_OF_BUCKET: Final = Requires(_prefix_in_bucket, BucketNotFound().message)
PLAIN_STREAMS: Final = Requires(
    _prefix_in_bucket, f"A list of streams takes read:{PLAIN_BUCKET}, or a prefix that the token may read"
)
ALL_BUCKETS: Final = Requires(lambda _: Target(None), "The list of buckets takes read:*")
SERVER: Final = Requires(lambda _: Target(None))
NAMED_STREAM: Final = Requires(_named)
ANY_TOKEN: Final = Requires(None)
SUBSCRIPTION: Final = Requires(_subscription)
ALL_SUBSCRIPTIONS: Final = Requires(
    _subscriptions,
    f"A list of subscriptions takes write or manage of {PLAIN_BUCKET}/{_SUBSCRIPTIONS}*, "
    "or a prefix of ids that the token may see",
)


async def served(request: Request) -> Backend:
    return backend_of(request)


async def stream_in_path(bucket: str, stream: str) -> StreamKey:
    return StreamKey(bucket, stream)


async def stream_in_query(
    stream: Annotated[
        str, Query(description="The stream's path, as in its URL.", examples=["/v1/stream/chat/42"])
    ],
) -> StreamKey:
    return parse_stream_parameter(stream)


async def granted(request: Request) -> Access:
    """On an open server, every client may do everything."""
    access: Access = request.scope.get(ACCESS, EVERYTHING)
    return access


Served = Annotated[Backend, Depends(served)]
StreamInPath = Annotated[StreamKey, Depends(stream_in_path)]
NamedStream = Annotated[StreamKey, Depends(stream_in_query)]
Granted = Annotated[Access, Depends(granted)]


class PageQuery(BaseModel):
    """What page of a listing."""

    prefix: Annotated[str, Field(description="Only names that begin like this.", examples=["run-"])] = ""
    after: Annotated[str, Field(description="The `next_cursor` of the page before.", examples=["run-7"])] = ""
    limit: Annotated[
        int,
        Field(
            description="So many at most.",
            examples=[50],
            json_schema_extra={"minimum": 1, "maximum": MAX_LIMIT},
        ),
    ] = MAX_LIMIT


AskedPage = Annotated[PageQuery, Query()]
