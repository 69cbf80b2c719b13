"""Live reads: long-poll (§5.7) and server-sent events (§5.8)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final

from tidemark.http.backend import Backend
from tidemark.http.requests import ReadRequest
from tidemark.log.read import PAGE_BYTES, Page
from tidemark.log.records import StreamRecord
from tidemark.observability.metrics import PROCESS, WAKE_SECONDS
from tidemark.protocol.content_type import ContentType
from tidemark.protocol.cursor import decide_cursor
from tidemark.protocol.errors import ProtocolError, StreamNotFound
from tidemark.protocol.expiry import deadline_ms, is_expired
from tidemark.protocol.sse import (
    HEARTBEAT,
    render_control_event,
    render_data_event,
    render_data_slices,
    text_end,
)
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.read import SMALL_PAGE_BYTES, Reading, read, read_on
from tidemark.service.stores import Stores
from tidemark.wake.hub import Bell
from tidemark.wake.wake import Wake

#: A comment this often keeps proxies from dropping a silent connection.
HEARTBEAT_SECONDS: Final = 15.0
#: Where events are handed on only once they are complete, they must fit a Lambda answer of 6 MB,
#: in base64. As events, bytes grow by a third, and lines by what stands in front of them.
BUFFERED_BYTES: Final = 4_600_000
#: And such an answer takes that long at least. The official npm client takes three answers in a row that came
#: within a second for a broken proxy's, and stops without a word.
GATHERING_SECONDS: Final = 1.0
#: What an event of a streamed answer holds, unless a single message is larger: that much of it is in
#: memory for a client that does not read.
PIECE_BYTES: Final = 16 * 1024


async def read_or_wait(backend: Backend, key: StreamKey, asked: ReadRequest, wait_seconds: float) -> Reading:
    """What is there at the offset, or else what comes within `wait_seconds`.

    Raises StreamNotFound, also for a stream that ends by itself meanwhile.
    """
    deadline = time.monotonic() + wait_seconds
    with backend.hub.listen(key) as bell:
        reading = await backend.run(lambda: read(backend.stores, key, asked.read_from))
        if _is_news(reading) or wait_seconds <= 0:
            return reading
        follower = Follower(backend, bell, reading)
        return await follower.next(deadline) or await follower.latest()


def _is_news(reading: Reading) -> bool:
    page = reading.page
    return page.has_data or page.closed or not page.up_to_date


class Follower:
    """One request that follows a stream from where `reading` ended.

    Looks, waits for the bell, looks again. Before it looks it makes sure that appends ring
    the bell, and after the last wait it looks once more: that order is what no append can
    slip through (`docs/live.md`).
    """

    def __init__(self, backend: Backend, bell: Bell, reading: Reading, *, small: bool = False) -> None:
        self._backend = backend
        self._bell = bell
        self._small = small
        self._reading = _behind(reading)
        self._at_tail = reading.page.up_to_date
        self._look_at = -math.inf
        self._rung = False
        self._has_waited = False

    async def next(self, until: float) -> Reading | None:
        """The next page with news, or None at `until`, by the monotonic clock.
        Raises StreamNotFound when the stream ends without being closed."""
        while True:
            reading = await self._news()
            if reading is not None:
                return reading
            now = time.monotonic()
            if now >= until:
                return None
            self._has_waited = True
            self._rung = await self._bell.wait(min(until, self._look_at) - now)

    async def _news(self) -> Reading | None:
        """What there is to tell, if it is time to look: because it rang, or has not for long."""
        if (self._rung or (self._small and not self._at_tail)) and (known := self._known()):
            return known
        if not self._rung and time.monotonic() < self._look_at:
            return None
        was_behind = not self._at_tail
        reading = await self.look()
        return reading if _is_news(reading) or was_behind else None

    def _known(self) -> Reading | None:
        """What this process has written itself, or read already, which nobody needs to be asked
        for: a batch never changes. What else has rung is not known, so the next thing to do is to
        look. Only what has rung here reaches the tail."""
        record, start = self._reading.record, self._reading.page.start
        limit_bytes = SMALL_PAGE_BYTES if self._small else PAGE_BYTES
        batches = self._backend.stores.recent.chain(record.incarnation, start, limit_bytes)
        if not batches:
            return None
        at_tail = self._rung and batches[-1].end - start <= limit_bytes
        if batches[-1].end - start > limit_bytes and len(batches) > 1:
            batches.pop()
        self._look_at = -math.inf
        page = Page(start, tuple(batches), up_to_date=at_tail, closed=at_tail and batches[-1].after.closed)
        return self._follow(Reading(record, page))

    async def latest(self) -> Reading:
        """Where the stream has got to, looked up after the last wait has ended."""
        return await self.look() if self._has_waited else self._reading

    async def look(self) -> Reading:
        backend, seen = self._backend, self._reading
        name = (seen.record.incarnation, seen.page.start, self._at_tail, self._small)
        wake = backend.wake if self._at_tail else None
        call = partial(_look, backend.look_stores, wake, seen, small=self._small)
        reading, patience_seconds = await backend.look(name, call)
        self._look_at = time.monotonic() + patience_seconds
        return self._follow(reading)

    def _follow(self, reading: Reading) -> Reading:
        self._rung = self._has_waited = False
        self._reading, self._at_tail = _behind(reading), reading.page.up_to_date
        self._bell.has_read(reading.record.incarnation, reading.page.end)
        return reading


def _behind(reading: Reading) -> Reading:
    """The place behind a page, without its bytes: a reader may wait there for long."""
    return Reading(reading.record, Page(reading.page.end, (), up_to_date=True))


def _look(stores: Stores, wake: Wake | None, seen: Reading, *, small: bool = False) -> tuple[Reading, float]:
    """What there is behind `seen`, and how long to wait for a ring if there is nothing.

    Without `wake` there is more to read at once, so nothing needs to ring.
    """
    patience_seconds = wake.expect(seen.record.incarnation) if wake else 0.0
    seen = _check_expiry(stores, seen)
    reading = read_on(stores, seen, small=small)
    return reading, min(patience_seconds, _life_seconds(stores, reading))


def _check_expiry(stores: Stores, seen: Reading) -> Reading:
    """A stream that ends by itself rings nothing, and shows in its item alone.

    Who waits neither renews it nor lets it go as long as others do. Raises StreamNotFound.
    """
    record = seen.record
    if not is_expired(record.expiry, record.used_ms, stores.clock_ms()):
        return seen
    known = load_head(stores, record.key)
    if known.record.incarnation != record.incarnation:
        raise StreamNotFound
    return replace(seen, record=replace(record, touched_ms=known.touched_ms))


def _life_seconds(stores: Stores, reading: Reading) -> float:
    """How long until the stream may have ended by itself."""
    deadline = deadline_ms(reading.record.expiry, reading.record.used_ms)
    return math.inf if deadline is None else max(0, deadline - stores.clock_ms()) / 1000


@dataclass(slots=True)
class EventStream:
    """Turns pages into events. Remembers what one connection needs to: the client's cursor
    and the one given last, and the beginning of a character whose end has not been written yet.

    Cursors follow the clock, not the events: whoever comes back from here at the same time
    comes with the same one, and a cache collapses them.
    """

    client_cursor: int | None
    limit_bytes: float = math.inf
    cursor: int = 0
    half: bytes = b""
    is_cut: bool = False

    def render(self, reading: Reading, now_ms: int) -> bytes:
        """The events for one page: its data, if any, and a control event.

        Of data beyond the limit a part is shown, up to an offset that can be read on from.
        """
        page, content_type = reading.page, reading.record.content_type
        stored = self.half + reading.data
        whole = len(stored) if page.closed else _whole_end(content_type, stored)
        data = _data_event(content_type, stored[:whole])
        self.is_cut = len(data) > self.limit_bytes and not content_type.is_json
        while self.is_cut and len(data) > self.limit_bytes:
            whole = _whole_end(content_type, stored[: whole // 2])
            data = _data_event(content_type, stored[:whole])
        self.half = stored[whole:]
        self.cursor = max(self.cursor, decide_cursor(self.client_cursor, now_ms))
        return data + render_control_event(
            page.end - len(self.half),
            self.cursor,
            up_to_date=page.up_to_date and not self.is_cut,
            closed=page.closed and not self.is_cut,
        )

    def pieces(self, reading: Reading, now_ms: int) -> Iterator[Iterator[bytes]]:
        """The same for a client that may stop reading: event by event, each in pieces, and none of
        them made before the one before it was taken. Each event can be gone on from."""
        page, content_type = reading.page, reading.record.content_type
        stored = self.half + reading.data
        whole = len(stored) if page.closed else _whole_end(content_type, stored)
        self.half = stored[whole:]
        self.cursor = max(self.cursor, decide_cursor(self.client_cursor, now_ms))
        begins_at, up_to_date, closed = page.end - len(stored), page.up_to_date, page.closed
        cuts = _message_cuts(page, whole) if content_type.is_json else _byte_cuts(content_type, stored, whole)
        del page, reading  # The bytes are held once.
        begin = 0
        for cut in cuts if whole else (0,):
            control = render_control_event(
                begins_at + cut,
                self.cursor,
                up_to_date=up_to_date and cut == whole,
                closed=closed and cut == whole,
            )
            yield _event_pieces(content_type, stored[begin:cut], control)
            begin = cut


def _event_pieces(content_type: ContentType, stored: bytes, control: bytes) -> Iterator[bytes]:
    if not stored:
        yield control
        return
    if len(stored) <= PIECE_BYTES:
        yield render_data_event(content_type, stored) + control
        return
    yield from render_data_slices(content_type, stored, PIECE_BYTES)
    yield control


def _message_cuts(page: Page, whole: int) -> Iterator[int]:
    """Where the events of a JSON page end: at messages, before they are too large if possible."""
    begin, end = 0, -page.skip
    for length in chain.from_iterable(batch.lengths for batch in page.batches):
        if end + length - begin > PIECE_BYTES and end > begin:
            yield end
            begin = end
        end += length
    yield whole


def _byte_cuts(content_type: ContentType, stored: bytes, whole: int) -> Iterator[int]:
    """Where the events of other pages end: text between characters, and not inside a CRLF."""
    begin = 0
    while whole - begin > PIECE_BYTES:
        cut = begin + PIECE_BYTES
        if content_type.is_text:
            cut = begin + text_end(stored[begin:cut])
            cut -= stored[cut - 1 : cut + 1] == b"\r\n"
        yield cut
        begin = cut
    yield whole


def _whole_end(content_type: ContentType, stored: bytes) -> int:
    """Where the last whole character ends, in text; JSON is cut at messages, bytes anywhere."""
    return text_end(stored) if content_type.is_text and not content_type.is_json else len(stored)


def _data_event(content_type: ContentType, stored: bytes) -> bytes:
    return render_data_event(content_type, stored) if stored else b""


def count_wake(reading: Reading, waited_since_ms: int, now_ms: int) -> None:
    """Only what was appended after the wait began has woken anybody."""
    batches = reading.page.batches
    if batches and batches[0].time_ms >= waited_since_ms:
        PROCESS.observe(WAKE_SECONDS, max(0, now_ms - batches[0].time_ms) / 1000)


async def event_stream(
    backend: Backend, key: StreamKey, asked: ReadRequest, reading: Reading
) -> AsyncIterator[bytes]:
    """Events from `reading` on, for about a minute (§10.2); a client reconnects from the
    last control event. A stream that ends meanwhile, or cannot be read, ends the events."""
    events = EventStream(asked.cursor)
    deadline = time.monotonic() + backend.settings.sse_seconds
    with backend.hub.listen(key) as bell:
        follower = Follower(backend, bell, reading, small=True)
        sent_ms, is_closed = backend.stores.clock_ms(), reading.page.closed
        pending = events.pieces(reading, sent_ms)
        del reading  # Whoever does not read holds what is not sent yet, and no more.
        while True:
            for event in pending:
                for piece in event:
                    yield piece
                if time.monotonic() >= deadline:
                    return
                # A client that takes all at once must not keep the others from being served.
                await asyncio.sleep(0)
            if is_closed:
                return
            try:
                later = await follower.next(min(deadline, time.monotonic() + HEARTBEAT_SECONDS))
            except ProtocolError:
                return
            if later is None:
                if time.monotonic() >= deadline:
                    return
                yield HEARTBEAT
                continue
            waited_since_ms, sent_ms, is_closed = sent_ms, backend.stores.clock_ms(), later.page.closed
            count_wake(later, waited_since_ms, sent_ms)
            pending = events.pieces(later, sent_ms)
            del later


async def gathered_events(backend: Backend, key: StreamKey, asked: ReadRequest) -> tuple[StreamRecord, bytes]:
    """A complete event stream, for an HTTP API, which hands on an answer only once it is: what is
    there or comes within a moment, and where to come again. Raises as `read_or_wait` does."""
    began, patience_seconds = time.monotonic(), backend.settings.sse_buffered_seconds
    began_ms = backend.stores.clock_ms()
    reading = await read_or_wait(backend, key, asked, patience_seconds)
    events = EventStream(asked.cursor, BUFFERED_BYTES)
    rendered = events.render(reading, backend.stores.clock_ms())
    left_seconds = began + min(patience_seconds, GATHERING_SECONDS) - time.monotonic()
    if left_seconds > 0 and not reading.page.closed:
        await asyncio.sleep(left_seconds)
        rendered += await _gathered_since(backend, events, reading, BUFFERED_BYTES - len(rendered))
    count_wake(reading, began_ms, backend.stores.clock_ms())
    return reading.record, rendered


async def _gathered_since(backend: Backend, events: EventStream, reading: Reading, room_bytes: int) -> bytes:
    """The events for what has come since, where they fit; otherwise the next answer has them."""
    if events.is_cut or not reading.page.up_to_date:
        return b""
    try:
        later = await backend.run(lambda: read_on(backend.stores, _behind(reading)))
    except ProtocolError:
        return b""
    rendered = events.render(later, backend.stores.clock_ms()) if _is_news(later) else b""
    return rendered if len(rendered) <= room_bytes else b""
