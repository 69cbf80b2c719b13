"""The origin secret, which CloudFront sends with every request. A request without the secret has bypassed the
distribution, its cache and its limits, and is refused unless `EDGE_ONLY=false`. If the secret is right, the
edge's headers are trusted: host, path and content type as the client sent them."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from tidemark.aws.clients import ParameterUnavailable, load_parameter
from tidemark.http.error_handlers import error_response
from tidemark.http.headers import WRITING
from tidemark.http.paths import is_open
from tidemark.http.requests import EDGE_HOST, EDGE_PATH, Respond, header
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


async def behind_edge(respond: Respond, request: Request, *, load: Load, is_required: bool) -> Response:
    """Guard that refuses requests which bypassed the edge, if `is_required`, and passes on the others as the
    edge received them."""
    try:
        if not is_open(request.scope):
            await admit(request, load, is_required=is_required)
    except ProtocolError as error:
        return error_response(request, error)
    return await respond(request)


async def admit(request: Request, load: Load, *, is_required: bool) -> None:
    """Raises OriginAccessDenied, KeysUnavailable, EdgeTooNew."""
    sent = header(request, HEADER)
    if sent is None and (not is_required or is_by_function_url(request)):
        return
    expected = await load()
    if expected is None and is_required:
        raise KeysUnavailable
    is_known = expected is not None and hmac.compare_digest((sent or "").encode(), expected.encode())
    if not is_known and is_required:
        raise OriginAccessDenied
    version = header(request, EDGE_VERSION_HEADER)
    if version not in (None, EDGE_VERSION):
        raise EdgeTooNew
    if version:
        _restore(request)


def is_by_function_url(request: Request) -> bool:
    """Whether the request is a write at `WriterUrl`, which exists if `WriterConcurrency` is set. Lambda sets
    the domain name, so clients cannot forge it. No other function with writes has a URL."""
    event = request.scope.get("aws.event") or {"requestContext": {}}
    is_function_url = ".lambda-url." in str(event["requestContext"].get("domainName", ""))
    return is_function_url and request.method in WRITING


def _restore(request: Request) -> None:
    """Make the request the one that the edge received, with one path for both the route and the stream's
    name. If the origin secret is not required, any client can send these headers: none of them moves the
    request to another path than the one that it asks for."""
    scope = request.scope
    path = read_edge_path(scope["path"])
    scope.update({EDGE_HOST: header(request, HOST_HEADER), EDGE_PATH: path, "path": unquote(path)})
    if content_type := header(request, TYPE_HEADER):
        others = [pair for pair in scope["headers"] if bytes(pair[0]).lower() != b"content-type"]
        scope["headers"] = [*others, (b"content-type", content_type.encode("latin-1"))]


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
