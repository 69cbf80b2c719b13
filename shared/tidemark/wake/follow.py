"""Following a stream: register, read, wait, and read again (`docs/live.md`).

Hub           knows the followers of each stream in this process, and wakes them
Wake          makes appends wake the hub's followers; `queue.py` has the one for several processes
Process       holds storage and what wakes followers, for all requests of a process
SingleFlight  makes one read for all followers that an append wakes at once
LiveRead      follows the pages of a stream: long-polls and event streams
Watch         follows the tail of a stream: one stream of a socket
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from tidemark.log.read import PAGE_BYTES, Page
from tidemark.log.records import StreamRecord
from tidemark.observability.metrics import PROCESS, WAKE_SECONDS
from tidemark.protocol.expiry import renew_waiting_at_ms
from tidemark.protocol.offset import ReadFrom
from tidemark.protocol.socket import MAX_LEASE_SECONDS, Message, RenderedNews, news_message, render_news
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.read import SMALL_PAGE_BYTES, Reading, read, read_on, renew_while_waiting
from tidemark.service.stores import Run, Stores
from tidemark.service.watch import Watched, begin_watch, load_tail

_T = TypeVar("_T")


class Follower:
    """A live read or a socket's watch, while it follows a stream. It belongs to the event loop on which it
    was made; the hub wakes it from any thread. A follower that is woken reads again. Close it at the end."""

    __slots__ = ("_hub", "incarnation", "key", "loop", "offset")

    def __init__(self, hub: Hub, key: StreamKey, incarnation: str | None = None, offset: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.key = key
        #: It has the batches of this log before this offset, so they do not wake it.
        self.incarnation = incarnation
        self.offset = offset
        self._hub = hub
        hub.add(self)

    def close(self) -> None:
        self._hub.remove(self)

    def is_interested(self, incarnation: str | None, start: int) -> bool:
        """Whether a batch at `start` of that log is news. Called on any thread."""
        return incarnation is None or incarnation != self.incarnation or start >= self.offset

    def wake(self) -> None:
        """The stream may have grown. Called on the follower's event loop."""
        raise NotImplementedError


class Hub:
    """Knows who follows which stream in this process, and wakes them. Safe to use from any thread and any
    number of event loops. Waking carries no data: it may come late, twice, or without a reason."""

    def __init__(self) -> None:
        self._followers: dict[StreamKey, set[Follower]] = {}
        #: When each wait ends, by the monotonic clock. A follower that was woken does not wait any more.
        self._waiting: dict[object, float] = {}
        self._changed = threading.Condition()

    def add(self, follower: Follower) -> None:
        """Add a follower first, then read: an append after the read wakes it, and an earlier one is in the
        read."""
        with self._changed:
            self._followers.setdefault(follower.key, set()).add(follower)

    def remove(self, follower: Follower) -> None:
        with self._changed:
            followers = self._followers[follower.key]
            followers.discard(follower)
            if not followers:
                del self._followers[follower.key]

    def wake(self, key: StreamKey, incarnation: str | None = None, start: int = 0) -> None:
        """Wake the followers of this stream: a batch was written to it, at `start` if that is known."""
        with self._changed:
            followers = self._followers.get(key, ())
            self._wake([each for each in followers if each.is_interested(incarnation, start)])

    def wake_all(self) -> None:
        with self._changed:
            self._wake([each for followers in self._followers.values() for each in followers])

    def _wake(self, followers: Collection[Follower]) -> None:
        """Wake each on its own event loop, with one call per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Follower]] = defaultdict(list)
        for follower in followers:
            self._waiting.pop(follower, None)
            by_loop[follower.loop].append(follower)
        for loop, its_followers in by_loop.items():
            with suppress(RuntimeError):  # Nobody waits on a closed loop.
                loop.call_soon_threadsafe(_wake_each, its_followers)

    @property
    def following(self) -> int:
        """How many followers there are."""
        return sum(map(len, self._followers.copy().values()))

    def longest_wait_seconds(self, at_most: float) -> float | None:
        """Block until somebody waits. Returns the seconds until the last of the waits ends, or
        None if nobody came for `at_most` seconds."""
        deadline = time.monotonic() + at_most
        with self._changed:
            while (now := time.monotonic()) < deadline:
                left = max(self._waiting.values(), default=now) - now
                if left > 0:
                    return left
                self._waiting.clear()  # These waits are over; their event loops are late in saying so.
                self._changed.wait(deadline - now)
        return None

    def start_waiting(self, waiting: object, seconds: float) -> None:
        """A follower waits, or a socket with several of them."""
        with self._changed:
            self._waiting[waiting] = time.monotonic() + seconds
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def stop_waiting(self, waiting: object) -> None:
        with self._changed:
            self._waiting.pop(waiting, None)


def _wake_each(followers: Iterable[Follower]) -> None:
    for follower in followers:
        follower.wake()


class Wake(Protocol):
    """Makes appends wake the readers of this process. Safe to share between threads and event loops."""

    hub: Hub

    def ensure_registered(self, incarnation: str) -> float:
        """On return, every append to the stream wakes its followers, whichever process makes it.
        Read the log after this, then wait, and read again after the seconds returned at the latest.

        Raises Busy or OutcomeUnknown; a missing queue is not an error.
        """

    def close(self) -> None:
        """Remove this process's queue and registrations: it ends."""


class WakeByHub:
    """Waking in the only process that writes: each commit tells its hub."""

    def __init__(self) -> None:
        self.hub = Hub()

    def ensure_registered(self, _incarnation: str) -> float:
        return math.inf

    def close(self) -> None:
        pass


class Share(Protocol):
    """Makes a blocking call from a coroutine. Callers that ask for the same name at once may share a call."""

    def __call__(self, name: Hashable, call: Callable[[], _T], /) -> Awaitable[_T]: ...


@dataclass(frozen=True, slots=True)
class Process:
    """The followers of a process share its storage, two ways to call that from a coroutine, and a `Wake`."""

    stores: Stores
    run: Run
    share: Share
    wake: Wake


class SingleFlight:
    """An append wakes every reader of a stream, and all of them want to read the same: one
    call serves them all. Used from one event loop.

    A call starts only after the last of those who share it has asked for it, so what it reads is
    never older than any of their requests. A later request gets a call of its own.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._results: dict[Hashable, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:
        result = self._results.get(name)
        if result is None:
            result = self._results[name] = asyncio.get_running_loop().create_future()
            # Readers are woken together, in one turn of the event loop; a task begins in the next.
            task = asyncio.create_task(self._make(name, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A reader that is cancelled does not cancel the others' call.
        try:
            return await asyncio.shield(result)
        finally:
            del result  # Else it is in a cycle with its failure's traceback; so below.

    async def _make(self, name: Hashable, call: Callable[[], Any]) -> None:
        result = self._results.pop(name)
        try:
            result.set_result(await self._run(call))
        except Exception as failure:  # noqa: BLE001 - whatever it is, each reader must be told
            result.set_exception(failure)
            result.exception()  # Perhaps every reader has been cancelled.
        del result


async def read_or_wait(
    process: Process, key: StreamKey, read_from: ReadFrom, cursor: int | None, wait_seconds: float
) -> Reading:
    """Read the data at the offset, or wait up to `wait_seconds` for it.

    Raises as `read`, and StreamNotFound if the stream ends while the request waits.
    """
    deadline = time.monotonic() + wait_seconds
    reading = await process.run(partial(read, process.stores, key, read_from, cursor))
    if reading.is_news or wait_seconds <= 0:
        return reading
    with closing(LiveRead(process, reading)) as live:
        return await live.next(deadline) or await live.latest()


class LiveRead(Follower):
    """One request that follows a stream from where `reading` ended.

    It reads, waits until it is woken, and reads again. Before it reads at the tail it makes sure that
    appends wake it, and after its last wait it reads once more: with that order no append goes
    unnoticed.
    """

    def __init__(self, process: Process, reading: Reading, *, small: bool = False) -> None:
        super().__init__(process.wake.hub, reading.record.key)
        self._process = process
        self._small = small
        self._wakes = asyncio.Event()
        #: When it reads although nothing has woken it, by the monotonic clock.
        self._read_at = -math.inf
        #: When the wait for what comes next began.
        self._since_ms = math.inf
        self._go_on(reading)

    def wake(self) -> None:
        self._wakes.set()

    async def next(self, until: float) -> Reading | None:
        """The next page with news, or None at `until`, by the monotonic clock.
        Raises StreamNotFound when the stream ends without being closed."""
        while True:
            if (self._woken or (self._small and not self._at_tail)) and (recent := self._recent()):
                return recent
            if self._woken or time.monotonic() >= self._read_at:
                was_behind = not self._at_tail
                reading = await self._read()
                if reading.is_news or was_behind:
                    return reading
            now = time.monotonic()
            if now >= until:
                return None
            await self._wait(min(until, self._read_at) - now)

    async def latest(self) -> Reading:
        """The current end of the stream: read after the last wait has ended."""
        return await self._read() if self._has_waited else self._place

    async def _wait(self, seconds: float) -> None:
        """Wait for at most `seconds` until it is woken, and not at all if it was since the last wait."""
        self._has_waited = True
        if not self._wakes.is_set():
            self._hub.start_waiting(self, seconds)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._wakes.wait()
            finally:
                self._hub.stop_waiting(self)
        self._woken = self._wakes.is_set()
        self._wakes.clear()

    def _recent(self) -> Reading | None:
        """The data that this process has written or read already. It needs no storage call, because a batch
        never changes. Other processes may have written since, so the next step is to read. Only a request
        that was woken here knows that the page reaches the tail."""
        record, start = self._place.record, self.offset
        if start < record.compacted:
            return None  # What was kept may be from before the compaction.
        limit_bytes = SMALL_PAGE_BYTES if self._small else PAGE_BYTES
        batches = self._process.stores.recent.chain(record.incarnation, start, limit_bytes)
        if not batches:
            return None
        at_tail = self._woken and batches[-1].end - start <= limit_bytes
        if batches[-1].end - start > limit_bytes and len(batches) > 1:
            batches.pop()
        self._read_at = -math.inf
        closed = batches[-1].after.closed  # Nothing follows it; a read behind it would not find it again.
        return self._go_on(Reading(record, Page(start, tuple(batches), at_tail or closed, closed)))

    async def _read(self) -> Reading:
        process, place = self._process, self._place
        if self._renew_at_ms is not None and process.stores.clock_ms() >= self._renew_at_ms:
            # One renewal for all readers, whatever they read next.
            renew = partial(renew_while_waiting, process.stores, place.record)
            place = replace(place, record=await process.share(("renew", place.record.incarnation), renew))
        name = (place.record.incarnation, self.offset, self._at_tail, self._small)
        wake = process.wake if self._at_tail else None
        call = partial(register_and_read, process.stores, wake, place, small=self._small)
        reading, seconds = await process.share(name, call)
        self._read_at = time.monotonic() + seconds
        return self._go_on(reading)

    def _go_on(self, reading: Reading) -> Reading:
        """Go on behind `reading`, which is returned."""
        batches, now_ms = reading.page.batches, self._process.stores.clock_ms()
        if batches and batches[0].time_ms >= self._since_ms:
            PROCESS.observe(WAKE_SECONDS, max(0, now_ms - batches[0].time_ms) / 1000)
        self._woken, self._has_waited, self._since_ms = False, False, now_ms
        self._place, self._at_tail = reading.without_bytes(), reading.page.up_to_date
        record, self.offset = self._place.record, self._place.page.start
        self.incarnation = record.incarnation
        self._renew_at_ms = renew_waiting_at_ms(record.expiry, record.used_ms)
        if self._renew_at_ms is not None:  # The end of a sliding window wakes nobody.
            renew_seconds = max(0, self._renew_at_ms - now_ms) / 1000
            self._read_at = min(self._read_at, time.monotonic() + renew_seconds)
        return reading


def register_and_read(
    stores: Stores, wake: Wake | None, place: Reading, *, small: bool = False
) -> tuple[Reading, float]:
    """Register this process for later appends, unless the reader is still behind (`wake` is None); then read
    the data after `place`. Also returns the most seconds until the next read.
    Raises StreamNotFound or SoftDeleted."""
    seconds = wake.ensure_registered(place.record.incarnation) if wake else 0.0
    return read_on(stores, place, small=small), seconds


class Watch(Follower):
    """One stream that a socket watches. It calls `moved` when the tail may have moved, and not before the
    watch is answered. Its `offset` is the tail that the client was told last."""

    __slots__ = (
        "_is_answered",
        "_moved",
        "_process",
        "_record",
        "_timer",
        "_wants_data",
        "_was_woken",
        "ends_at",
        "name",
    )

    def __init__(
        self, process: Process, name: str, key: StreamKey, moved: Callable[[Watch], None], *, wants_data: bool
    ) -> None:
        super().__init__(process.wake.hub, key)
        self._wants_data = wants_data
        self._process = process
        self.name = name
        self._moved = moved
        self._record: StreamRecord | None = None
        #: When the lease ends, by the monotonic clock.
        self.ends_at = 0.0
        self._is_answered = self._was_woken = False
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._read_in(math.inf)
        super().close()

    def wake(self) -> None:
        if self._is_answered:
            self._moved(self)
        else:
            self._was_woken = True

    async def begin(self) -> Watched:
        """Register, then read the tail. Raises ProtocolError."""
        stores, wake = self._process.stores, self._process.wake
        begin = partial(begin_watch, stores, self.key, wake.ensure_registered)
        watched = await self._process.share(("watch", self.key), begin)
        self._record = watched.record
        self.incarnation, self.offset = watched.record.incarnation, watched.tail.offset
        self._read_in(watched.read_seconds)
        return watched

    def answered(self, ends_at: float) -> None:
        """The client has the answer. From now on it is told when the tail moves, and at once if it has."""
        self.ends_at, self._is_answered = ends_at, True
        if self._was_woken:
            self._moved(self)

    async def message(self) -> Message | None:
        """Read the tail again. Returns None if the client knows it. Raises ProtocolError."""
        stores, wake, record = self._process.stores, self._process.wake, self._record
        assert record is not None, "it has begun"
        told = self.offset if self._wants_data else None

        def register_and_load() -> tuple[Tail, RenderedNews | None, float]:
            seconds = wake.ensure_registered(record.incarnation)
            tail, news = load_tail(stores, record, told)
            return tail, news and render_news(tail, record.content_type, news), seconds

        call = self._process.share(("tail", self.incarnation, told), register_and_load)
        tail, news, seconds = await call
        self._read_in(seconds)
        if tail.offset == self.offset and not tail.closed:
            return None
        self.offset = tail.offset
        return news_message(self.name, tail, news)

    def _read_in(self, seconds: float) -> None:
        """Read the tail again after these seconds: appends of other processes may go unnoticed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds > MAX_LEASE_SECONDS else self.loop.call_later(seconds, self.wake)
