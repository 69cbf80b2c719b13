"""Pages that need no token: the front page, the health check, the console, the page of the API. Also the
routes of the process's metrics, which need one.

The console consists of static files of the package. Its script uses the public API, with the user's token.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Security
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from tidemark import __version__
from tidemark.aws.clock import CLOCK
from tidemark.http import metrics
from tidemark.http.backend import Backend, backend_of
from tidemark.http.compression import accepts_gzip
from tidemark.http.dependencies import SERVER, Served
from tidemark.http.openapi import AS_BYTES, answers
from tidemark.http.requests import PROXY_ROOT, header
from tidemark.protocol import socket
from tidemark.protocol.caching import DOCUMENT, NO_STORE, REVALIDATED
from tidemark.protocol.errors import ProtocolError, RouteNotFound, StorageSilent

router: Final = APIRouter(tags=["server"])
console_router: Final = APIRouter(tags=["console"])

FACTS: Final = {
    "service": "Tidemark",
    "version": __version__,
    "what": "Durable Streams: append-only streams over HTTP",
    "streams": "/v1/stream/{path}",
    "console": "/v1/console",
    "openapi": "/v1/openapi.json",
    "api": "/v1/docs",
    "health": "/v1/health",
    "docs": "https://github.com/durable-streams/durable-streams/blob/main/PROTOCOL.md",
}
#: A probe that takes longer than this counts as no answer.
PROBE_SECONDS: Final = 3.0
#: Written by the build: shared/Makefile for the layer, the Dockerfile for the container.
COMMIT_FILE: Final = Path(__file__).parents[1] / "commit.txt"
#: Allows scripts from this server only, and requests to this server and its socket, which may be at another
#: host. No page may frame these pages.
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src {allowed}; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
#: Files that a browser may show as a page.
_PAGES: Final = (".html", ".svg")
_STATIC: Final = files("tidemark") / "console"


@cache
def built_from() -> str | None:
    """The last commit that changed the package or its lock, with `-dirty` if files were not committed; None
    in a checkout."""
    try:
        return COMMIT_FILE.read_text().strip() or None
    except OSError:
        return None


_A_FILE: Final = {200: ("The file.", "ETag")}


@router.get("/")
async def front_page(request: Request) -> Response:
    """Describe the service and its paths, as a page for browsers and as JSON for programs."""
    # Not cached, because CloudFront's cache key does not contain Accept.
    headers = {"Cache-Control": NO_STORE, "Vary": "Accept, Accept-Encoding"}
    is_browser = "text/html" in (header(request, "Accept") or "")
    response = _file_response(request, "front.html") if is_browser else JSONResponse(FACTS)
    response.headers.update(headers)
    return response


@router.get("/favicon.ico", status_code=204)
async def favicon() -> Response:
    """Answer browsers, which request an icon by themselves, that there is none."""
    return Response(status_code=204, headers={"Cache-Control": DOCUMENT})


@router.get("/v1/health")
async def health(backend: Served) -> dict[str, str | float | None]:
    """Check that the server is up, and that its own storage answers."""
    await _check_storage(backend)
    return {
        "status": "ok",
        "version": __version__,
        "commit": built_from(),
        "clock_ahead_seconds": round(CLOCK.ahead_seconds, 1),
    }


async def _check_storage(backend: Backend) -> None:
    """Probe the process's own storage. Storage on AWS is not probed: a restart would not help if it failed.
    Raises StorageSilent."""
    if backend.probe is not None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await backend.share("health", backend.probe)
        except (ProtocolError, TimeoutError) as failure:
            raise StorageSilent from failure


@router.get(socket.PATH)
async def socket_address(backend: Served) -> Response:
    """Get the address of the socket: a WebSocket URL, or a path of this server."""
    url = backend.settings.socket_url
    if not url:
        raise RouteNotFound("This server has no socket: follow streams with live=long-poll or live=sse")
    return JSONResponse({"url": url}, headers={"Cache-Control": DOCUMENT})


@router.get(
    f"{socket.PATH}.js", response_class=Response, status_code=200, responses=answers(_A_FILE, AS_BYTES)
)
async def socket_module(request: Request) -> Response:
    """Get an ES module for pages: a `fetch` for the official client, whose long-polls wait on the socket."""
    return _file_response(request, "socket.js")


@router.get(
    f"{PROXY_ROOT}.js", response_class=Response, status_code=200, responses=answers(_A_FILE, AS_BYTES)
)
async def proxy_module(request: Request) -> Response:
    """Get an ES module: a `fetch` for the SDKs of OpenAI and Anthropic, by the durable proxy."""
    return _file_response(request, "proxy.js")


for _path, _handler in {
    "/v1/metrics": metrics.metrics,
    "/v1/rates": metrics.rates,
    "/v1/traffic": metrics.traffic,
}.items():
    router.add_api_route(
        _path, _handler, dependencies=[Security(SERVER, scopes=["read"])], include_in_schema=False
    )


@console_router.get("/v1/console", response_class=HTMLResponse, status_code=200, responses=answers(_A_FILE))
async def console(request: Request) -> Response:
    """Get the console, a page for people."""
    return _file_response(request, "console.html")


@console_router.get("/v1/docs", response_class=HTMLResponse, status_code=200, responses=answers(_A_FILE))
async def docs(request: Request) -> Response:
    """Get the OpenAPI document as a page."""
    return _file_response(request, "docs.html")


@console_router.get(
    "/v1/console/{file}", response_class=Response, status_code=200, responses=answers(_A_FILE, AS_BYTES)
)
async def console_file(request: Request, file: str) -> Response:
    """Get a file of the console."""
    return _file_response(request, file)


@cache
def _file(name: str, *, is_compressed: bool) -> tuple[bytes, str, str]:
    """Read a file: its bytes as they are sent, its type and its entity tag. Raises RouteNotFound unless the
    name is in the folder, so a path leads nowhere else."""
    found = next((each for each in _STATIC.iterdir() if each.is_file() and each.name == name), None)
    kind = _TYPES.get("." + name.rpartition(".")[2])
    if found is None or kind is None:
        raise RouteNotFound
    body = found.read_bytes()
    if is_compressed:
        body = gzip.compress(body, mtime=0)
    return body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _file_response(request: Request, name: str) -> Response:
    is_compressed = accepts_gzip(request)
    body, kind, tag = _file(name, is_compressed=is_compressed)
    headers = {"Cache-Control": REVALIDATED, "ETag": tag, "Vary": "Accept-Encoding"}
    if name.endswith(_PAGES):
        headers |= _page_headers(backend_of(request).settings.socket_url)
    # `in` instead of `==`: a distribution that compresses the file makes the tag weak (`W/"…"`).
    if tag in (request.headers.get("If-None-Match") or ""):
        return Response(status_code=304, headers=headers)
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers=headers | {"Content-Type": kind})


def _page_headers(socket_url: str) -> dict[str, str]:
    socket = urlsplit(socket_url)
    allowed = f"'self' {socket.scheme}://{socket.netloc}" if socket.netloc else "'self'"
    return {
        "Content-Security-Policy": _CONTENT_SECURITY_POLICY.format(allowed=allowed),
        # Pages that the console opens, or that open it, get no reference to its window.
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
    }
