"""The dependencies of FastAPI's routes: required scopes, and the values that handlers take.

`Security(BUCKET, scopes=["write", "manage"])` means that one of these rights is enough. `Authorization`
checks the rights before the handler runs.
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
    """Requires a right to the target of a request. Without a target every token is enough. `absent` is the
    message of the 404 for a token that may not even read the target."""

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
    """The target of a subscription, named like a stream: `v1/__ds/subscriptions/<id>`. Read scopes are not
    enough to see a subscription, because it contains the webhook's URL."""
    return Target(PLAIN_BUCKET, _SUBSCRIPTIONS + request.path_params.get("id", ""))


def id_prefix(access: Access, name: str) -> str:
    """The prefix of the ids that the token may manage, from the widest grant that covers `name`; empty if the
    token may manage all ids, or only single ids."""
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
    _prefix_in_bucket, f"A list of streams needs read:{PLAIN_BUCKET}, or a prefix that the token may read"
)
ALL_BUCKETS: Final = Requires(lambda _: Target(None), "The list of buckets needs read:*")
SERVER: Final = Requires(lambda _: Target(None))
NAMED_STREAM: Final = Requires(_named)
ANY_TOKEN: Final = Requires(None)
SUBSCRIPTION: Final = Requires(_subscription)
ALL_SUBSCRIPTIONS: Final = Requires(
    _subscriptions,
    f"A list of subscriptions needs write or manage of {PLAIN_BUCKET}/{_SUBSCRIPTIONS}*, "
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
    """The grants of the request's token. On an open server every client has all rights."""
    access: Access = request.scope.get(ACCESS, EVERYTHING)
    return access


Served = Annotated[Backend, Depends(served)]
StreamInPath = Annotated[StreamKey, Depends(stream_in_path)]
NamedStream = Annotated[StreamKey, Depends(stream_in_query)]
Granted = Annotated[Access, Depends(granted)]


class PageQuery(BaseModel):
    """The query parameters of a listing."""

    prefix: Annotated[str, Field(description="Only names that begin with this.", examples=["run-"])] = ""
    after: Annotated[str, Field(description="The `next_cursor` of the page before.", examples=["run-7"])] = ""
    limit: Annotated[
        int,
        Field(
            description="The most names on the page.",
            examples=[50],
            json_schema_extra={"minimum": 1, "maximum": MAX_LIMIT},
        ),
    ] = MAX_LIMIT


AskedPage = Annotated[PageQuery, Query()]
