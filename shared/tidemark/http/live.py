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
from tidemark.wake.follow import LiveRead, read_or_wait

#: A comment this often keeps proxies from dropping a silent connection.
HEARTBEAT_SECONDS: Final = 15.0
#: If events are sent only once they are complete, they must fit a Lambda response of 6 MB, in base64. As
#: events, bytes grow by a third, and lines by what stands in front of them.
BUFFERED_BYTES: Final = 4_600_000
#: And such an answer takes that long at least. The official npm client takes three answers in a row that came
#: within a second for a broken proxy's, and stops without a word.
GATHERING_SECONDS: Final = 1.0
#: The most bytes in an event of a streamed response, unless a single message is larger: that much is in
#: memory for a client that does not read.
PIECE_BYTES: Final = 16 * 1024

EndError = Callable[[], Awaitable[str | None]]
"""Returns why the answer of an upstream, which is closed by now, is not whole. Raises ProtocolError."""


@dataclass(slots=True)
class EventStream:
    """Turns pages into events. Remembers the client's cursor and the one given last, where the pages end, and
    the beginning of a character or line end that is not written whole yet.

    Cursors follow the clock, not the events: clients that reconnect from here at the same time send the same
    cursor, and a cache collapses their requests.
    """

    client_cursor: int | None
    end_error: EndError | None
    cursor: int = 0
    end: int = 0
    half: bytes = b""

    def events(self, reading: Reading, now_ms: int) -> Iterator[Iterator[bytes]]:
        """The events of a page, each in pieces: its data, if any, and a control event. A client can resume
        after any event. An event is made only when the one before it was taken: a client may stop reading."""
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
        del page, reading  # The bytes are held once.
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
        """The event behind all others of a closed stream. The close has an event of its own because the
        official npm client 0.2.7 reads one event ahead of its caller, and ends at a close: it would lose data
        that comes with the close."""
        error = await self.end_error() if self.end_error else None
        return sse.render_close_event(self.end, self.cursor, error)


def _message_cuts(page: Page) -> Iterator[tuple[int, int]]:
    """The ends of a JSON page's events, in its bytes and as offsets: at messages, before they are too large
    if possible."""
    begin, end, offset = 0, -page.skip, page.start
    for batch in page.batches:
        for length, behind in zip(batch.lengths, batch.each_message_end(), strict=True):
            if end + length - begin > PIECE_BYTES and end > begin:
                yield end, offset
                begin = end
            end, offset = end + length, behind
    yield end, page.end


def _byte_cuts(content_type: ContentType, stored: bytes, whole: int) -> Iterator[int]:
    """The ends of other pages' events: text between characters and line ends."""
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
    """Events from `reading` on, for about a minute (§10.2); a client reconnects from the
    last control event. A stream that ends meanwhile, or cannot be read, ends the events."""
    stream = EventStream(request.cursor, end_error)
    deadline = time.monotonic() + backend.settings.sse_seconds
    with closing(LiveRead(backend, reading, small=True)) as live:
        is_closed = reading.page.closed
        pending = stream.events(reading, backend.stores.clock_ms())
        del reading  # A client that does not read holds only unsent data in memory.
        while True:
            for event in pending:
                for piece in event:
                    yield piece
                    # A client that takes all at once must not keep the others from being served.
                    await asyncio.sleep(0)
                if time.monotonic() >= deadline and not is_closed:
                    return
            try:
                if is_closed:
                    yield await stream.close()
                    return
                later = await live.next(min(deadline, time.monotonic() + HEARTBEAT_SECONDS))
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
    """A complete event stream, for an HTTP API, which sends a response only once it is complete: the data
    that is there or comes within a moment, as far as it fits. Raises as `read_or_wait` does."""
    began, patience_seconds = time.monotonic(), backend.settings.sse_buffered_seconds
    reading = await read_or_wait(backend, key, request.read_from, request.cursor, patience_seconds)
    stream, rendered = EventStream(request.cursor, end_error), bytearray()

    def render(page: Reading) -> bool:
        """Whether all of its events fit."""
        for event in map(b"".join, stream.events(page, backend.stores.clock_ms())):
            if rendered and len(rendered) + len(event) > BUFFERED_BYTES:
                return False
            rendered.extend(event)
        return page.page.up_to_date

    latest, may_go_on = reading, render(reading)
    if stream.half and stream.half == reading.data:
        # No client gets half a character or line end, and a client without data would come back at once.
        with closing(LiveRead(backend, reading)) as live, suppress(ProtocolError):
            rest = await live.next(began + patience_seconds)
            if rest is not None:
                latest, may_go_on = rest, render(rest)
    left_seconds = began + min(patience_seconds, GATHERING_SECONDS) - time.monotonic()
    if left_seconds > 0 and not latest.page.closed:
        await asyncio.sleep(left_seconds)
        if may_go_on:
            with suppress(ProtocolError):
                later = await backend.call(read_on, latest)
                if later.is_news:
                    latest, may_go_on = later, render(later)
    if latest.page.closed and may_go_on:
        rendered.extend(await stream.close())
    return reading, bytes(rendered)
