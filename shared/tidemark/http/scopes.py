"""What a token must grant for each kind of operation: `Security(STREAM, scopes=["write", "manage"])`.

Any of the rights is enough. With authorization on, a path that is not in the application is not served.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection, Request

from tidemark.http import streams
from tidemark.http.paths import Demand
from tidemark.http.requests import bucket_of, parse_stream_parameter, single, stream_of
from tidemark.protocol.authorization import RequiredScope, Right, Target
from tidemark.protocol.errors import BucketNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, RESERVED_SEGMENT

Rights = frozenset[Right]
_NO_BUCKET: Final = BucketNotFound().message
_SUBSCRIPTIONS: Final = f"{RESERVED_SEGMENT}/subscriptions/"


class Requires(HTTPBearer):
    """A dependency of a route, for its `Security`."""

    def __init__(self, demand: Demand) -> None:
        description = "Rights are in its `scope` claim: `read:bucket/prefix*`. Absent on open servers."
        super().__init__(scheme_name="bearer", bearerFormat="JWT", description=description, auto_error=False)
        self.demand = demand

    async def __call__(self, _: HTTPConnection) -> None:
        """`Authorization` has checked the token before the request came here."""


def _below_stream(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    key = stream_of(request)
    yield RequiredScope(Target(key.bucket, key.stream_id), rights)


def _bucket(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(bucket_of(request)), rights, _NO_BUCKET)


def _streams_of_bucket(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    prefix = request.query_params.get("prefix", "")
    yield RequiredScope(Target(bucket_of(request), prefix, is_prefix=True), rights, _NO_BUCKET)


def _plain_streams(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    missing = f"A list of streams takes read:{PLAIN_BUCKET}, or a prefix that the token may read"
    prefix = single(request, "prefix") or ""
    yield RequiredScope(Target(PLAIN_BUCKET, prefix, is_prefix=True), rights, missing)


def _all_buckets(_: Request, rights: Rights) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(None), rights, "The list of buckets takes read:*")


def _server(_: Request, rights: Rights) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(None), rights)


def _named_stream(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    key = parse_stream_parameter(single(request, "stream"))
    yield RequiredScope(Target(key.bucket, key.stream_id), rights)


def _nothing(_request: Request, _rights: Rights) -> Iterator[RequiredScope]:
    """Every token may ask for its own scopes."""
    return iter(())


def _subscription(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    """Subscriptions are named like streams, `v1/__ds/subscriptions/<id>`. A client with only read scopes does
    not see them: they have the URLs of webhooks."""
    target = _SUBSCRIPTIONS + request.path_params.get("id", "")
    yield RequiredScope(Target(PLAIN_BUCKET, target), rights)


def _all_subscriptions(request: Request, rights: Rights) -> Iterator[RequiredScope]:
    missing = (
        f"A list of subscriptions takes write or manage of {PLAIN_BUCKET}/{_SUBSCRIPTIONS}*, "
        "or a prefix of ids that the token may see"
    )
    ids = _SUBSCRIPTIONS + (single(request, "prefix") or "")
    yield RequiredScope(Target(PLAIN_BUCKET, ids, is_prefix=True), rights, missing)


STREAM: Final = Requires(streams.required_scopes)
BELOW_STREAM: Final = Requires(_below_stream)
BUCKET: Final = Requires(_bucket)
STREAMS_OF_BUCKET: Final = Requires(_streams_of_bucket)
PLAIN_STREAMS: Final = Requires(_plain_streams)
ALL_BUCKETS: Final = Requires(_all_buckets)
SERVER: Final = Requires(_server)
NAMED_STREAM: Final = Requires(_named_stream)
NOTHING: Final = Requires(_nothing)
SUBSCRIPTION: Final = Requires(_subscription)
ALL_SUBSCRIPTIONS: Final = Requires(_all_subscriptions)
