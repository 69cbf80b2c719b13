"""The console and the page of the API: files of the package, the same for everybody.

A page gets what it shows by the calls that any client makes, with the token that its user gives it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tidemark.http.openapi import AS_STORED
from tidemark.http.routing import DirectRoute
from tidemark.protocol.caching import REVALIDATED
from tidemark.protocol.errors import RouteNotFound

router: Final = APIRouter(route_class=DirectRoute, tags=["console"])

#: Scripts and requests of this server alone are allowed, and no page may frame it. No page that it opens, or
#: that opens it, has a handle on its window (Cross-Origin-Opener-Policy).
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": REVALIDATED,
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_STATIC: Final = files("tidemark") / "console"


@cache
def _file(name: str) -> tuple[bytes, str, str]:
    """The file's bytes, type and entity tag. Raises RouteNotFound: a name is one in the folder, not a
    path."""
    found = next((each for each in _STATIC.iterdir() if each.is_file() and each.name == name), None)
    kind = _TYPES.get("." + name.rpartition(".")[2])
    if found is None or kind is None:
        raise RouteNotFound
    body = found.read_bytes()
    return body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def respond(request: Request, name: str) -> Response:
    body, kind, tag = _file(name)
    headers = _HEADERS | {"ETag": tag}
    # A distribution that compresses makes the tag a weak one.
    if tag in (request.headers.get("If-None-Match") or ""):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers | {"Content-Type": kind})


@router.get("/v1/console", response_class=HTMLResponse)
async def console(request: Request) -> Response:
    """The console: a page for people."""
    return respond(request, "console.html")


@router.get("/v1/docs", response_class=HTMLResponse)
async def docs(request: Request) -> Response:
    """The OpenAPI document as a page."""
    return respond(request, "docs.html")


@router.get("/v1/console/{file:segment}", response_class=Response, responses={200: {"content": AS_STORED}})
async def console_file(request: Request) -> Response:
    """A part of the console."""
    return respond(request, request.path_params["file"])
