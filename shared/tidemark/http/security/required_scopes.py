"""The rights that a request needs, by its method, path and headers.

With authorization on, a path that is not named here is not served: each new route needs its line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.requests import Request

from tidemark.http.control_paths import (
    CATALOG,
    FORKS,
    LIST_BUCKETS,
    LIST_STREAMS,
    START_POINT,
    STATS,
    TIMES,
    is_page,
    needs_no_token,
    subscriptions_path,
)
from tidemark.http.metrics import METRICS_PATH
from tidemark.http.requests import (
    parse_fork,
    parse_place,
    parse_stream_parameter,
    plain_name,
    request_path,
    single,
)
from tidemark.http.traffic import TRAFFIC_PATH
from tidemark.protocol.authorization import RequiredScope, Right, Target
from tidemark.protocol.bucket import Place, Resource
from tidemark.protocol.errors import BucketNotFound, Malformed, ProtocolError, RouteNotFound, SourceNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, RESERVED_SEGMENT, parse_plain_path

#: They say nothing about any stream.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})
#: No token is needed, though the origin secret is.
_FOR_EVERYBODY: Final = OPEN_PATHS | {"/", "/favicon.ico"}
#: As the service says them, word for word.
_NO_BUCKET: Final = BucketNotFound().message
_NO_SOURCE: Final = SourceNotFound().message
_NO_SUBSCRIPTIONS: Final = (
    f"A list of subscriptions takes write or manage of {PLAIN_BUCKET}/{RESERVED_SEGMENT}/subscriptions/*, "
    "or a prefix of ids that the token may see"
)

_READ: Final = frozenset({Right.READ})
_WRITE: Final = frozenset({Right.WRITE})
_MANAGE: Final = frozenset({Right.MANAGE})
#: PUT changes no stream that exists: who may write one may also begin it, as agents do that
#: own a prefix, and who manages streams may set them up for others to write.
_CREATE: Final = frozenset({Right.WRITE, Right.MANAGE})

_STREAM: Final = {"GET": _READ, "HEAD": _READ, "POST": _WRITE, "PUT": _CREATE, "DELETE": _MANAGE}


def is_open(scope: Mapping[str, Any]) -> bool:
    """Whether a request needs neither a token nor the origin secret."""
    return _is_one_of(scope, OPEN_PATHS)


def is_for_everybody(scope: Mapping[str, Any]) -> bool:
    """Whether a request needs no token, or has one that is checked elsewhere."""
    return _is_one_of(scope, _FOR_EVERYBODY) or _is_page_or_carries_wake_token(scope)


def _is_page_or_carries_wake_token(scope: Mapping[str, Any]) -> bool:
    try:
        path, encoded = request_path(scope)
    except Malformed:
        return False
    below = subscriptions_path(path, encoded=encoded)
    return is_page(path) if below is None else needs_no_token(scope["method"], below)


def _is_one_of(scope: Mapping[str, Any], paths: frozenset[str]) -> bool:
    """A path that is not UTF-8 is none of them: the error for it comes later."""
    try:
        return request_path(scope)[0] in paths
    except Malformed:
        return False


def required_scopes(request: Request) -> Iterator[RequiredScope]:
    """All of them must be granted, in this order. Raises StreamNotFound and RouteNotFound for paths that hold
    nothing, Malformed for an invalid name."""
    path, encoded = request_path(request.scope)
    name = plain_name(path)
    below = subscriptions_path(path, encoded=encoded)
    if below is not None:
        yield _subscription(request, below)
        return
    if path in {METRICS_PATH, TRAFFIC_PATH}:
        yield RequiredScope(Target(None), _READ)
    elif name is not None:
        key = parse_plain_path(name, encoded=encoded)
        yield RequiredScope(Target(key.bucket, key.stream_id), _STREAM.get(request.method, _MANAGE))
    elif path in CATALOG:
        yield from _catalog(request, path)
    elif path in {"/", "/v1"} or path.startswith("/v1/"):
        raise RouteNotFound
    else:
        yield _at(request, parse_place(request))
    yield from _source(request)


def _catalog(request: Request, path: str) -> Iterator[RequiredScope]:
    """What a token itself may do is said to whoever has it."""
    if path == LIST_STREAMS:
        prefix = single(request, "prefix") or ""
        missing = f"A list of streams takes read:{PLAIN_BUCKET}, or a prefix that the token may read"
        yield RequiredScope(Target(PLAIN_BUCKET, prefix, is_prefix=True), _READ, missing)
    elif path == LIST_BUCKETS:
        yield RequiredScope(Target(None), _READ, "The list of buckets takes read:*")
    elif path in {STATS, START_POINT, TIMES, FORKS}:
        key = parse_stream_parameter(single(request, "stream"))
        yield RequiredScope(Target(key.bucket, key.stream_id), _READ)


def _subscription(request: Request, below: str) -> RequiredScope:
    """Subscriptions are named like streams, `v1/__ds/subscriptions/<id>`. Who may only read the streams of
    the bucket does not see them: they have the URLs of webhooks."""
    segments = below.split("/")
    if request.method in {"GET", "HEAD"} and segments[1:] == ["subscriptions"]:
        ids = f"{RESERVED_SEGMENT}/subscriptions/{single(request, 'prefix') or ''}"
        return RequiredScope(Target(PLAIN_BUCKET, ids, is_prefix=True), _CREATE, _NO_SUBSCRIPTIONS)
    rights = _MANAGE
    if request.method in {"GET", "HEAD"} or segments[3:] == ["claim"]:
        rights = _CREATE
    name = "/".join([RESERVED_SEGMENT, *segments[1:3]])
    return RequiredScope(Target(PLAIN_BUCKET, name), rights)


def _at(request: Request, place: Place) -> RequiredScope:
    """On the bucket surface. What a snapshot replaces can be read no more, so snapshots are
    managed, not written."""
    reads = request.method in {"GET", "HEAD"}
    if place.resource is Resource.BUCKET:
        return RequiredScope(Target(place.bucket), _READ if reads else _MANAGE, _NO_BUCKET)
    if place.resource is Resource.LISTING:
        prefix = request.query_params.get("prefix", "")
        return RequiredScope(
            Target(place.bucket, prefix, is_prefix=True), _READ if reads else _MANAGE, _NO_BUCKET
        )
    below = _READ if reads else _MANAGE
    rights = _STREAM.get(request.method, _MANAGE) if place.resource is Resource.STREAM else below
    return RequiredScope(Target(place.bucket, place.stream_id), rights)


def _source(request: Request) -> Iterator[RequiredScope]:
    """A fork reads its source. What is wrong with the headers is said by who creates it."""
    if request.method != "PUT":
        return
    try:
        fork = parse_fork(request)
    except ProtocolError:
        return
    if fork is not None:
        yield RequiredScope(Target(fork.source.bucket, fork.source.stream_id), _READ, absent=_NO_SOURCE)
