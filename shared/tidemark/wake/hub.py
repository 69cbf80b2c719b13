"""The hub: one per process, where waiting requests listen for their stream.

A ring is a hint to look again, never data: it may come late, twice, or for nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tidemark.protocol.stream_key import StreamKey

#: A wait that is over is taken off the list by its own loop: that long until the next look.
_LATE_SECONDS: Final = 0.02


class Bell:
    """One waiting request's. It belongs to the event loop it was made on, and is rung from
    any thread."""

    __slots__ = ("_event", "_hub", "_incarnation", "_offset", "loop")

    def __init__(self, hub: Hub) -> None:
        self.loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._hub = hub
        self._incarnation: str | None = None
        self._offset = 0

    def has_read(self, incarnation: str, offset: int) -> None:
        """Batches before `offset` are no news any more, so they need not ring."""
        self._incarnation, self._offset = incarnation, offset

    def cares(self, incarnation: str | None, start: int) -> bool:
        return incarnation is None or incarnation != self._incarnation or start >= self._offset

    async def wait(self, seconds: float) -> bool:
        """Until it is rung, for at most `seconds`. Whether it was. A ring that came before
        the wait, since the last one, ends it at once."""
        if not self._event.is_set():
            self._hub.start_waiting(self, time.monotonic() + seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
            finally:
                self._hub.stop_waiting(self)
        rung = self._event.is_set()
        self._event.clear()
        return rung

    def ring(self) -> None:
        """On its own loop."""
        self._event.set()


class Hub:
    """Safe to use from any thread and any number of event loops."""

    def __init__(self) -> None:
        self._bells: dict[StreamKey, set[Bell]] = {}
        #: Until when each bell waits, unrung, by the monotonic clock.
        self._waiting: dict[Bell, float] = {}
        self._changed = threading.Condition()

    @contextmanager
    def listen(self, key: StreamKey) -> Iterator[Bell]:
        """A bell for this stream. Listen first, read then: what is written after the read
        rings, what was written before it is in it."""
        bell = Bell(self)
        with self._changed:
            self._bells.setdefault(key, set()).add(bell)
        try:
            yield bell
        finally:
            with self._changed:
                bells = self._bells[key]
                bells.discard(bell)
                if not bells:
                    del self._bells[key]

    def ring(self, key: StreamKey, incarnation: str | None = None, start: int = 0) -> None:
        """A batch was written to this stream; where it is known, at `start`."""
        with self._changed:
            bells = [bell for bell in self._bells.get(key, ()) if bell.cares(incarnation, start)]
            self._stop_waiting(bells)
        _ring(bells)

    def ring_all(self) -> None:
        with self._changed:
            bells = [bell for bells in self._bells.values() for bell in bells]
            self._stop_waiting(bells)
        _ring(bells)

    @property
    def listening(self) -> int:
        """How many requests listen."""
        return sum(map(len, self._bells.copy().values()))

    def patience_seconds(self, at_most: float) -> float | None:
        """Blocks until somebody waits; then how long the most patient of them still does.
        None when nobody came for `at_most` seconds."""
        deadline = time.monotonic() + at_most
        with self._changed:
            while (now := time.monotonic()) < deadline:
                left = max(self._waiting.values(), default=now) - now
                if left > 0:
                    return left
                self._changed.wait(deadline - now if not self._waiting else _LATE_SECONDS)
        return None

    def start_waiting(self, bell: Bell, until: float) -> None:
        with self._changed:
            self._waiting[bell] = until
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def stop_waiting(self, bell: Bell) -> None:
        with self._changed:
            self._waiting.pop(bell, None)

    def _stop_waiting(self, bells: Iterable[Bell]) -> None:
        for bell in bells:
            self._waiting.pop(bell, None)


def _ring(bells: Iterable[Bell]) -> None:
    """Each on its own loop: at once where that is the one we are on, else with one call a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Bell]] = defaultdict(list)
    for bell in bells:
        by_loop[bell.loop].append(bell)
    here = _running_loop()
    for loop, its_bells in by_loop.items():
        if loop is here:
            _ring_here(its_bells)
        else:
            # A loop that was closed has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_ring_here, its_bells)


def _ring_here(bells: Iterable[Bell]) -> None:
    for bell in bells:
        bell.ring()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
