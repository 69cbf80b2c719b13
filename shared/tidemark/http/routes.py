"""The plain surface: `/v1/stream/{path}`, one function for each operation of §5."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Receive

from tidemark import __version__
from tidemark.aws.clock import CLOCK
from tidemark.http import responses
from tidemark.http.backend import Backend, backend_of
from tidemark.http.live import count_wake, event_stream, gathered_events, read_or_wait
from tidemark.http.requests import (
    ACCESS,
    Live,
    ReadRequest,
    header,
    parse_append,
    parse_create,
    parse_read,
    parse_stream,
)
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.authorization import EVERYTHING
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import PreconditionFailed, ProtocolError, StorageSilent
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read

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
_LINKS: Final = ("console", "api", "openapi", "health", "docs")


def _front_page_html() -> str:
    """The same facts for a person who opens the server's address in a browser."""
    links = "".join(f'<li><a href="{escape(FACTS[name])}">{name}</a></li>' for name in _LINKS)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Tidemark</title>"
        '<body style="font-family:sans-serif;max-width:40em;margin:3em auto">'
        f"<h1>Tidemark {escape(__version__)}</h1><p>{escape(FACTS['what'])}.</p>"
        f"<p>Streams live under <code>{escape(FACTS['streams'])}</code>:</p>"
        "<pre>URL=<i>the address of this page</i>\n"
        "curl -X PUT -H 'Content-Type: text/plain' -d hello \"${URL%/}/v1/stream/first\"\n"
        'curl "${URL%/}/v1/stream/first?offset=-1"</pre>'
        f"<ul>{links}</ul></html>"
    )


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


_T = TypeVar("_T")


class HungUp(Exception):
    """The client hung up before its response was ready."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The work's result. Raises HungUp, and then the work has been stopped."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(hang_up(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUp
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def hang_up(receive: Receive) -> None:
    """Returns once the client has disconnected. Data that it still sends is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def front_page(request: Request) -> Response:
    """What this is and where to read on, as a page for browsers and as JSON for programs."""
    # CloudFront's cache does not tell requests apart by Accept.
    headers = {"Cache-Control": NO_STORE, "Vary": "Accept"}
    is_browser = "text/html" in (header(request, "Accept") or "")
    response = HTMLResponse(_front_page_html()) if is_browser else JSONResponse(FACTS)
    response.headers.update(headers)
    return response


async def favicon(_: Request) -> Response:
    """There is no icon. Browsers ask for it by themselves."""
    return Response(status_code=204, headers={"Cache-Control": DOCUMENT})


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


async def openapi_document(_: Request) -> Response:
    """This document."""
    from tidemark.http.openapi import rendered

    headers = {"Cache-Control": DOCUMENT}
    return Response(rendered(), media_type="application/json", headers=headers)


async def create_stream(request: Request) -> Response:
    """Create a stream, or find it there as asked for (§5.1); or fork one (§4.2)."""
    backend, key = backend_of(request), parse_stream(request)
    create_request = await parse_create(request)
    made = await backend.run(lambda: create(backend.stores, key, create_request))
    return responses.created(request, made)


async def append_to_stream(request: Request) -> Response:
    """Append, close, or both (§5.2, §5.3)."""
    backend, key = backend_of(request), parse_stream(request)
    append_request = await parse_append(request)
    try:
        outcome = await backend.append(key, append_request, partial(hang_up, request.receive))
    except PreconditionFailed:
        if request.scope.get(ACCESS, EVERYTHING).may_read(key):
            raise
        raise PreconditionFailed from None  # A guess must not tell where the tail is.
    PROCESS.appended(len(append_request.body))
    return responses.appended(append_request, outcome)


async def delete_stream(request: Request) -> Response:
    """Delete a stream (§5.4)."""
    backend, key = backend_of(request), parse_stream(request)
    await backend.run(lambda: delete(backend.stores, key))
    backend.hub.wake(key)
    return responses.deleted()


async def stream_metadata(request: Request) -> Response:
    """What kind of stream it is, and where its tail is (§5.5)."""
    backend, key = backend_of(request), parse_stream(request)
    return responses.metadata(await backend.run(lambda: load_head(backend.stores, key)))


async def read_stream(request: Request) -> Response:
    """Read a page, wait for one, or follow as an event stream (§5.6 to §5.8)."""
    backend, key = backend_of(request), parse_stream(request)
    read_request = parse_read(request)
    if read_request.live is Live.LONG_POLL:
        return await long_poll(request, backend, key, read_request)
    if read_request.live is Live.SSE:
        return await server_sent_events(request, backend, key, read_request)
    read_from, cursor = read_request.read_from, read_request.cursor
    reading = await backend.run(lambda: read(backend.stores, key, read_from, cursor))
    return responses.caught_up(read_request, reading, backend.stores.clock_ms())


async def long_poll(
    request: Request, backend: Backend, key: StreamKey, read_request: ReadRequest
) -> Response:
    """§5.7."""
    waiting = read_or_wait(backend, key, read_request, backend.settings.long_poll_seconds)
    began_ms = backend.stores.clock_ms()
    try:
        with PROCESS.waiting("long-poll"):
            reading = await cancel_on_disconnect(request.receive, waiting)
    except HungUp:
        return Response(status_code=204)  # Nobody receives it.
    now_ms = backend.stores.clock_ms()
    count_wake(reading, began_ms, now_ms)
    return responses.polled(read_request, reading, now_ms)


async def server_sent_events(
    request: Request, backend: Backend, key: StreamKey, read_request: ReadRequest
) -> Response:
    """§5.8."""
    if "aws.event" in request.scope:
        with PROCESS.waiting("sse"):
            record, events = await gathered_events(backend, key, read_request)
        return Response(events, headers=responses.event_stream_headers(read_request, record))
    read_from, cursor = read_request.read_from, read_request.cursor
    async with backend.first_pages:
        reading = await backend.run(lambda: read(backend.stores, key, read_from, cursor, small=True))
    headers = responses.event_stream_headers(read_request, reading.record)

    async def counted_events() -> AsyncIterator[bytes]:
        with PROCESS.waiting("sse"):
            async for each in event_stream(backend, key, read_request, reading):
                yield each

    return StreamingResponse(counted_events(), headers=headers)
