"""The hub: one per process. It knows which request waits for which stream, and wakes those requests.

A request that is woken reads again. Waking carries no data: it may come late, twice, or without a reason.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from tidemark.protocol.stream_key import StreamKey


class Wakeable(Protocol):
    """The hub calls `wake` on the event loop `loop`."""

    loop: asyncio.AbstractEventLoop

    def is_interested(self, incarnation: str | None, start: int) -> bool:
        """Whether a batch at `start` of that log is news. Called on any thread."""

    def wake(self) -> None: ...


class Listener:
    """One waiting request. It belongs to the event loop on which it was made; the hub wakes it from
    any thread."""

    __slots__ = ("_event", "_hub", "_incarnation", "_offset", "loop")

    def __init__(self, hub: Hub) -> None:
        self.loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._hub = hub
        self._incarnation: str | None = None
        self._offset = 0

    def has_read(self, incarnation: str, offset: int) -> None:
        """The request has the batches before `offset`, so they do not wake it."""
        self._incarnation, self._offset = incarnation, offset

    def is_interested(self, incarnation: str | None, start: int) -> bool:
        return incarnation is None or incarnation != self._incarnation or start >= self._offset

    async def wait(self, seconds: float) -> bool:
        """Wait until woken, for at most `seconds`. Returns whether it was woken. If it was woken after
        the last wait ended, this one ends at once."""
        if not self._event.is_set():
            self._hub.start_waiting(self, time.monotonic() + seconds)
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
            finally:
                self._hub.stop_waiting(self)
        woken = self._event.is_set()
        self._event.clear()
        return woken

    def wake(self) -> None:
        """Call this on the listener's own event loop."""
        self._event.set()


class Hub:
    """The listeners of each stream. Safe to use from any thread and any number of event loops."""

    def __init__(self) -> None:
        self._listeners: dict[StreamKey, set[Wakeable]] = {}
        #: For each listener that has not been woken: when its wait ends, by the monotonic clock.
        self._waiting: dict[object, float] = {}
        self._changed = threading.Condition()

    @contextmanager
    def listen(self, key: StreamKey) -> Iterator[Listener]:
        """A listener for this stream. Listen first, then read: an append after the read wakes the listener,
        and an earlier one is in the read."""
        listener = Listener(self)
        self.add(key, listener)
        try:
            yield listener
        finally:
            self.remove(key, listener)

    def add(self, key: StreamKey, listener: Wakeable) -> None:
        with self._changed:
            self._listeners.setdefault(key, set()).add(listener)

    def remove(self, key: StreamKey, listener: Wakeable) -> None:
        with self._changed:
            listeners = self._listeners[key]
            listeners.discard(listener)
            if not listeners:
                del self._listeners[key]

    def wake(self, key: StreamKey, incarnation: str | None = None, start: int = 0) -> None:
        """Wake the listeners of this stream: a batch was written to it, at `start` if that is known."""
        with self._changed:
            listeners = [
                listener
                for listener in self._listeners.get(key, ())
                if listener.is_interested(incarnation, start)
            ]
            self._forget_waits(listeners)
        _wake(listeners)

    def wake_all(self) -> None:
        with self._changed:
            listeners = [listener for listeners in self._listeners.values() for listener in listeners]
            self._forget_waits(listeners)
        _wake(listeners)

    @property
    def listening(self) -> int:
        """How many requests listen."""
        return sum(map(len, self._listeners.copy().values()))

    def longest_wait_seconds(self, at_most: float) -> float | None:
        """Block until a request waits. Returns the seconds until the last of the waits ends, or
        None if no request came for `at_most` seconds."""
        deadline = time.monotonic() + at_most
        with self._changed:
            while (now := time.monotonic()) < deadline:
                left = max(self._waiting.values(), default=now) - now
                if left > 0:
                    return left
                self._waiting.clear()  # These waits are over; their event loops are late in saying so.
                self._changed.wait(deadline - now)
        return None

    def start_waiting(self, listener: object, until: float) -> None:
        with self._changed:
            self._waiting[listener] = until
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def stop_waiting(self, listener: object) -> None:
        with self._changed:
            self._waiting.pop(listener, None)

    def _forget_waits(self, listeners: Iterable[Wakeable]) -> None:
        for listener in listeners:
            self._waiting.pop(listener, None)


def _wake(listeners: Iterable[Wakeable]) -> None:
    """Wake each on its own event loop: at once if that is the running one, else with one call per loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Wakeable]] = defaultdict(list)
    for listener in listeners:
        by_loop[listener.loop].append(listener)
    running_loop = None
    with suppress(RuntimeError):
        running_loop = asyncio.get_running_loop()
    for loop, its_listeners in by_loop.items():
        if loop is running_loop:
            _wake_here(its_listeners)
        else:
            # A closed loop has no waiting request.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake_here, its_listeners)


def _wake_here(listeners: Iterable[Wakeable]) -> None:
    for listener in listeners:
        listener.wake()
