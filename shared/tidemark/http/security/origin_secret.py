"""The origin secret: CloudFront sends it with every request. A request without it came past the
distribution, its cache and its limits, and is refused. With it, what the edge says of a request is believed:
the path and the content type as the client sent them."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.http.dispatch import is_open
from tidemark.http.error_handlers import error_response
from tidemark.http.requests import EDGE_PATH, header
from tidemark.http.security.refreshing_cache import CannotFetch, RefreshingCache
from tidemark.protocol.errors import KeysUnavailable, OriginAccessDenied
from tidemark.settings import AuthorizationSettings

HEADER: Final = "X-Tidemark-Edge"
#: The undecoded path, written by `edge/route.js`.
PATH_HEADER: Final = "X-Tidemark-Path"
#: The body's type, in whose place the edge writes that of bytes: an HTTP API then hands on the body as
#: base64, of which 4 MiB fit a Lambda request, whatever they hold.
TYPE_HEADER: Final = "X-Tidemark-Content-Type"
Load = Callable[[], Awaitable[str | None]]
Run = Callable[[Callable[[], str | None]], Awaitable[str | None]]


class OriginSecretRequired:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, load: Load) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        expected = await self._load()
        sent = header(request, HEADER) or ""
        if expected is None:
            await error_response(request, KeysUnavailable())(scope, receive, send)
        elif not hmac.compare_digest(sent.encode(), expected.encode()):
            await error_response(request, OriginAccessDenied())(scope, receive, send)
        else:
            await self._app(as_sent(scope, request), receive, send)


def as_sent(scope: Scope, request: Request) -> Scope:
    """The request as the edge received it. Routes are chosen by the same path as streams are."""
    if path := header(request, PATH_HEADER):
        scope = {**scope, "path": unquote(path), EDGE_PATH: path}
    if content_type := request.headers.get(TYPE_HEADER):
        others = [pair for pair in scope["headers"] if bytes(pair[0]).lower() != b"content-type"]
        scope = {**scope, "headers": [*others, (b"content-type", content_type.encode("latin-1"))]}
    return scope


def origin_secret_loader(settings: AuthorizationSettings, run: Run) -> Load:
    """Loads the stack's own secret, which never changes; or one from a parameter, which may."""
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

    secret = RefreshingCache(fetch)
    return lambda: run(secret.get)
