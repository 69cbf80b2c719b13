"""The operations of a stream (§5): one handler for each, with its parameters and responses.

The server and the functions call these handlers without FastAPI. A function imports FastAPI only with the
first request for another path, because the import would double the time of a cold start's imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from tidemark.http import requests, responses
from tidemark.http.backend import Backend
from tidemark.http.live import EndError, event_stream, gathered_events
from tidemark.http.paths import STREAM_PATHS, Operation
from tidemark.observability.metrics import PROCESS
from tidemark.protocol import errors
from tidemark.protocol.append import Outcome
from tidemark.protocol.authorization import EVERYTHING, RequiredScope, Right, Target
from tidemark.protocol.sse import CLOSED_ID
from tidemark.protocol.stream_key import StreamKey, check_new_name
from tidemark.service.create import CreateRequest, create, create_with_append
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.start_point import read_back
from tidemark.wake.follow import read_or_wait, selected

Answers = Mapping[int, tuple[str, ...]]
"""For each status of an operation: its meaning, then the names of its headers."""
StreamHandler = Callable[[Request, Backend, StreamKey], Awaitable[Response]]
_Handler = TypeVar("_Handler", bound=StreamHandler)


@dataclass(frozen=True, slots=True)
class StreamOperation:
    """A handler and its description. A token needs one of `rights`. `takes` names parameters of the OpenAPI
    document. `body`: the request has a body. `data`: the response has the stream's data."""

    method: str
    handler: StreamHandler
    rights: str
    answers: Answers
    takes: tuple[str, ...] = ()
    body: bool = False
    data: bool = False


OPERATIONS: Final[list[StreamOperation]] = []


def operation(
    method: str, rights: str, answers: Answers, takes: tuple[str, ...] = (), **more: bool
) -> Callable[[_Handler], _Handler]:
    def declare(handler: _Handler) -> _Handler:
        OPERATIONS.append(StreamOperation(method, handler, rights, answers, takes, **more))
        return handler

    return declare


def required_scopes(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    """The required scopes of a stream's operation. A fork needs the right to read its source, and a right to
    fork, because a fork keeps the source's name in use. Errors in the fork headers are reported later, by
    `create_stream`."""
    key: StreamKey = request.scope[requests.STREAM]
    yield RequiredScope(Target(key.bucket, key.stream_id), rights)
    if request.method != "PUT":
        return
    try:
        fork = requests.parse_fork(request)
    except errors.ProtocolError:
        return
    if fork is not None:
        source = Target(fork.source.bucket, fork.source.stream_id)
        yield RequiredScope(source, frozenset({Right.READ}), absent=errors.SourceNotFound().message)
        yield RequiredScope(source, frozenset({Right.FORK, Right.WRITE, Right.MANAGE}))


def stream_operations() -> list[Operation]:
    """The operations as routes. Handlers are called directly, because FastAPI's handling of parameters costs
    a sixth of the CPU of an append."""
    return [
        Operation(
            each.method,
            path,
            _called(each.handler),
            frozenset(map(Right, each.rights.split())),
            required_scopes,
        )
        for path in STREAM_PATHS.values()
        for each in OPERATIONS
    ]


def _called(handler: StreamHandler) -> requests.Respond:
    return lambda request: handler(request, request.app.backend, request.scope[requests.STREAM])


_TAIL: Final = ("Stream-Next-Offset", "Stream-Closed")
_BEGIN: Final = ("Stream-Retained-Offset", "Stream-Start-Offset")
_PAGE: Final = ("Stream-Up-To-Date", "Stream-Cursor", "Stream-SSE-Data-Encoding", *_BEGIN)
_READ: Final = (*_TAIL, "ETag", *_PAGE)
_APPENDED: Final = (*_TAIL, "ETag", "Producer-Epoch", "Producer-Seq")
_SETTINGS: Final = ("Stream-TTL", "Stream-Expires-At", *requests.SETTING_HEADERS)
_CREATION: Final = ("Stream-Create", *_SETTINGS)
_GAP: Final = ("Producer-Expected-Seq", "Producer-Received-Seq")
#: The streams of a name that may end, one after the other, while an append would create it.
_MAX_LIVES: Final = 8

_T = TypeVar("_T")


class HungUp(Exception):
    """The client disconnected before its response was ready."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the work's result. Cancel the work and raise HungUp if the client disconnects first."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    watching = asyncio.create_task(hang_up(receive))
    watching.add_done_callback(task.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if watching.done() and task.uncancel() == 0:
            raise HungUp from None
        raise
    finally:
        watching.remove_done_callback(task.cancel)
        watching.cancel()


async def hang_up(receive: Receive) -> None:
    """Return when the client has disconnected. Further data from the client is discarded."""
    while (await receive())["type"] != "http.disconnect":
        pass


#: PUT never changes an existing stream, so the right to write is enough, for agents that own a prefix. The
#: right to manage is enough too, for managers that create streams for other writers.
@operation(
    "PUT",
    "write manage",
    {
        201: ("The stream is created.", "Location", *_TAIL, "ETag"),
        200: ("The stream exists, with the same configuration.", *_TAIL, "ETag"),
        409: ("Another stream has the name, or the source cannot be forked.", "Stream-Compacted-Offset"),
        413: ("The body is too large.",),
    },
    (*_SETTINGS, "Stream-Closed", *requests.FORK_HEADERS),
    body=True,
)
async def create_stream(request: Request, backend: Backend, key: StreamKey) -> Response:
    """Create a stream (§5.1), or fork one (§4.2). Succeeds if the stream exists with the same settings."""
    check_new_name(key)
    create_request = await requests.parse_create(request)
    made = await backend.call(create, key, create_request)
    if made.is_new and create_request.body:
        PROCESS.appended(len(create_request.body))
    return responses.created(request, made)


@operation(
    "POST",
    "write",
    {
        200: ("A producer's append is accepted.", *_APPENDED),
        204: ("The append is accepted, or repeats one of the producer's.", *_APPENDED),
        403: ("The producer's epoch is stale, or the token does not grant this.", "Producer-Epoch"),
        409: ("The stream is closed or of another type, or the append is out of sequence.", *_TAIL, *_GAP),
        412: ("`If-Match` or `If-None-Match` fails.", "ETag", "Stream-Next-Offset"),
        413: ("The body is too large.",),
    },
    ("Stream-Closed", "Stream-Seq", *requests.PRODUCER_HEADERS, "If-Match", "If-None-Match", *_CREATION),
    body=True,
)
async def append_to_stream(request: Request, backend: Backend, key: StreamKey) -> Response:
    """Append to a stream, close it, or both (§5.2, §5.3). `Stream-Create` creates a missing stream."""
    append_request = await requests.parse_append(request)
    if PROCESS.spans:
        PROCESS.spans.keep_append(key)
    try:
        try:
            outcome = await backend.append(key, append_request, partial(hang_up, request.receive))
        except (errors.StreamNotFound, errors.SoftDeleted):
            creation = requests.parse_first_append(request, append_request)
            if creation is None:
                raise
            request.scope[requests.CREATES] = True
            outcome = await create_or_append(backend, key, creation)
    except errors.PreconditionFailed:
        if request.scope.get(requests.ACCESS, EVERYTHING).may_read(key):
            raise
        raise errors.PreconditionFailed from None  # Hides the tail from a token that may not read.
    PROCESS.appended(len(append_request.body))
    return responses.appended(append_request, outcome)


async def create_or_append(backend: Backend, key: StreamKey, creation: CreateRequest) -> Outcome:
    """Create the stream with its first append, or append if another writer has created it meanwhile."""
    assert creation.first is not None, "the append is a part of the creation"
    check_new_name(key)
    for _ in range(_MAX_LIVES):
        outcome = await backend.call(create_with_append, key, creation)
        if outcome is not None:
            backend.wake.hub.wake(key)  # The followers of an expired stream.
            return outcome
        with suppress(errors.StreamNotFound, errors.SoftDeleted):
            return await backend.append(key, creation.first)
    raise errors.Busy


@operation("DELETE", "manage", {204: ("The stream is deleted.",)})
async def delete_stream(_: Request, backend: Backend, key: StreamKey) -> Response:
    """Delete a stream (§5.4)."""
    await backend.call(delete, key)
    backend.wake.hub.wake(key)
    return Response(status_code=204, headers=responses.EMPTY)


_KEPT: Final = ("Stream-Retained-Offset", "Stream-Compacted-Offset", "Stream-Snapshot-Offset")


@operation("HEAD", "read", {200: ("The stream exists.", *_TAIL, "ETag", *_SETTINGS, *_KEPT)})
async def stream_metadata(_: Request, backend: Backend, key: StreamKey) -> Response:
    """Get a stream's settings and its tail (§5.5)."""
    return responses.metadata(await backend.call(load_head, key))


@operation(
    "GET",
    "read",
    {
        200: ("Data, events, or nothing yet.", *_READ),
        204: ("Nothing came while waiting, or an EventSource has seen the end.", *_READ),
        304: ("The client has the data already.", *_READ),
        307: ("An EventSource that has seen events continues at `Location`.", "Location"),
    },
    ("offset", "last", "live", "cursor", "where", "access_token", "If-None-Match", "Last-Event-ID"),
    data=True,
)
async def read_stream(
    request: Request, backend: Backend, key: StreamKey, end_error: EndError | None = None
) -> Response:
    """Read a page, wait for the next page, or follow the stream as server-sent events (§5.6 to §5.8)."""
    read_request = requests.parse_read(request)
    if read_request.live is requests.Live.LONG_POLL:
        return await long_poll(request, backend, key, read_request)
    if read_request.live is requests.Live.SSE:
        return await server_sent_events(request, backend, key, read_request, end_error)
    read_from, cursor, last = read_request.read_from, read_request.cursor, read_request.last
    if last is None:
        reading = await backend.call(read, key, read_from, cursor)
    else:
        reading = await backend.call(read_back, key, read_from, last, cursor)
    if read_request.where is not None:
        reading = await selected(reading, read_request.where)
    return responses.caught_up(read_request, reading, backend.stores.clock_ms())


async def long_poll(
    request: Request, backend: Backend, key: StreamKey, read_request: requests.ReadRequest
) -> Response:
    """Serve a long-poll (§5.7)."""
    waiting = read_or_wait(
        backend,
        key,
        read_request.read_from,
        read_request.cursor,
        backend.settings.long_poll_seconds,
        where=read_request.where,
    )
    try:
        with PROCESS.waiting("long-poll"):
            reading = await cancel_on_disconnect(request.receive, waiting)
    except HungUp:
        return Response(status_code=204)  # The client has disconnected.
    return responses.polled(read_request, reading, backend.stores.clock_ms())


async def server_sent_events(
    request: Request,
    backend: Backend,
    key: StreamKey,
    read_request: requests.ReadRequest,
    end_error: EndError | None,
) -> Response:
    """Serve server-sent events (§5.8)."""
    last = requests.last_event_id(request)
    if last is not None and last != requests.single(request, "offset"):
        return responses.resumed(request, last)
    read_from, cursor, gathered = read_request.read_from, read_request.cursor, None
    if "aws.event" in request.scope:
        with PROCESS.waiting("sse"):
            reading, gathered = await gathered_events(backend, key, read_request, end_error)
    else:
        async with backend.first_pages:
            reading = await backend.call(read, key, read_from, cursor, small=True)
            reading = await selected(reading, read_request.where)
    headers = responses.event_stream_headers(read_request, reading)
    if last is not None and last.endswith(CLOSED_ID) and reading.page.closed:
        return Response(status_code=204, headers=headers)  # After a 200 an EventSource would reconnect.
    if gathered is not None:
        return Response(gathered, headers=headers)

    async def counted_events() -> AsyncIterator[bytes]:
        with PROCESS.waiting("sse"):
            async for each in event_stream(backend, read_request, reading, end_error):
                yield each

    return StreamingResponse(counted_events(), headers=headers)
