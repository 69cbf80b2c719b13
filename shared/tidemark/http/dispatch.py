"""Finds a request's operation, and the scopes that it requires."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tidemark.http.operations import CONSOLE_FILE, FIXED, IN_BUCKET, PLAIN, SUBSCRIPTIONS, Endpoint, Operation
from tidemark.http.requests import STREAM_ROOT, plain_name, request_path, subscriptions_path
from tidemark.protocol.authorization import RequiredScope, Right
from tidemark.protocol.bucket import Resource, parse_bucket_path
from tidemark.protocol.errors import Malformed, ProtocolError, RouteNotFound, SubscriptionNotFound
from tidemark.protocol.stream_key import RESERVED_SEGMENT
from tidemark.protocol.subscription import check_subscription_id

#: A stream's path has slashes, and comes last.
_SUBSCRIPTION_PATTERNS: Final = tuple(
    (
        endpoint,
        re.compile(
            endpoint.path.removeprefix(STREAM_ROOT + RESERVED_SEGMENT)
            .replace("{id}", "(?P<id>[^/]+)")
            .replace("{path}", "(?P<path>.+)"),
            re.DOTALL,
        ),
    )
    for endpoint in SUBSCRIPTIONS
)


_FOUND: Final = "tidemark.endpoint"


def find_endpoint(scope: Scope) -> Endpoint:
    """Find the endpoint by the path as it was sent, because an encoded slash is part of a name. The path's
    names are stored in the scope, and so is the endpoint: authorization asks before the handler is found.
    Raises RouteNotFound, SubscriptionNotFound, InvalidSubscription for an id with a slash, and Malformed for
    a path that is not UTF-8."""
    found: tuple[str, Endpoint] | None = scope.get(_FOUND)
    if found is None or found[0] != scope["path"]:
        found = scope[_FOUND] = scope["path"], _look_up(scope)
    return found[1]


def _look_up(scope: Scope) -> Endpoint:
    path, encoded = request_path(scope)
    scope["path_params"] = {}
    below = subscriptions_path(path, encoded=encoded)
    if below is not None:
        if encoded:
            # Decoded, the slash would name another place.
            id_sent = unquote(path.partition("/subscriptions/")[2].partition("/")[0])
            if "/" in id_sent:
                check_subscription_id(id_sent)
        return _find_subscription(scope, below)
    if plain_name(path) is not None:
        return PLAIN[0]
    # It is decoded: there is no name in these.
    fixed: str = scope["path"]
    if fixed in FIXED:
        return FIXED[fixed]
    if fixed.startswith("/v1/console/"):
        scope["path_params"]["file"] = fixed.removeprefix("/v1/console/")
        return CONSOLE_FILE
    if fixed == "/v1" or fixed.startswith("/v1/"):
        raise RouteNotFound
    place = parse_bucket_path(path.removeprefix("/"), encoded=encoded)
    scope["path_params"] |= {"bucket": place.bucket, "stream": place.stream_id}
    return IN_BUCKET[place.resource]


def _find_subscription(scope: Scope, below: str) -> Endpoint:
    """`below` follows `/v1/stream/__ds`, decoded."""
    for endpoint, pattern in _SUBSCRIPTION_PATTERNS:
        if found := pattern.fullmatch(below):
            scope["path_params"] = found.groupdict()
            return endpoint
    raise SubscriptionNotFound


def find_operation(request: Request) -> Operation:
    """Raises as `find_endpoint`, and HTTPException where the path has no such method."""
    if request.method == "OPTIONS":
        raise HTTPException(405)  # A preflight: the path does not matter.
    endpoint = find_endpoint(request.scope)
    operation = endpoint.by_method.get(request.method)
    if operation is not None:
        return operation
    if endpoint is IN_BUCKET[Resource.LISTING] and request.method in PLAIN[0].by_method:
        raise Malformed(
            "'streams' is reserved for GET, which lists the bucket's streams; take another stream id"
        )
    hint = None
    if endpoint is IN_BUCKET[Resource.BUCKET]:
        bucket = request.path_params["bucket"]
        hint = f"a stream's path is {STREAM_ROOT}{bucket} or /{bucket}/{{stream id}}"
    raise HTTPException(405, hint, {"Allow": ", ".join(endpoint.by_method)})


def check_query(query: bytes) -> None:
    """A cache in front tells requests apart by the names as they were sent: the answer to `%6fffset=…` would
    be kept for requests without an offset. Raises Malformed."""
    if b"%" in query and any(b"%" in pair.partition(b"=")[0] for pair in query.split(b"&")):
        raise Malformed("Names of query parameters must not be percent-encoded")


class AnyOperation:
    """ASGI application: the operation that the request means."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        check_query(scope["query_string"])
        response = await find_operation(request).load()(request)
        await response(scope, receive, send)


# --- what it takes ----------------------------------------------------------------------

#: Paths that reveal nothing about streams: not even the origin secret is needed.
OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/openapi.json"})


def is_open(scope: Scope) -> bool:
    """Whether a request needs neither a token nor the origin secret. A path that is not UTF-8 is none of
    them: the error for it comes later."""
    try:
        return request_path(scope)[0] in OPEN_PATHS
    except Malformed:
        return False


def is_for_everybody(scope: Scope) -> bool:
    """Whether a request needs no token, or has one that its handler checks."""
    try:
        endpoint = find_endpoint(scope)
    except ProtocolError:
        return False
    operation = endpoint.by_method.get(scope["method"])
    return endpoint.demand is None or (operation is not None and not operation.rights)


def required_scopes(request: Request) -> Iterator[RequiredScope]:
    """The scopes that must all be granted, checked in this order. An unknown operation requires the right to
    manage. Raises as `find_endpoint`, and Malformed for an invalid name."""
    endpoint = find_endpoint(request.scope)
    operation = endpoint.by_method.get(request.method)
    if endpoint.demand is not None:
        manage = frozenset({Right.MANAGE})
        yield from endpoint.demand(request, operation.sufficient if operation else manage)
