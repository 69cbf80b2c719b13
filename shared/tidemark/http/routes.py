"""The plain surface: `/v1/stream/{path}`, one function for each operation of §5."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from tidemark import __version__
from tidemark.aws.clock import CLOCK
from tidemark.build import built_from
from tidemark.http import responses
from tidemark.http.backend import Backend, backend_of
from tidemark.http.cancel_on_disconnect import HungUp, cancel_on_disconnect, hang_up
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
from tidemark.protocol.errors import PreconditionFailed
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read


async def front_page(request: Request) -> Response:
    """What this is and where to read on, as a page for browsers and as JSON for programs."""
    from tidemark.http import front_page as page

    # CloudFront's cache does not tell requests apart by Accept.
    headers = {"Cache-Control": NO_STORE, "Vary": "Accept"}
    is_browser = "text/html" in (header(request, "Accept") or "")
    response = HTMLResponse(page.render_html()) if is_browser else JSONResponse(page.FACTS)
    response.headers.update(headers)
    return response


async def favicon(_: Request) -> Response:
    """There is no icon. Browsers ask for it by themselves."""
    return Response(status_code=204, headers={"Cache-Control": DOCUMENT})


async def health(_: Request) -> Response:
    """Whether the server is up."""
    ahead = round(CLOCK.ahead_seconds, 1) if CLOCK.is_off else 0.0
    body = {
        "status": "ok",
        "version": __version__,
        "commit": built_from(),
        "clock_ahead_seconds": ahead,
    }
    return JSONResponse(body, headers={"Cache-Control": NO_STORE})


async def openapi_document(_: Request) -> Response:
    """This document."""
    from tidemark.http.openapi.document import rendered

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
    reading = await backend.run(lambda: read(backend.stores, key, read_request.read_from))
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
        return Response(events, headers=responses.event_stream_headers(record))
    async with backend.first_pages:
        reading = await backend.run(lambda: read(backend.stores, key, read_request.read_from, small=True))
    headers = responses.event_stream_headers(reading.record)

    async def counted_events() -> AsyncIterator[bytes]:
        with PROCESS.waiting("sse"):
            async for each in event_stream(backend, key, read_request, reading):
                yield each

    return StreamingResponse(counted_events(), headers=headers)
