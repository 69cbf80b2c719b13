"""Routing: finds the operation of a request by its method and its undecoded path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from re import Pattern
from typing import Final, NoReturn, cast
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tidemark.http.error_handlers import not_allowed
from tidemark.http.requests import STREAM, STREAM_ROOTS, SUBSCRIPTION_ROOTS, Respond, request_path
from tidemark.protocol import stream_key
from tidemark.protocol.authorization import RequiredScope, Right
from tidemark.protocol.errors import Malformed, ProtocolError, RouteNotFound, SubscriptionNotFound
from tidemark.subscriptions.configuration import check_subscription_id

Demand = Callable[[Request, frozenset[Right]], Iterator[RequiredScope]]
"""Yields the scopes that a request requires; one of the rights is enough. Raises the ProtocolError of an
invalid name."""


def no_demand(_request: Request, _rights: frozenset[Right]) -> Iterator[RequiredScope]:
    return iter(())


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One method of a path. A token needs one of `rights` to the targets of `demand`. An operation without
    rights needs no token, or its handler checks the token."""

    method: str
    path: str
    respond: Respond
    rights: frozenset[Right] = frozenset()
    demand: Demand = no_demand
    #: Whether a request needs no token, because its handler checks a signature in its place.
    is_signed: Callable[[Scope], bool] | None = None


def raising(error: ProtocolError) -> Operation:
    """The operation of a request without an operation, or with an invalid name in its path."""

    def refuse(*_: object) -> NoReturn:
        raise error

    return Operation("", "", refuse, MANAGE, refuse)


#: The paths of a stream, all with the same operations. The keys are suffixes of operation ids in the OpenAPI
#: document.
STREAM_PATHS: Final = {
    "": STREAM_ROOTS[0] + "{path}",
    "ByAlias": STREAM_ROOTS[1] + "{path}",
    "InBucket": "/{bucket}/{stream}",
}
MANAGE: Final = frozenset({Right.MANAGE})
_SEGMENT: Final = "[^/]*"
_RESERVED: Final = (
    f"'{stream_key.LISTING}' is reserved for GET, which lists the bucket's streams; take another stream id"
)
#: Patterns of names in a path that are not just any segment. `/{bucket}/streams` lists a bucket, so `streams`
#: is no stream's name.
_NAMES: Final = {
    "bucket": f"(?!{stream_key.PLAIN_BUCKET}(?:/|%2F|$)){_SEGMENT}",
    "stream": f"(?!{stream_key.LISTING}(?:/|$)){_SEGMENT}",
    "id": "[^/]+",
    "path": "(?s:.+)",
}


def compile_path(path: str) -> Pattern[str]:
    return re.compile(
        re.sub(r"{(\w+)}", lambda name: f"(?P<{name[1]}>{_NAMES.get(name[1], _SEGMENT)})", path)
    )


@dataclass(slots=True, eq=False)
class Endpoint:
    """A path, and the operation of each method."""

    path: str
    pattern: Pattern[str]
    by_method: dict[str, Operation] = field(default_factory=dict)

    def match(self, path: str) -> dict[str, str] | None:
        """Parse the names in a path of `sent_path`'s form; None for another path. Raises Malformed,
        StreamNotFound or InvalidSubscription for an invalid name."""
        found = self.pattern.fullmatch(path)
        if found is None:
            return None
        names = {
            name: text.replace("%2F", "/").replace("%25", "%") for name, text in found.groupdict().items()
        }
        if "stream" in names:
            stream_key.stream_of_bucket(names["bucket"], names["stream"])
        elif "bucket" in names:
            stream_key.parse_bucket_id(names["bucket"])
        elif "id" in names:
            check_subscription_id(names["id"])
        return names

    def refusing(self) -> Operation:
        """The operation of a method that the path does not have. A token needs the right to manage."""

        async def refuse(request: Request) -> Response:
            hint, scope = "", request.scope
            is_listing = self.path == f"/{{bucket}}/{stream_key.LISTING}"
            if is_listing and scope["method"] in {"PUT", "POST", "DELETE"}:
                raise Malformed(_RESERVED)
            if self.path == "/{bucket}":
                bucket = scope["path_params"]["bucket"]
                hint = f"; a stream's path is {STREAM_ROOTS[0]}{bucket} or /{bucket}/{{stream id}}"
            return not_allowed(scope, self.by_method, hint)

        return replace(next(iter(self.by_method.values())), respond=refuse, rights=MANAGE)


Find = Callable[[Scope], Operation]
#: The scope key of a request's operation.
_OPERATION: Final = "tidemark.operation"


class Operations:
    """The operations by path and method. `load_more` returns the operations of all other paths, and is called
    with the first request to one of these."""

    def __init__(
        self, operations: Iterable[Operation], load_more: Callable[[], Iterable[Operation]] | None = None
    ) -> None:
        self._load_more = load_more
        #: Endpoints by path: without names in the path, and with names.
        self._fixed: dict[str, Endpoint] = {}
        self._named: dict[str, Endpoint] = {}
        self._add(operations)
        self._plain = {root: self._named.pop(root + "{path}") for root in STREAM_ROOTS}

    def _add(self, operations: Iterable[Operation]) -> None:
        for each in operations:
            endpoints = self._named if "{" in each.path else self._fixed
            if each.path not in endpoints:
                endpoints[each.path] = Endpoint(each.path, compile_path(each.path))
            by_method = endpoints[each.path].by_method
            by_method[each.method] = each
            if each.method == "GET":  # `add_headers` leaves out the body.
                by_method.setdefault("HEAD", each)

    def find(self, scope: Scope) -> Operation:
        """Find the operation of a request, and keep it in the scope. For an unknown path or an invalid name,
        return an operation whose `demand` raises the error; for an unknown method, one that raises or
        returns the refusal."""
        if (known := scope.get(_OPERATION)) is not None:
            return cast(Operation, known)
        try:
            endpoint = self.look_up(scope)
            found = endpoint.by_method.get(scope["method"]) or endpoint.refusing()
        except ProtocolError as error:
            found = raising(error.without_frames())
        scope[_OPERATION] = found
        return found

    def look_up(self, scope: Scope) -> Endpoint:
        """Find the endpoint of a path. Keep the path's names in the scope, and for a stream's operations the
        stream's key. Raises RouteNotFound, SubscriptionNotFound, the errors of `Endpoint.match`; Malformed
        also for a path that is not UTF-8."""
        path, encoded = request_path(scope)
        for root, endpoint in self._plain.items():
            if path.startswith(root) and not path.startswith(SUBSCRIPTION_ROOTS):
                scope[STREAM] = stream_key.parse_plain_path(path.removeprefix(root), encoded=encoded)
                return endpoint
        # Paths without names may be compared decoded, because no name in them can contain a slash.
        if (fixed := self._fixed.get(scope["path"])) is not None:
            return fixed
        path = sent_path(path, encoded=encoded)
        if path.startswith(SUBSCRIPTION_ROOTS[1]):  # The alias.
            path = SUBSCRIPTION_ROOTS[0] + path.removeprefix(SUBSCRIPTION_ROOTS[1])
        for endpoint in self._named.values():
            if (names := endpoint.match(path)) is not None:
                scope["path_params"] = names
                if endpoint.path == STREAM_PATHS["InBucket"]:
                    scope[STREAM] = stream_key.StreamKey(names["bucket"], names["stream"])
                return endpoint
        if self._load_more is not None:
            self._add(self._load_more())
            self._load_more = None
            return self.look_up(scope)
        raise not_found(path)


def not_found(path: str) -> ProtocolError:
    """The error for a path without an endpoint. Raises Malformed for an invalid bucket id."""
    if path.startswith(SUBSCRIPTION_ROOTS):
        return SubscriptionNotFound()
    first = unquote(path.removeprefix("/").partition("/")[0])
    # `*`, a request target that is no path (RFC 9112 §3.2.4), comes here too.
    if first.partition("/")[0] != stream_key.PLAIN_BUCKET:
        stream_key.parse_bucket_id(first)
    return RouteNotFound()


def sent_path(path: str, *, encoded: bool) -> str:
    """Decode a path, except slashes and percent signs inside names. Raises Malformed for a path that is not
    UTF-8, or that is ambiguous because a gateway has decoded it."""
    if encoded and "%" not in path:
        return path
    segments = (stream_key.parse_segment(segment, encoded=encoded) for segment in path.split("/"))
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)


#: Paths that reveal nothing about streams, and need neither token nor origin secret.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})


def is_open(scope: Scope) -> bool:
    """Whether the path is in `OPEN_PATHS`. A path that is not UTF-8 gets its error later."""
    try:
        return request_path(scope)[0] in OPEN_PATHS
    except Malformed:
        return False
