"""What this server is, and whether it is up: pages that need no token, and the numbers of the process."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Final

import orjson
from fastapi import APIRouter, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark import __version__
from tidemark.aws.clock import CLOCK
from tidemark.http import console, metrics
from tidemark.http.backend import Backend, backend_of
from tidemark.http.requests import header
from tidemark.http.routing import DirectRoute
from tidemark.http.scopes import SERVER
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import ProtocolError, StorageSilent

router: Final = APIRouter(route_class=DirectRoute, tags=["server"])

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
#: Storage that takes longer for nothing does not answer.
PROBE_SECONDS: Final = 3.0
#: Written by what builds the package: shared/Makefile for the layer, the Dockerfile for the container.
COMMIT_FILE: Final = Path(__file__).parents[1] / "commit.txt"


@cache
def built_from() -> str | None:
    """The last commit that changed the package or its lock, with `-dirty` where files were not committed.
    None in a checkout, which runs whatever its files say."""
    try:
        return COMMIT_FILE.read_text().strip() or None
    except OSError:
        return None


@router.get("/")
async def front_page(request: Request) -> Response:
    """What this is and where to read on, as a page for browsers and as JSON for programs."""
    # CloudFront's cache does not tell requests apart by Accept.
    headers = {"Cache-Control": NO_STORE, "Vary": "Accept"}
    is_browser = "text/html" in (header(request, "Accept") or "")
    response = console.respond(request, "front.html") if is_browser else JSONResponse(FACTS)
    response.headers.update(headers)
    return response


@router.get("/favicon.ico", status_code=204)
async def favicon(_: Request) -> Response:
    """There is no icon. Browsers ask for it by themselves."""
    return Response(status_code=204, headers={"Cache-Control": DOCUMENT})


@router.get("/v1/health")
async def health(request: Request) -> Response:
    """Whether the server is up, and its own storage answers."""
    await _check_storage(backend_of(request))
    ahead = round(CLOCK.ahead_seconds, 1) if CLOCK.is_off else 0.0
    body = {
        "status": "ok",
        "version": __version__,
        "commit": built_from(),
        "clock_ahead_seconds": ahead,
    }
    return JSONResponse(body, headers={"Cache-Control": NO_STORE})


async def _check_storage(backend: Backend) -> None:
    """Raises StorageSilent. Storage of AWS is not asked: without it a process is as healthy as any other."""
    if backend.probe is not None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await backend.poll("health", backend.probe)
        except (ProtocolError, TimeoutError) as failure:
            raise StorageSilent from failure


@router.get("/v1/openapi.json")
async def openapi_document(request: Request) -> Response:
    """This document."""
    headers = {"Cache-Control": DOCUMENT}
    return Response(orjson.dumps(request.app.openapi()), media_type="application/json", headers=headers)


for _path, _handler in {"/v1/metrics": metrics.metrics, "/v1/traffic": metrics.traffic}.items():
    router.add_api_route(
        _path, _handler, dependencies=[Security(SERVER, scopes=["read"])], include_in_schema=False
    )
