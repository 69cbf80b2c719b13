"""Live reads: long-poll (§5.7) and server-sent events (§5.8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidemark.http.backend import Backend
from tidemark.http.requests import ReadRequest
from tidemark.protocol.cursor import decide_cursor
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.sse import HEARTBEAT, render_control_event, render_data_event, text_end
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.read import Reading, read, read_on

HEARTBEAT_SECONDS: Final = 15.0


async def read_or_wait(backend: Backend, key: StreamKey, asked: ReadRequest, wait_seconds: float) -> Reading:
    """What is there at the offset, or else what comes within `wait_seconds`.

    Listens before the first read, so that no append falls in between.
    """
    deadline = time.monotonic() + wait_seconds
    with backend.hub.listen(key) as bell:
        reading = await backend.run(lambda: read(backend.stores, key, asked.read_from))
        if reading.page.has_data or not reading.page.up_to_date:
            return reading
        return await _wait(backend, reading, bell, deadline)


async def _wait(backend: Backend, reading: Reading, bell: asyncio.Event, deadline: float) -> Reading:
    """Looks again at every ring and at every poll, until there is news or time is up."""
    while not (reading.page.has_data or reading.page.closed):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        await _ring_or_timeout(bell, min(left, backend.poll_seconds))
        bell.clear()
        reading = await backend.run(partial(read_on, backend.stores, reading))
    return reading


async def _ring_or_timeout(bell: asyncio.Event, timeout_seconds: float) -> None:
    try:
        async with asyncio.timeout(timeout_seconds):
            await bell.wait()
    except TimeoutError:
        pass


@dataclass(slots=True)
class EventStream:
    """Turns pages into events. Remembers what one connection needs to: the cursor it gave
    last, and the beginning of a character whose end has not been written yet."""

    cursor: int | None
    half: bytes = b""

    def render(self, reading: Reading, now_ms: int) -> bytes:
        """The events for one page: its data, if any, and a control event."""
        page, content_type = reading.page, reading.record.content_type
        stored = self.half + reading.data
        whole = len(stored)
        if content_type.is_text and not content_type.is_json and not page.closed:
            whole = text_end(stored)
        self.half = stored[whole:]
        self.cursor = max(self.cursor or 0, decide_cursor(self.cursor, now_ms))
        data = render_data_event(content_type, stored[:whole]) if whole else b""
        return data + render_control_event(
            page.end - len(self.half), self.cursor, up_to_date=page.up_to_date, closed=page.closed
        )


async def event_stream(
    backend: Backend, key: StreamKey, asked: ReadRequest, reading: Reading
) -> AsyncIterator[bytes]:
    """Events from `reading` on, for about a minute (§10.2); a client reconnects from the
    last control event. A stream that ends meanwhile ends the events."""
    events = EventStream(asked.cursor)
    deadline = time.monotonic() + backend.settings.sse_seconds
    with backend.hub.listen(key) as bell:
        yield events.render(reading, backend.stores.clock_ms())
        while not reading.page.closed and time.monotonic() < deadline:
            try:
                reading = await _next(backend, reading, bell, deadline)
            except StreamNotFound:
                return
            if reading.page.has_data or reading.page.closed:
                yield events.render(reading, backend.stores.clock_ms())
            else:
                yield HEARTBEAT


async def _next(backend: Backend, reading: Reading, bell: asyncio.Event, deadline: float) -> Reading:
    """The next page, or an empty one when it is time for a heartbeat."""
    bell.clear()
    later = await backend.run(partial(read_on, backend.stores, reading))
    heartbeat = min(deadline, time.monotonic() + HEARTBEAT_SECONDS)
    return await _wait(backend, later, bell, heartbeat)
