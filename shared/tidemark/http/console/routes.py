"""The console and the page of the API: files of the package, the same for everybody.

A page gets what it shows by the calls that any client makes, with the token that its user gives it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from tidemark.http.catalog import models
from tidemark.http.control_paths import CONSOLE, DOCS
from tidemark.protocol.caching import REVALIDATED
from tidemark.protocol.errors import RouteNotFound

#: Nothing runs or is fetched but what this server sent, and nobody frames it.
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Cache-Control": REVALIDATED,
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
}
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_STATIC: Final = files("tidemark.http.console") / "static"
_OPEN: Final[dict[str, Any]] = {"security": [{}]}

router = APIRouter(tags=["console"])


@cache
def _file(name: str) -> tuple[bytes, str, str]:
    """Its bytes, type and entity tag. Raises RouteNotFound: names are those of the folder, and no paths."""
    found = next((each for each in _STATIC.iterdir() if each.is_file() and each.name == name), None)
    kind = _TYPES.get("." + name.rpartition(".")[2])
    if found is None or kind is None:
        raise RouteNotFound
    body = found.read_bytes()
    return body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _respond(request: Request, name: str) -> Response:
    body, kind, tag = _file(name)
    headers = _HEADERS | {"ETag": tag}
    # A distribution that compresses makes the tag a weak one.
    if tag in (request.headers.get("If-None-Match") or ""):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers | {"Content-Type": kind})


@router.get(
    CONSOLE,
    operation_id="console",
    summary="The console: a page for people",
    response_class=HTMLResponse,
    openapi_extra=_OPEN,
)
async def console(request: Request) -> Response:
    return _respond(request, "console.html")


@router.get(
    DOCS,
    operation_id="docs",
    summary="This document as a page",
    response_class=HTMLResponse,
    openapi_extra=_OPEN,
)
async def docs(request: Request) -> Response:
    return _respond(request, "docs.html")


_PARTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {kind.partition(";")[0]: {} for kind in _TYPES.values()},
        "description": "A script, a style or a licence.",
    },
    404: {"model": models.Error, "description": "There is no such file."},
}


@router.get(
    CONSOLE + "/{file}",
    operation_id="consoleFile",
    summary="A part of the console",
    response_class=Response,
    responses=_PARTS,
    openapi_extra=_OPEN,
)
async def console_file(request: Request, file: str) -> Response:
    return _respond(request, file)
