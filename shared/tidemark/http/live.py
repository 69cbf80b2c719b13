"""Live reads: long-poll (§5.7) and server-sent events (§5.8)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidemark.http.backend import Backend
from tidemark.http.requests import ReadRequest
from tidemark.log.read import PAGE_BYTES, Page
from tidemark.observability.metrics import PROCESS, WAKE_SECONDS
from tidemark.protocol.caching import decide_cursor
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.expiry import renew_waiting_at_ms
from tidemark.protocol.messages import ContentType
from tidemark.protocol.sse import (
    HEARTBEAT,
    render_control_event,
    render_data_event,
    render_data_slices,
    text_end,
)
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.read import SMALL_PAGE_BYTES, Reading, read, read_on, renew_while_waiting
from tidemark.service.stores import Stores
from tidemark.wake.hub import Listener
from tidemark.wake.wake import Wake

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


async def read_or_wait(
    backend: Backend, key: StreamKey, request: ReadRequest, wait_seconds: float
) -> Reading:
    """Read the data at the offset, or wait up to `wait_seconds` for it.

    Raises StreamNotFound, also if the stream ends while the request waits.
    """
    deadline = time.monotonic() + wait_seconds
    with backend.hub.listen(key) as listener:
        reading = await backend.call(read, key, request.read_from, request.cursor)
        if _is_news(reading) or wait_seconds <= 0:
            return reading
        follower = Follower(backend, listener, reading)
        return await follower.next(deadline) or await follower.latest()


def _is_news(reading: Reading) -> bool:
    page = reading.page
    return page.has_data or page.closed or not page.up_to_date


class Follower:
    """One request that follows a stream from where `reading` ended.

    It polls the log, waits until it is woken, and polls again. Before it polls it makes sure that
    appends wake it, and after its last wait it polls once more: with that order no append goes
    unnoticed (`docs/live.md`).
    """

    def __init__(
        self, backend: Backend, listener: Listener, reading: Reading, *, small: bool = False
    ) -> None:
        self._backend = backend
        self._listener = listener
        self._small = small
        self._reading = _without_bytes(reading)
        self._at_tail = reading.page.up_to_date
        self._poll_at = -math.inf
        self._woken = False
        self._has_waited = False

    async def next(self, until: float) -> Reading | None:
        """The next page with news, or None at `until`, by the monotonic clock.
        Raises StreamNotFound when the stream ends without being closed."""
        while True:
            if (self._woken or (self._small and not self._at_tail)) and (recent := self._recent()):
                return recent
            if self._woken or time.monotonic() >= self._poll_at:
                was_behind = not self._at_tail
                reading = await self._poll()
                if _is_news(reading) or was_behind:
                    return reading
            now = time.monotonic()
            if now >= until:
                return None
            self._has_waited = True
            self._woken = await self._listener.wait(min(until, self._poll_at) - now)

    def _recent(self) -> Reading | None:
        """The data that this process has written or read already. It needs no storage call, because a batch
        never changes. Other processes may have written since, so the next step is to poll. Only a request
        that was woken here knows that the page reaches the tail."""
        record, start = self._reading.record, self._reading.page.start
        if start < record.compacted:
            return None  # What was kept may be from before the compaction.
        limit_bytes = SMALL_PAGE_BYTES if self._small else PAGE_BYTES
        batches = self._backend.stores.recent.chain(record.incarnation, start, limit_bytes)
        if not batches:
            return None
        at_tail = self._woken and batches[-1].end - start <= limit_bytes
        if batches[-1].end - start > limit_bytes and len(batches) > 1:
            batches.pop()
        self._poll_at = -math.inf
        closed = batches[-1].after.closed  # Nothing follows it; a poll behind it would not find it again.
        page = Page(start, tuple(batches), at_tail or closed, closed)
        return self._follow(Reading(record, page))

    async def latest(self) -> Reading:
        """The current end of the stream: polled after the last wait has ended."""
        return await self._poll() if self._has_waited else self._reading

    async def _poll(self) -> Reading:
        backend, seen = self._backend, self._reading
        due_ms = renew_waiting_at_ms(seen.record.expiry, seen.record.used_ms)
        if due_ms is not None and backend.stores.clock_ms() >= due_ms:
            # One renewal for all readers, whatever they read next.
            renew = partial(renew_while_waiting, backend.stores, seen.record)
            renewed = await backend.poll(("renew", seen.record.incarnation), renew)
            seen = replace(seen, record=renewed)
        name = (seen.record.incarnation, seen.page.start, self._at_tail, self._small)
        wake = backend.wake if self._at_tail else None
        call = partial(poll, backend.stores, wake, seen, small=self._small)
        reading, poll_seconds = await backend.poll(name, call)
        self._poll_at = time.monotonic() + poll_seconds
        return self._follow(reading)

    def _follow(self, reading: Reading) -> Reading:
        self._woken = self._has_waited = False
        self._reading, self._at_tail = _without_bytes(reading), reading.page.up_to_date
        self._listener.has_read(reading.record.incarnation, reading.page.end)
        return reading


def _without_bytes(reading: Reading) -> Reading:
    """The place behind a page, without its bytes: a reader may wait there for long. The page's batches
    have renewed a sliding expiry."""
    record, page = reading.record, reading.page
    if record.expiry.ttl_seconds is not None:
        record = replace(record, touched_ms=max(record.touched_ms, page.written_ms))
    return Reading(record, Page(page.end, (), up_to_date=True))


def poll(stores: Stores, wake: Wake | None, seen: Reading, *, small: bool = False) -> tuple[Reading, float]:
    """Read the data since `seen`. Also returns the most seconds until the next poll.

    First subscribes this process to wakes for later appends, unless the reader is still behind
    (`wake` is None). The end of a window wakes nobody, so the seconds returned do not pass it.
    Raises StreamNotFound or SoftDeleted.
    """
    poll_seconds = wake.ensure_subscribed(seen.record.incarnation) if wake else 0.0
    reading = read_on(stores, seen, small=small)
    due_ms = renew_waiting_at_ms(reading.record.expiry, reading.record.used_ms)
    if due_ms is not None:
        poll_seconds = min(poll_seconds, max(0, due_ms - stores.clock_ms()) / 1000)
    return reading, poll_seconds


@dataclass(slots=True)
class EventStream:
    """Turns pages into events. Remembers what one connection needs to: the client's cursor
    and the one given last, and the beginning of a character or line end that is not written whole yet.

    Cursors follow the clock, not the events: clients that reconnect from here at the same time send the same
    cursor, and a cache collapses their requests.
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
        begins_at = page.end - len(stored)
        whole = len(stored) if page.closed else _characters_end(content_type, stored)
        own = decide_cursor(self.client_cursor, now_ms, reading.record.incarnation)
        self.cursor = max(self.cursor, own)
        data = self._data_event(content_type, stored[:whole], begins_at + whole)
        self.is_cut = len(data) > self.limit_bytes and not content_type.is_json
        while self.is_cut and len(data) > self.limit_bytes:
            whole = _characters_end(content_type, stored[: whole // 2])
            data = self._data_event(content_type, stored[:whole], begins_at + whole)
        self.half = stored[whole:]
        return data + render_control_event(
            begins_at + whole,
            self.cursor,
            up_to_date=page.up_to_date and not self.half,
            closed=page.closed and not self.is_cut,
        )

    def pieces(self, reading: Reading, now_ms: int) -> Iterator[Iterator[bytes]]:
        """The same for a client that may stop reading: event by event, each in pieces. An event is
        made only when the one before it was taken. A client can resume after any event."""
        page, content_type = reading.page, reading.record.content_type
        stored = self.half + reading.data
        whole = len(stored) if page.closed else _characters_end(content_type, stored)
        self.half = stored[whole:]
        own = decide_cursor(self.client_cursor, now_ms, reading.record.incarnation)
        self.cursor = max(self.cursor, own)
        begins_at, closed = page.end - len(stored), page.closed
        up_to_date = page.up_to_date and not self.half
        cuts: Iterable[tuple[int, int]] = ((0, begins_at),)
        if whole and content_type.is_json:
            cuts = _message_cuts(page)
        elif whole:
            cuts = ((cut, begins_at + cut) for cut in _byte_cuts(content_type, stored, whole))
        del page, reading  # The bytes are held once.
        begin = 0
        for cut, offset in cuts:
            is_last = cut == whole
            control = render_control_event(
                offset, self.cursor, up_to_date=up_to_date and is_last, closed=closed and is_last
            )
            yield self._event_pieces(content_type, stored[begin:cut], offset, control)
            begin = cut

    def _event_pieces(
        self, content_type: ContentType, stored: bytes, next_offset: int, control: bytes
    ) -> Iterator[bytes]:
        if len(stored) <= PIECE_BYTES:
            yield self._data_event(content_type, stored, next_offset) + control
            return
        yield from render_data_slices(content_type, stored, next_offset, self.cursor, PIECE_BYTES)
        yield control

    def _data_event(self, content_type: ContentType, stored: bytes, next_offset: int) -> bytes:
        return render_data_event(content_type, stored, next_offset, self.cursor) if stored else b""


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
            cut = begin + text_end(stored[begin:cut])
        yield cut
        begin = cut
    yield whole


def _characters_end(content_type: ContentType, stored: bytes) -> int:
    """The end of the last whole character or line end of text; JSON is cut at messages, bytes anywhere."""
    return text_end(stored) if content_type.is_text and not content_type.is_json else len(stored)


def count_wake(reading: Reading, waited_since_ms: int, now_ms: int) -> None:
    """Only what was appended after the wait began has woken anybody."""
    batches = reading.page.batches
    if batches and batches[0].time_ms >= waited_since_ms:
        PROCESS.observe(WAKE_SECONDS, max(0, now_ms - batches[0].time_ms) / 1000)


async def event_stream(
    backend: Backend, key: StreamKey, request: ReadRequest, reading: Reading
) -> AsyncIterator[bytes]:
    """Events from `reading` on, for about a minute (§10.2); a client reconnects from the
    last control event. A stream that ends meanwhile, or cannot be read, ends the events."""
    events = EventStream(request.cursor)
    deadline = time.monotonic() + backend.settings.sse_seconds
    with backend.hub.listen(key) as listener:
        follower = Follower(backend, listener, reading, small=True)
        sent_ms, is_closed = backend.stores.clock_ms(), reading.page.closed
        pending = events.pieces(reading, sent_ms)
        del reading  # A client that does not read holds only unsent data in memory.
        while True:
            for event in pending:
                for piece in event:
                    yield piece
                    # A client that takes all at once must not keep the others from being served.
                    await asyncio.sleep(0)
                if time.monotonic() >= deadline:
                    return
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


async def gathered_events(backend: Backend, key: StreamKey, request: ReadRequest) -> tuple[Reading, bytes]:
    """A complete event stream, for an HTTP API, which sends a response only once it is complete: the data
    that is there or comes within a moment, and the offset to ask from next. Raises as `read_or_wait` does."""
    began, patience_seconds = time.monotonic(), backend.settings.sse_buffered_seconds
    began_ms = backend.stores.clock_ms()
    reading = await read_or_wait(backend, key, request, patience_seconds)
    events = EventStream(request.cursor, BUFFERED_BYTES)
    rendered = events.render(reading, backend.stores.clock_ms())
    if events.half and events.half == reading.data:
        rest = await _other_half(backend, reading, began + patience_seconds)
        if rest is not None:
            reading, rendered = rest, rendered + events.render(rest, backend.stores.clock_ms())
    left_seconds = began + min(patience_seconds, GATHERING_SECONDS) - time.monotonic()
    if left_seconds > 0 and not reading.page.closed:
        await asyncio.sleep(left_seconds)
        rendered += await _gathered_since(backend, events, reading, BUFFERED_BYTES - len(rendered))
    count_wake(reading, began_ms, backend.stores.clock_ms())
    return reading, rendered


async def _other_half(backend: Backend, reading: Reading, until: float) -> Reading | None:
    """What comes behind half a character or line end, which nobody was shown: a client that got no data would
    come back at once."""
    with backend.hub.listen(reading.record.key) as listener, suppress(ProtocolError):
        return await Follower(backend, listener, reading).next(until)
    return None


async def _gathered_since(backend: Backend, events: EventStream, reading: Reading, room_bytes: int) -> bytes:
    """The events for what has come since, where they fit; otherwise the next answer has them."""
    if events.is_cut or not reading.page.up_to_date:
        return b""
    try:
        later = await backend.call(read_on, _without_bytes(reading))
    except ProtocolError:
        return b""
    rendered = events.render(later, backend.stores.clock_ms()) if _is_news(later) else b""
    return rendered if len(rendered) <= room_bytes else b""
