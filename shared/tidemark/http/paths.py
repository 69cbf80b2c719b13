"""Finds the operation that a request means, by its method and by its path as it was sent.

A path is written as Starlette writes it, with these convertors for names:

- `{bucket:bucket}`, `{stream:stream}`: a segment that is not `v1`, or not `streams`, which lists a bucket.
- `{id:id}`: a segment that is a subscription's id; `{at:segment}`: any segment, also an empty one.
- `{path:segments}`: the rest of the path, with its slashes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from re import Pattern
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidemark.http.requests import STREAM_ROOT, STREAM_ROOTS, SUBSCRIPTION_ROOTS, request_path
from tidemark.protocol.authorization import RequiredScope, Right
from tidemark.protocol.errors import Malformed, RouteNotFound, SubscriptionNotFound
from tidemark.protocol.stream_key import (
    LISTING,
    PLAIN_BUCKET,
    parse_bucket_id,
    parse_segment,
    stream_of_bucket,
)
from tidemark.subscriptions.configuration import check_subscription_id

Handler = Callable[[Request], Awaitable[Response]]
Demand = Callable[[Request, frozenset[Right]], Iterator[RequiredScope]]
"""The scopes that a request requires, given the rights of which any is enough. Raises the ProtocolError of an
invalid name."""


class Operation(Route):
    """A route for one method. A token needs any of `rights` on what `demand` says; an operation without
    rights needs no token, or its handler checks it."""

    rights: frozenset[Right]
    demand: Demand | None


class CalledDirectly(Operation):
    """It calls its handler with the request, and sends the response."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(Request(scope, receive))
        await response(scope, receive, send)


class _Segment(Convertor[str]):
    """An encoded slash is part of a name: `sent_path` leaves it encoded, and so the percent sign."""

    regex = "[^/]*"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/").replace("%25", "%") if "%" in value else value


class _Bucket(_Segment):
    regex = f"(?!{PLAIN_BUCKET}(?:/|%2F|$))[^/]*"


class _Stream(_Segment):
    regex = f"(?!{LISTING}(?:/|$))[^/]*"


class _Id(_Segment):
    """A subscription's. Raises InvalidSubscription."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return check_subscription_id(super().convert(value))


class _Segments(_Segment):
    regex = "(?s:.+)"


for _name, _convertor in {
    "segment": _Segment(),
    "bucket": _Bucket(),
    "stream": _Stream(),
    "id": _Id(),
    "segments": _Segments(),
}.items():
    register_url_convertor(_name, _convertor)


def sent_path(path: str, *, encoded: bool) -> str:
    """The path with every character decoded but slashes and percent signs inside of names. Raises Malformed
    for a path that is not UTF-8, or that a gateway has decoded so that it may be another one."""
    if encoded and "%" not in path:
        return path
    segments = (parse_segment(segment, encoded=encoded) for segment in path.split("/"))
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)


@dataclass(slots=True, eq=False)
class Endpoint:
    """A path, and the operation of each method."""

    path: str
    regex: Pattern[str]
    convertors: Mapping[str, Convertor[Any]]
    by_method: dict[str, Operation] = field(default_factory=dict)

    def match(self, path: str) -> dict[str, str] | None:
        """The names in the path; None for another path."""
        found = self.regex.fullmatch(path)
        if found is None:
            return None
        return {name: self.convertors[name].convert(value) for name, value in found.groupdict().items()}

    def add(self, operation: Operation) -> None:
        """HEAD without an operation of its own is GET: `ResponseHeaders` leaves out the body."""
        self.by_method |= dict.fromkeys(operation.methods or (), operation)
        if "GET" in self.by_method:
            self.by_method.setdefault("HEAD", self.by_method["GET"])


Find = Callable[[Scope], Endpoint]
_FOUND: Final = "tidemark.endpoint"
_ALIAS_OF_SUBSCRIPTIONS: Final = SUBSCRIPTION_ROOTS[1]


class Rest(Protocol):
    """Another application, which is loaded when it is first needed."""

    @property
    def operations(self) -> Operations: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Operations:
    """The operations of an application, and the application that serves them. Used for each request, and
    before it by authorization. `rest` loads the application of the paths that are not among these."""

    def __init__(self, operations: Iterable[Operation], rest: Callable[[], Rest] | None = None) -> None:
        self._rest = rest
        endpoints: dict[str, Endpoint] = {}
        for each in operations:
            endpoints.setdefault(
                each.path_format, Endpoint(each.path_format, each.path_regex, each.param_convertors)
            ).add(each)
        self._own = frozenset(endpoints.values())
        self._plain = {root: endpoints.pop(root + "{path}") for root in STREAM_ROOTS}
        self._fixed = {path: each for path, each in endpoints.items() if not each.convertors}
        self._named = [each for each in endpoints.values() if each.convertors]

    def find(self, scope: Scope) -> Endpoint:
        """The endpoint at the path. It stores the names of the path in the scope. Raises RouteNotFound,
        SubscriptionNotFound, InvalidSubscription for an id that is none, and Malformed for a bucket's id that
        is none, or a path that is not UTF-8."""
        found: tuple[str, Endpoint] | None = scope.get(_FOUND)
        if found is None or found[0] != scope["path"]:
            endpoint = self._look_up(scope)
            if endpoint is None and self._rest is not None:
                return self._rest().operations.find(scope)
            if endpoint is None:
                raise_not_found(scope)
            found = scope[_FOUND] = scope["path"], endpoint
        return found[1]

    def _look_up(self, scope: Scope) -> Endpoint | None:
        path, encoded = request_path(scope)
        for root, endpoint in self._plain.items():
            if path.startswith(root) and not path.startswith(SUBSCRIPTION_ROOTS):
                scope["path_params"] = {"path": path.removeprefix(root)}  # `parse_stream` decodes the name.
                return endpoint
        # These have no names: whatever was encoded in them is the same path.
        if (fixed := self._fixed.get(scope["path"])) is not None:
            scope["path_params"] = {}
            return fixed
        path = sent_path(path, encoded=encoded)
        if path.startswith(_ALIAS_OF_SUBSCRIPTIONS):
            path = SUBSCRIPTION_ROOTS[0] + path.removeprefix(_ALIAS_OF_SUBSCRIPTIONS)
        for endpoint in self._named:
            if (names := endpoint.match(path)) is not None:
                scope["path_params"] = names
                return endpoint
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as `find`, and HTTPException where the path has no such method."""
        method, query = scope["method"], scope.get("query_string", b"")
        # A cache in front tells requests apart by the names as they were sent: the answer to `%6fffset=…`
        # would be kept for requests without an offset.
        if b"%" in query and any(b"%" in pair.partition(b"=")[0] for pair in query.split(b"&")):
            raise Malformed("Names of query parameters must not be percent-encoded")
        if method == "OPTIONS":
            raise HTTPException(405)  # A preflight: the path does not matter.
        endpoint = self.find(scope)
        found = endpoint.by_method.get(method)
        if found is None:
            raise_not_allowed(endpoint, scope)
        if endpoint in self._own or self._rest is None:
            await found.handle(scope, receive, send)
        else:
            await self._rest()(scope, receive, send)


def raise_not_found(scope: Scope) -> NoReturn:
    path, encoded = request_path(scope)
    path = sent_path(path, encoded=encoded)
    if path.startswith(SUBSCRIPTION_ROOTS):
        raise SubscriptionNotFound
    first = unquote(path.removeprefix("/").partition("/")[0])
    if first.partition("/")[0] != PLAIN_BUCKET:  # Also `*`, a target that is no path (RFC 9112 §3.2.4).
        parse_bucket_id(first)
    raise RouteNotFound


def raise_not_allowed(endpoint: Endpoint, scope: Scope) -> NoReturn:
    """Says what the path allows, and the way out for a request that was meant for a stream."""
    if endpoint.path == f"/{{bucket}}/{LISTING}" and scope["method"] in {"PUT", "POST", "DELETE"}:
        raise Malformed(
            f"'{LISTING}' is reserved for GET, which lists the bucket's streams; take another stream id"
        )
    hint, names = None, scope["path_params"]
    if "stream" in names:
        stream_of_bucket(names["bucket"], names["stream"])
    elif "bucket" in names:
        bucket = parse_bucket_id(names["bucket"])
        hint = f"a stream's path is {STREAM_ROOT}{bucket} or /{bucket}/{{stream id}}"
    raise HTTPException(405, hint, {"Allow": ", ".join(endpoint.by_method)})


#: Paths that reveal nothing about streams: not even the origin secret is needed.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})


def is_open(scope: Scope) -> bool:
    """Whether it needs neither token nor origin secret. A path that is not UTF-8 gets its error later."""
    try:
        return request_path(scope)[0] in OPEN_PATHS
    except Malformed:
        return False
