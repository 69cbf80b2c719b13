"""Guards of where a request comes from: through the edge, or from a page of the server's own.

CloudFront sends the origin secret with every request. A request without the secret has bypassed the
distribution, its cache and its limits, and is refused unless `EDGE_ONLY=false`. If the secret is right, the
edge's headers are trusted: host, path and content type as the client sent them.

A server without keys trusts every client, and browsers let any page send requests to 127.0.0.1. With DNS
rebinding, a page's host name resolves to 127.0.0.1, and the page then has the server's own origin. Therefore
the server accepts only its own names in `Host`, and writes only from its own pages (`Origin`).
`ALLOW_ANONYMOUS` lists further origins.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.headers import WRITING
from tidemark.http.paths import is_open
from tidemark.http.requests import EDGE_HOST, EDGE_PATH, Guard, Respond, header
from tidemark.http.security.keys import WITH_SSM, RefreshingCache, fetch_parameter
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER, read_edge_path
from tidemark.protocol import errors
from tidemark.settings import AuthorizationSettings, Settings

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
    edge received them. Raises OriginAccessDenied, KeysUnavailable, EdgeTooNew."""
    sent = header(request, HEADER)
    is_exempt = sent is None and (not is_required or is_by_function_url(request))
    if is_exempt or is_open(request.scope):
        return await respond(request)
    expected = await load()
    if expected is None and is_required:
        raise errors.KeysUnavailable
    is_known = expected is not None and hmac.compare_digest((sent or "").encode(), expected.encode())
    if not is_known and is_required:
        raise errors.OriginAccessDenied
    version = header(request, EDGE_VERSION_HEADER)
    if version not in (None, EDGE_VERSION):
        raise errors.EdgeTooNew
    if version:
        _restore(request)
    return await respond(request)


def is_by_function_url(request: Request) -> bool:
    """Whether the request is a write at `WriterUrl`, which exists if `WriterConcurrency` is set. Lambda sets
    the domain name, so clients cannot forge it. No other function with writes has a URL."""
    event = request.scope.get("aws.event") or {"requestContext": {}}
    is_function_url = ".lambda-url." in str(event["requestContext"].get("domainName", ""))
    return is_function_url and request.method in WRITING


def _restore(request: Request) -> None:
    """Make the request the one that the edge received: one path for the route and the stream's name. If no
    secret is required, any client can send these headers; none moves the request to another path."""
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

    secret = RefreshingCache(partial(fetch_parameter, name), patience=WITH_SSM)
    return lambda: run(secret.get)


_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def own_pages_only(settings: Settings) -> Sequence[Guard]:
    """The guard, unless the server has keys, or `ALLOW_ANONYMOUS=true` opens it."""
    keys = settings.authorization
    return [] if keys.is_on or keys.allow_anonymous else [OpenServer(settings)]


class OpenServer:
    """Checks `Host` and `Origin`. A request without the header passes its check: browsers always send both
    with a page's writes."""

    def __init__(self, settings: Settings) -> None:
        self._origins = settings.authorization.anonymous_origins
        urls = (*self._origins, settings.public_url, "//localhost", "//127.0.0.1")
        self._names = {urlsplit(url).hostname for url in urls}

    async def __call__(self, respond: Respond, request: Request) -> Response:
        if not is_open(request.scope):
            self._check(request)
        return await respond(request)

    def _check(self, request: Request) -> None:
        """Raises UnknownHost, ForeignOrigin."""
        host = header(request, "Host")
        if host is not None and (name := name_of(host)) not in self._names and not is_loopback(name):
            raise errors.UnknownHost(host)
        if request.method in _READS:
            return
        origin = header(request, "Origin")
        own = {f"http://{host}".lower(), f"https://{host}".lower(), *self._origins}
        if origin is not None and origin.lower() not in own:
            raise errors.ForeignOrigin(origin.lower())


def name_of(host: str) -> str:
    """The name in a Host header, without the port and without the brackets of an IPv6 address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def is_loopback(name: str) -> bool:
    """Whether a name always means this machine, without DNS (RFC 6761 §6.3)."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
