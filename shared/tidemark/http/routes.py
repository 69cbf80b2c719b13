"""The plain surface: `/v1/stream/{path}`, one function for each operation of §5."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from tidemark.http import responses
from tidemark.http.backend import Backend, backend_of
from tidemark.http.cancel_on_disconnect import ClientGone, cancel_on_disconnect, hang_up
from tidemark.http.live import count_wake, event_stream, gathered_events, read_or_wait
from tidemark.http.requests import (
    STREAM_ROOT,
    Live,
    ReadRequest,
    parse_append,
    parse_create,
    parse_read,
    parse_stream,
)
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_known
from tidemark.service.read import read


async def health(_: Request) -> Response:
    return JSONResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


async def openapi_document(_: Request) -> Response:
    from tidemark.http.openapi.document import rendered

    headers = {"Cache-Control": "public, max-age=300"}
    return Response(rendered(), media_type="application/json", headers=headers)


async def create_stream(request: Request) -> Response:
    """§5.1."""
    backend, key = backend_of(request), parse_stream(request)
    asked = await parse_create(request)
    made = await backend.run(lambda: create(backend.stores, key, asked))
    return responses.created(request, made)


async def append_to_stream(request: Request) -> Response:
    """§5.2, §5.3."""
    backend, key = backend_of(request), parse_stream(request)
    asked = await parse_append(request)
    outcome = await backend.append(key, asked, partial(hang_up, request.receive))
    PROCESS.appended(len(asked.body))
    return responses.appended(asked, outcome)


async def delete_stream(request: Request) -> Response:
    """§5.4."""
    backend, key = backend_of(request), parse_stream(request)
    await backend.run(lambda: delete(backend.stores, key))
    backend.hub.wake(key)
    return responses.deleted()


async def stream_metadata(request: Request) -> Response:
    """§5.5."""
    backend, key = backend_of(request), parse_stream(request)
    return responses.metadata(await backend.run(lambda: load_known(backend.stores, key)))


async def read_stream(request: Request) -> Response:
    """§5.6, §5.7, §5.8."""
    backend, key = backend_of(request), parse_stream(request)
    asked = parse_read(request)
    if asked.live is Live.LONG_POLL:
        return await _long_poll(request, backend, key, asked)
    if asked.live is Live.SSE:
        return await _server_sent_events(request, backend, key, asked)
    reading = await backend.run(lambda: read(backend.stores, key, asked.read_from))
    return responses.caught_up(asked, reading, backend.stores.clock_ms())


async def _long_poll(request: Request, backend: Backend, key: StreamKey, asked: ReadRequest) -> Response:
    waiting = read_or_wait(backend, key, asked, backend.settings.long_poll_seconds)
    began_ms = backend.stores.clock_ms()
    try:
        with PROCESS.waiting("long-poll"):
            reading = await cancel_on_disconnect(request.receive, waiting)
    except ClientGone:
        return Response(status_code=204)  # For nobody.
    now_ms = backend.stores.clock_ms()
    count_wake(reading, began_ms, now_ms)
    return responses.polled(asked, reading, now_ms)


async def _server_sent_events(
    request: Request, backend: Backend, key: StreamKey, asked: ReadRequest
) -> Response:
    if "aws.event" in request.scope:
        with PROCESS.waiting("sse"):
            record, events = await gathered_events(backend, key, asked)
        return Response(events, headers=responses.event_stream_headers(record))
    async with backend.first_pages:
        reading = await backend.run(lambda: read(backend.stores, key, asked.read_from, small=True))
    headers = responses.event_stream_headers(reading.record)
    return StreamingResponse(_counted(event_stream(backend, key, asked, reading)), headers=headers)


async def _counted(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    with PROCESS.waiting("sse"):
        async for each in events:
            yield each


#: What each method does to a stream; every other one is answered with 405.
OPERATIONS: Final[dict[str, Callable[[Request], Awaitable[Response]]]] = {
    "GET": read_stream,
    "HEAD": stream_metadata,
    "PUT": create_stream,
    "POST": append_to_stream,
    "DELETE": delete_stream,
}


async def operate(request: Request) -> Response:
    return await OPERATIONS[request.method](request)


def install(app: FastAPI) -> None:
    """Plain routes: FastAPI's own read parameters and bodies into models, which the
    protocol has none of, and cost an append a third of its CPU (`benchmarks/cpu.py`)."""
    app.add_route(STREAM_ROOT + "{path:path}", operate, methods=list(OPERATIONS))
    app.add_route("/v1/health", health, methods=["GET"])
    app.add_route("/v1/openapi.json", openapi_document, methods=["GET"])
