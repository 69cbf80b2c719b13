"""Guard that protects a server without keys against other sites' pages in a browser.

A server without keys trusts every client, and browsers let any page send requests to 127.0.0.1. With DNS
rebinding, a page's host name resolves to 127.0.0.1, and the page then has the server's own origin. Therefore
the server accepts only its own names in `Host`, and writes only from its own pages (`Origin`).
`ALLOW_ANONYMOUS` lists further origins.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.error_handlers import error_response
from tidemark.http.paths import is_open
from tidemark.http.requests import Guard, Respond, header
from tidemark.protocol.errors import ForeignOrigin, ProtocolError, UnknownHost
from tidemark.settings import Settings

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def own_pages_only(settings: Settings) -> Sequence[Guard]:
    """The guard, unless the server has keys, or `ALLOW_ANONYMOUS=true` opens it."""
    authorization = settings.authorization
    is_open_server = not authorization.is_on and not authorization.allow_anonymous
    return [OpenServer(settings)] if is_open_server else []


class OpenServer:
    """Checks `Host` and `Origin`. A request without one of them passes that check: browsers always send both
    with a page's writes."""

    def __init__(self, settings: Settings) -> None:
        self._origins = settings.authorization.anonymous_origins
        urls = (*self._origins, settings.public_url, "//localhost", "//127.0.0.1")
        self._names = {urlsplit(url).hostname for url in urls}

    async def __call__(self, respond: Respond, request: Request) -> Response:
        try:
            if not is_open(request.scope):
                self._check(request)
        except ProtocolError as error:
            return error_response(request, error)
        return await respond(request)

    def _check(self, request: Request) -> None:
        """Raises UnknownHost, ForeignOrigin."""
        host = header(request, "Host")
        if host is not None and (name := name_of(host)) not in self._names and not is_loopback(name):
            raise UnknownHost(host)
        if request.method in _READS:
            return
        origin = header(request, "Origin")
        own = {f"http://{host}".lower(), f"https://{host}".lower(), *self._origins}
        if origin is not None and origin.lower() not in own:
            raise ForeignOrigin(origin.lower())


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
