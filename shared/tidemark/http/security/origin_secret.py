"""The origin secret, which CloudFront sends with every request. A request without the secret has bypassed the
distribution, its cache and its limits, and is refused unless `EDGE_ONLY=false`. If the secret is right, the
edge's headers are trusted: host, path and content type as the client sent them."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.http.error_handlers import error_response
from tidemark.http.headers import WRITING
from tidemark.http.paths import is_open
from tidemark.http.requests import EDGE_HOST, EDGE_PATH, header
from tidemark.http.security.keys import WITH_SSM, CannotFetch, RefreshingCache
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER, read_edge_path
from tidemark.protocol.errors import EdgeTooNew, KeysUnavailable, OriginAccessDenied, ProtocolError
from tidemark.settings import AuthorizationSettings

HEADER: Final = "X-Tidemark-Edge"
#: The name that the client used.
HOST_HEADER: Final = "X-Tidemark-Host"
#: The body's type. The edge sends `application/octet-stream` as Content-Type, so that an HTTP API passes the
#: body as base64, and every body of 4 MiB fits a Lambda request.
TYPE_HEADER: Final = "X-Tidemark-Content-Type"
Load = Callable[[], Awaitable[str | None]]
Run = Callable[[Callable[[], str | None]], Awaitable[str | None]]


class BehindEdge:
    """ASGI middleware that refuses requests which bypassed the edge, if `is_required`, and passes on the
    others as the edge received them."""

    def __init__(self, app: ASGIApp, load: Load, *, is_required: bool) -> None:
        self._app = app
        self._load = load
        self._is_required = is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope):
            request = Request(scope)
            try:
                scope = await self._admitted(scope, request)
            except ProtocolError as error:
                await error_response(request, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope, request: Request) -> Scope:
        """Raises OriginAccessDenied, KeysUnavailable, EdgeTooNew."""
        sent = header(request, HEADER)
        if sent is None and (not self._is_required or is_by_function_url(scope)):
            return scope
        expected = await self._load()
        if expected is None and self._is_required:
            raise KeysUnavailable
        is_known = expected is not None and hmac.compare_digest((sent or "").encode(), expected.encode())
        if not is_known and self._is_required:
            raise OriginAccessDenied
        version = header(request, EDGE_VERSION_HEADER)
        if version not in (None, EDGE_VERSION):
            raise EdgeTooNew
        return _as_sent(scope, request) if version else scope


def is_by_function_url(scope: Scope) -> bool:
    """Whether the request is a write at `WriterUrl`, which exists if `WriterConcurrency` is set. Lambda sets
    the domain name, so clients cannot forge it. No other function with writes has a URL."""
    event = scope.get("aws.event") or {"requestContext": {}}
    is_function_url = ".lambda-url." in str(event["requestContext"].get("domainName", ""))
    return is_function_url and scope["method"] in WRITING


def _as_sent(scope: Scope, request: Request) -> Scope:
    """The request as the edge received it, with one path for both the route and the stream's name. If the
    origin secret is not required, any client can send these headers: none of them moves the request to
    another path than the one that it asks for."""
    path = read_edge_path(scope["path"])
    scope = {**scope, EDGE_HOST: header(request, HOST_HEADER), EDGE_PATH: path, "path": unquote(path)}
    if content_type := request.headers.get(TYPE_HEADER):
        others = [pair for pair in scope["headers"] if bytes(pair[0]).lower() != b"content-type"]
        scope["headers"] = [*others, (b"content-type", content_type.encode("latin-1"))]
    return scope


def origin_secret_loader(settings: AuthorizationSettings, run: Run) -> Load:
    """Make a function that loads the secret: the stack's own, which never changes, or a parameter's value."""
    name = settings.edge_secret_name
    if not name:

        async def known() -> str | None:
            return settings.edge_secret

        return known

    def fetch() -> str:
        try:
            return load_parameter(name)
        except ParameterUnavailable as failure:
            raise CannotFetch(str(failure), throttled=failure.throttled) from None

    secret = RefreshingCache(fetch, patience=WITH_SSM)
    return lambda: run(secret.get)
