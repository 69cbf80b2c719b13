"""Live reads as server-sent events (§5.8). `wake/follow.py` waits for the pages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tidemark.http.backend import Backend
from tidemark.http.error_handlers import note_fault
from tidemark.http.requests import ReadRequest
from tidemark.log.read import Page
from tidemark.protocol import sse
from tidemark.protocol.caching import decide_cursor
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.messages import ContentType
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.read import Reading, read_on
from tidemark.wake.follow import LiveRead, read_or_wait, selected

#: The interval of comments that keep proxies from dropping a silent connection.
HEARTBEAT_SECONDS: Final = 15.0
#: The most bytes of a buffered event stream, which must fit a Lambda response of 6 MB in base64.
BUFFERED_BYTES: Final = 4_600_000
#: The shortest duration of a buffered event stream. After three responses in a row that each took less than a
#: second, the official npm client assumes a broken proxy and stops without an error.
GATHERING_SECONDS: Final = 1.0
#: The most bytes in an event of a streamed response, unless one message is larger. A client that does not
#: read keeps this much in memory.
PIECE_BYTES: Final = 16 * 1024

EndError = Callable[[], Awaitable[str | None]]
"""Returns why the closed response of an upstream is incomplete, or None. Raises ProtocolError."""


@dataclass(slots=True)
class EventStream:
    """Turns pages into events. Keeps the client's cursor, the last cursor sent, the end of the last page, and
    in `half` the beginning of a character or line end that is not complete yet.

    Cursors depend on the clock, not on the events, so that clients which reconnect at the same time send the
    same cursor, and a cache collapses their requests.
    """

    client_cursor: int | None
    end_error: EndError | None
    cursor: int = 0
    end: int = 0
    half: bytes = b""

    def events(self, reading: Reading, now_ms: int) -> Iterator[Iterator[bytes]]:
        """Yield the events of a page, each in pieces: the data, if any, and a control event. A client can
        resume after any event. Events are rendered lazily, because a client may stop reading."""
        page, content_type = reading.page, reading.record.content_type
        stored = self.half + reading.data
        # Text ends with a whole character and line end, JSON with a message; bytes are cut anywhere.
        is_cut = content_type.is_text and not content_type.is_json and not page.closed
        whole = sse.text_end(stored) if is_cut else len(stored)
        self.half = stored[whole:]
        own = decide_cursor(self.client_cursor, now_ms, reading.record.incarnation)
        self.cursor = max(self.cursor, own)
        begins_at, self.end = page.end - len(stored), page.end
        up_to_date = page.up_to_date and not self.half
        cuts: Iterable[tuple[int, int]] = () if page.closed else ((0, begins_at),)
        if whole and content_type.is_json:
            cuts = _message_cuts(page)
        elif whole:
            cuts = ((cut, begins_at + cut) for cut in _byte_cuts(content_type, stored, whole))
        del page, reading  # `stored` is the only copy of the bytes in memory.
        begin = 0
        for cut, offset in cuts:
            control = sse.render_control_event(offset, self.cursor, up_to_date=up_to_date and cut == whole)
            data, begin = stored[begin:cut], cut
            if len(data) > PIECE_BYTES:
                slices = sse.render_data_slices(content_type, data, offset, self.cursor, PIECE_BYTES)
                yield chain(slices, (control,))
            else:
                event = sse.render_data_event(content_type, data, offset, self.cursor) if data else b""
                yield iter((event + control,))

    async def close(self) -> bytes:
        """Render the last event of a closed stream. The close is a separate event, because the official npm
        client 0.2.7 reads one event ahead of its caller and stops at a close: data in the same event would be
        lost."""
        error = await self.end_error() if self.end_error else None
        return sse.render_close_event(self.end, self.cursor, error)


def _message_cuts(page: Page) -> Iterator[tuple[int, int]]:
    """Yield the ends of a JSON page's events, as positions in its bytes and as offsets. Each event ends with
    a message, and has at most `PIECE_BYTES` unless one message is larger."""
    begin, end, offset = 0, -page.skip, page.start
    for batch in page.batches:
        for length, behind in zip(batch.lengths, batch.each_message_end(), strict=True):
            if end + length - begin > PIECE_BYTES and end > begin:
                yield end, offset
                begin = end
            end, offset = end + length, behind
    yield end, page.end


def _byte_cuts(content_type: ContentType, stored: bytes, whole: int) -> Iterator[int]:
    """Yield the ends of other pages' events. Text is cut between characters, not inside a line end."""
    begin = 0
    while whole - begin > PIECE_BYTES:
        cut = begin + PIECE_BYTES
        if content_type.is_text:
            cut = begin + sse.text_end(stored[begin:cut])
        yield cut
        begin = cut
    yield whole


async def event_stream(
    backend: Backend, request: ReadRequest, reading: Reading, end_error: EndError | None
) -> AsyncIterator[bytes]:
    """Yield events from `reading` on, for about a minute (§10.2); a client reconnects from the last control
    event. The events end early if the stream is deleted, or cannot be read."""
    stream = EventStream(request.cursor, end_error)
    deadline = time.monotonic() + backend.settings.sse_seconds
    with closing(LiveRead(backend, reading, small=True)) as live:
        is_closed = reading.page.closed
        pending = stream.events(reading, backend.stores.clock_ms())
        del reading  # Only unsent data stays in memory for a client that does not read.
        while True:
            for event in pending:
                for piece in event:
                    yield piece
                    # Let other clients be served, even if this one reads everything at once.
                    await asyncio.sleep(0)
                if time.monotonic() >= deadline and not is_closed:
                    return
            try:
                if is_closed:
                    yield await stream.close()
                    return
                until = min(deadline, time.monotonic() + HEARTBEAT_SECONDS)
                where = request.where
                later = await (live.next_match(until, where) if where else live.next(until))
            except ProtocolError as error:
                note_fault("an event stream", error.status, error)
                return
            if later is None:
                if time.monotonic() >= deadline:
                    return
                yield sse.HEARTBEAT
                continue
            is_closed = later.page.closed
            pending = stream.events(later, backend.stores.clock_ms())
            del later


async def gathered_events(
    backend: Backend, key: StreamKey, request: ReadRequest, end_error: EndError | None
) -> tuple[Reading, bytes]:
    """Render a complete event stream, for an HTTP API, which sends no response before its end: the data that
    exists or arrives within a second, up to `BUFFERED_BYTES`. Raises like `read_or_wait`."""
    began, patience_seconds = time.monotonic(), backend.settings.sse_buffered_seconds
    where = request.where
    reading = await read_or_wait(
        backend, key, request.read_from, request.cursor, patience_seconds, where=where
    )
    stream, rendered = EventStream(request.cursor, end_error), bytearray()

    def render(page: Reading) -> bool:
        """Add the events that fit. Return whether all of them fit and the page reaches the tail."""
        for event in map(b"".join, stream.events(page, backend.stores.clock_ms())):
            if rendered and len(rendered) + len(event) > BUFFERED_BYTES:
                return False
            rendered.extend(event)
        return page.page.up_to_date

    latest, may_go_on = reading, render(reading)
    if stream.half and stream.half == reading.data:
        # Only half a character or line end arrived, which is not sent; without data a client returns at once.
        with closing(LiveRead(backend, reading)) as live, suppress(ProtocolError):
            rest = await live.next(began + patience_seconds)
            if rest is not None:
                latest, may_go_on = rest, render(rest)
    left_seconds = began + min(patience_seconds, GATHERING_SECONDS) - time.monotonic()
    if left_seconds > 0 and not latest.page.closed:
        await asyncio.sleep(left_seconds)
        if may_go_on:
            with suppress(ProtocolError):
                later = await selected(await backend.call(read_on, latest), where)
                if later.is_news:
                    latest, may_go_on = later, render(later)
    if latest.page.closed and may_go_on:
        rendered.extend(await stream.close())
    return reading, bytes(rendered)
