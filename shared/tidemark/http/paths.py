"""Finds the operation that a request means, by its method and by its path as it was sent, and serves it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from re import Pattern
from typing import Final, NoReturn, cast
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.http.backend import Backend
from tidemark.http.error_handlers import answer_error, not_allowed, preflight
from tidemark.http.headers import STARTED
from tidemark.http.metrics import Rates
from tidemark.http.requests import STREAM, STREAM_ROOT, STREAM_ROOTS, SUBSCRIPTION_ROOTS, request_path
from tidemark.protocol import stream_key
from tidemark.protocol.authorization import RequiredScope, Right
from tidemark.protocol.errors import (
    FormatTooNew,
    Malformed,
    ProtocolError,
    RouteNotFound,
    SubscriptionNotFound,
)
from tidemark.subscriptions.configuration import check_subscription_id

Demand = Callable[[Request, frozenset[Right]], Iterator[RequiredScope]]
"""The scopes that a request requires, given the rights of which any is enough. Raises the ProtocolError of an
invalid name."""


def no_demand(_request: Request, _rights: frozenset[Right]) -> Iterator[RequiredScope]:
    return iter(())


def never(_: Scope) -> bool:
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One method of a path. A token needs any of `rights` on what `demand` says; an operation without rights
    needs no token, or its handler checks it."""

    method: str
    path: str
    app: ASGIApp
    rights: frozenset[Right] = frozenset()
    demand: Demand = no_demand
    #: Whether a request needs no token, because its handler checks a signature in its place.
    is_signed: Callable[[Scope], bool] = never


def refused(error: ProtocolError) -> Operation:
    """The operation of a request that means none, or has an invalid name in its path."""

    def refuse(*_: object) -> NoReturn:
        raise error

    return Operation("", "", refuse, MANAGE, refuse)


#: The same operations are at each of these. The names tell them apart in the OpenAPI document.
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
#: What may stand for a name in a path, if that is not any segment. `/{bucket}/streams` lists a bucket.
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
        """The names in the path, as `sent_path` writes it; None for another path. Raises Malformed,
        StreamNotFound or InvalidSubscription for a name that is none."""
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
        """The operation of a method that the path does not have. It takes the right to manage."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            hint = ""
            is_listing = self.path == f"/{{bucket}}/{stream_key.LISTING}"
            if is_listing and scope["method"] in {"PUT", "POST", "DELETE"}:
                raise Malformed(_RESERVED)
            if self.path == "/{bucket}":
                bucket = scope["path_params"]["bucket"]
                hint = f"; a stream's path is {STREAM_ROOT}{bucket} or /{bucket}/{{stream id}}"
            await not_allowed(scope, self.by_method, hint)(scope, receive, send)

        return replace(next(iter(self.by_method.values())), app=refuse, rights=MANAGE)


Find = Callable[[Scope], Operation]
#: The scope key of the operation that a request means.
_OPERATION: Final = "tidemark.operation"


class Operations:
    """The operations by path and method. `load_more` has those of all other paths: it is called for the first
    request to one of them."""

    def __init__(
        self, operations: Iterable[Operation], load_more: Callable[[], Iterable[Operation]] | None = None
    ) -> None:
        self._load_more = load_more
        #: By path: those without names in it, and the others.
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
            if each.method == "GET":  # `ResponseHeaders` leaves out the body.
                by_method.setdefault("HEAD", each)

    def find(self, scope: Scope) -> Operation:
        """The operation that a request means, which is kept in its scope. Where there is none, it is one that
        raises the error: its `demand` for an unknown path or an invalid name, its `app` for a method that the
        path does not have."""
        if (known := scope.get(_OPERATION)) is not None:
            return cast(Operation, known)
        try:
            endpoint = self.look_up(scope)
            found = endpoint.by_method.get(scope["method"]) or endpoint.refusing()
        except ProtocolError as error:
            found = refused(error.without_frames())
        scope[_OPERATION] = found
        return found

    def look_up(self, scope: Scope) -> Endpoint:
        """The endpoint at the path. The names of the path are kept in the scope, and the stream's key for the
        operations of a stream. Raises RouteNotFound, SubscriptionNotFound, and as `Endpoint.match`; Malformed
        also for a path that is not UTF-8."""
        path, encoded = request_path(scope)
        for root, endpoint in self._plain.items():
            if path.startswith(root) and not path.startswith(SUBSCRIPTION_ROOTS):
                scope[STREAM] = stream_key.parse_plain_path(path.removeprefix(root), encoded=encoded)
                return endpoint
        # These have no names: whatever was encoded in them is the same path.
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


_log: Final = logging.getLogger("tidemark")
_NOT_STORED: Final = ("/v1/health", "/v1/openapi.json", "/v1/docs", "/v1/console", "/v1/socket")


@dataclass(slots=True, eq=False)
class HttpApplication:
    """ASGI application: serves the operations, and answers what they raise. Handlers find it at
    `request.app`. `check_format` is called before the first request."""

    backend: Backend
    find: Find
    rates: Rates | None = None
    check_format: Callable[[], None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        scope["app"] = self
        try:
            if self.check_format is not None:
                await self._require_format(self.check_format, scope["path"])
            query = scope.get("query_string", b"")
            # A cache in front tells requests apart by the names as they were sent: the answer to `%6fffset=…`
            # would be kept for requests without an offset.
            if b"%" in query and any(b"%" in pair.partition(b"=")[0] for pair in query.split(b"&")):
                raise Malformed("Names of query parameters must not be percent-encoded")
            app = preflight() if scope["method"] == "OPTIONS" else self.find(scope).app
            await app(scope, receive, send)
        except Exception as error:
            if STARTED in scope:
                raise
            await answer_error(Request(scope), error)(scope, receive, send)
            # Its frames hold the body, and often the future that holds the error.
            error.__traceback__ = None

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """From the start of the server to its end, where the platform lets the application see them."""
        async with self.rates.sampling() if self.rates else nullcontext():
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.backend.close(scope["seconds_left"]() if "seconds_left" in scope else 0.0)
        await send({"type": "lifespan.shutdown.complete"})

    async def _require_format(self, check: Callable[[], None], path: str) -> None:
        """Nothing is served before `check` has said that this release may use the table. Not at a function's
        start, which must not wait for a silent table. Raises FormatTooNew, and what storage raises."""
        try:
            await self.backend.run(check)
        except FormatTooNew as error:
            _log.critical("%s", error.message)
            raise
        except ProtocolError:
            # A process that cannot ask yet serves what is not stored, and asks again next time.
            if not path.startswith(_NOT_STORED):
                raise
        if self.backend.stores.format_epoch >= 0:
            self.check_format = None


def not_found(path: str) -> ProtocolError:
    """The error of a path that no endpoint has. Raises Malformed for a bucket's id that is none."""
    if path.startswith(SUBSCRIPTION_ROOTS):
        return SubscriptionNotFound()
    first = unquote(path.removeprefix("/").partition("/")[0])
    # Also `*`, a target that is no path (RFC 9112 §3.2.4).
    if first.partition("/")[0] != stream_key.PLAIN_BUCKET:
        stream_key.parse_bucket_id(first)
    return RouteNotFound()


def sent_path(path: str, *, encoded: bool) -> str:
    """The path with every character decoded but slashes and percent signs inside of names. Raises Malformed
    for a path that is not UTF-8, or that a gateway has decoded so that it may be another one."""
    if encoded and "%" not in path:
        return path
    segments = (stream_key.parse_segment(segment, encoded=encoded) for segment in path.split("/"))
    return "/".join(segment.replace("%", "%25").replace("/", "%2F") for segment in segments)


#: Paths that reveal nothing about streams: not even the origin secret is needed.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})


def is_open(scope: Scope) -> bool:
    """Whether it needs neither token nor origin secret. A path that is not UTF-8 gets its error later."""
    try:
        return request_path(scope)[0] in OPEN_PATHS
    except Malformed:
        return False
