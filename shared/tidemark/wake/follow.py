"""Following a stream: register, read, wait, and read again (`docs/live.md`).

Hub           knows the followers of each stream in this process, and wakes them
Wake          makes appends wake the hub's followers; `queue.py` implements it for several processes
Process       holds storage and the `Wake` for all requests of a process
SingleFlight  shares a read between the followers that an append wakes at once
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
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

from tidemark.log.read import PAGE_BYTES, Page
from tidemark.log.records import StreamRecord
from tidemark.observability.metrics import PROCESS, WAKE_SECONDS
from tidemark.protocol.expiry import renew_waiting_at_ms
from tidemark.protocol.offset import ReadFrom
from tidemark.protocol.socket import MAX_LEASE_SECONDS, Message, RenderedNews, news_message, render_news
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.protocol.where import MessageFilter
from tidemark.service.read import SMALL_PAGE_BYTES, Reading, read, read_on, renew_while_waiting, select
from tidemark.service.stores import Run, Stores
from tidemark.service.watch import Watched, begin_watch, load_tail

_T = TypeVar("_T")


class Follower:
    """A live read or a socket's watch, while it follows a stream; close it at the end. A follower belongs to
    the event loop on which it was made, and the hub may wake it from any thread. A woken follower reads
    again."""

    __slots__ = ("_hub", "incarnation", "key", "loop", "offset")

    def __init__(self, hub: Hub, key: StreamKey, incarnation: str | None = None, offset: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.key = key
        #: The follower has the batches of this log before `offset`, so these do not wake it.
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
    """Keeps the followers of each stream in this process, and wakes them. Safe to use from any thread and any
    number of event loops. A wake carries no data: it may come late, twice, or without a reason."""

    def __init__(self) -> None:
        self._followers: dict[StreamKey, set[Follower]] = {}
        #: The end of each wait, by the monotonic clock. A woken follower waits no longer.
        self._waiting: dict[object, float] = {}
        self._changed = threading.Condition()

    def add(self, follower: Follower) -> None:
        """Add a follower before its read: the read returns an earlier append, and a later one wakes it."""
        with self._changed:
            self._followers.setdefault(follower.key, set()).add(follower)

    def remove(self, follower: Follower) -> None:
        with self._changed:
            followers = self._followers[follower.key]
            followers.discard(follower)
            if not followers:
                del self._followers[follower.key]

    def wake(self, key: StreamKey, incarnation: str | None = None, start: int = 0) -> None:
        """Wake the followers of this stream after a batch was written, at `start` if known."""
        with self._changed:
            followers = self._followers.get(key, ())
            self._wake([each for each in followers if each.is_interested(incarnation, start)])

    def _wake(self, followers: Collection[Follower]) -> None:
        """Wake the followers on their event loops: at once on the running loop, by one call on another."""
        by_loop: dict[asyncio.AbstractEventLoop | None, list[Follower]] = defaultdict(list)
        for follower in followers:
            self._waiting.pop(follower, None)
            by_loop[follower.loop].append(follower)
        _wake_each(by_loop.pop(asyncio._get_running_loop(), ()))  # noqa: SLF001 - get_running_loop raises
        for loop, its_followers in by_loop.items():
            assert loop is not None, "a follower has a loop"
            with suppress(RuntimeError):  # A closed loop has no waiting follower.
                loop.call_soon_threadsafe(_wake_each, its_followers)

    @property
    def following(self) -> int:
        """The number of followers."""
        return sum(map(len, self._followers.copy().values()))

    def longest_wait_seconds(self, at_most: float) -> float | None:
        """Block until a follower waits. Returns the seconds until the last wait ends, or None if no follower
        began to wait within `at_most` seconds."""
        deadline = time.monotonic() + at_most
        with self._changed:
            while (now := time.monotonic()) < deadline:
                left = max(self._waiting.values(), default=now) - now
                if left > 0:
                    return left
                self._waiting.clear()  # The waits are over, but their event loops have not removed them yet.
                self._changed.wait(deadline - now)
        return None

    def wake_all(self, incarnation: str | None = None) -> None:
        """Wake all followers; or those of this log, and those that do not know their log yet."""
        with self._changed:
            followers = chain.from_iterable(self._followers.values())
            self._wake(
                [each for each in followers if incarnation is None or each.incarnation in {incarnation, None}]
            )

    def start_waiting(self, waiting: object, seconds: float) -> None:
        """Add a wait of a follower, or of a socket with several followers."""
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

    def ensure_registered(self, incarnation: str, offset: int = 0) -> float:
        """Ensure that every later append of any process to the stream wakes its followers, or that they poll.
        The caller, which has the data before `offset`, then reads the log, waits, and reads again after the
        returned seconds at the latest.

        Raises Busy or OutcomeUnknown; a missing queue is not an error.
        """

    def close(self) -> None:
        """Remove this process's queue and registrations, because the process ends."""


class WakeByHub:
    """Waking if only this process writes: its commits wake the hub's followers."""

    def __init__(self) -> None:
        self.hub = Hub()

    def ensure_registered(self, _incarnation: str, _offset: int = 0) -> float:
        return math.inf

    def close(self) -> None:
        pass


class Share(Protocol):
    """Makes a blocking call from a coroutine. Concurrent callers with the same name may share a call."""

    def __call__(self, name: Hashable, call: Callable[[], _T], /) -> Awaitable[_T]: ...


@dataclass(frozen=True, slots=True)
class Process:
    """The followers of a process share storage, two ways to call it from a coroutine, and a `Wake`."""

    stores: Stores
    run: Run
    share: Share
    wake: Wake


class SingleFlight:
    """Readers that an append wakes at once share a read. Used from one event loop.

    A shared call starts after the requests of all its readers, so its result is never older than a request. A
    later request gets a call of its own.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._results: dict[Hashable, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:
        result = self._results.get(name)
        if result is None:
            result = self._results[name] = asyncio.get_running_loop().create_future()
            # Readers are woken in one turn of the event loop; the task begins in the next.
            task = asyncio.create_task(self._make(name, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A reader that is cancelled does not cancel the others' call.
        try:
            return await asyncio.shield(result)
        finally:
            del result  # Else the future and the traceback of its error form a cycle (also below).

    async def _make(self, name: Hashable, call: Callable[[], Any]) -> None:
        result = self._results.pop(name)
        try:
            result.set_result(await self._run(call))
        except Exception as failure:  # noqa: BLE001 - every reader must get the error
            result.set_exception(failure)
            result.exception()  # Marks the error as retrieved: all readers may have been cancelled.
        del result


#: A follower that reads the log within these seconds needs no receive, which takes a second or more.
SOON_SECONDS: Final = 0.4


async def read_or_wait(
    process: Process,
    key: StreamKey,
    read_from: ReadFrom,
    cursor: int | None,
    wait_seconds: float,
    *,
    where: MessageFilter | None = None,
) -> Reading:
    """Read the data at the offset, or wait up to `wait_seconds` for data, and for a message that matches.
    Raises as `read`, and StreamNotFound if the stream ends while the request waits."""
    deadline = time.monotonic() + wait_seconds
    reading = await process.run(partial(read, process.stores, key, read_from, cursor))
    if where is not None:
        return await _wait_for_match(process, await selected(reading, where), deadline, where)
    if reading.is_news or wait_seconds <= 0:
        return reading
    with closing(LiveRead(process, reading)) as live:
        return await live.next(deadline) or await live.latest()


async def selected(reading: Reading, where: MessageFilter | None) -> Reading:
    """Select the messages on a thread, because a large page takes 0.1 s."""
    return reading if where is None else await asyncio.to_thread(select, reading, where)


async def _wait_for_match(
    process: Process, reading: Reading, deadline: float, where: MessageFilter
) -> Reading:
    """Wait until a message matches. A page at the tail without a match is empty, and begins there."""
    if not reading.is_match and reading.page.up_to_date and time.monotonic() < deadline:
        with closing(LiveRead(process, reading)) as live:
            reading = await live.next_match(deadline, where) or reading
            if not reading.is_match and reading.page.up_to_date:
                reading = await selected(await live.latest(), where)
    page = reading.page
    if reading.data or not page.up_to_date:
        return reading
    return Reading(reading.record, Page(page.end, (), up_to_date=True, closed=page.closed))


class LiveRead(Follower):
    """A request that follows a stream after `reading`: a loop of reads and waits.

    The order ensures that no append goes unnoticed: register before reading at the tail, and read once more
    after the last wait.
    """

    def __init__(self, process: Process, reading: Reading, *, small: bool = False) -> None:
        super().__init__(process.wake.hub, reading.record.key)
        self._process = process
        self._small = small
        self._wakes = asyncio.Event()
        #: The time of the next read without a wake, by the monotonic clock.
        self._read_at = -math.inf
        #: The time since which this read waits for new data.
        self._since_ms = math.inf
        self._go_on(reading)

    def wake(self) -> None:
        self._wakes.set()

    async def next(self, until: float) -> Reading | None:
        """The next page with news, or None at `until` (monotonic clock). Raises StreamNotFound."""
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

    async def next_match(self, until: float, where: MessageFilter) -> Reading | None:
        """The next page with a message that matches, without the others; or the stream's end. A page without
        a match comes only at `until`, after `PAGE_BYTES`, or when the tail is reached: for all those before
        it. None: nothing was written until then. Raises StreamNotFound."""
        begin, found = self.offset, None
        while True:
            was_behind = not self._at_tail
            reading = await self.next(until)
            if reading is None:
                return found
            found = await selected(reading, where)
            if found.is_match or (was_behind and self._at_tail):
                return found
            if time.monotonic() >= until or self.offset - begin >= PAGE_BYTES:
                return found

    async def latest(self) -> Reading:
        """The current end of the stream, read after the last wait."""
        return await self._read() if self._has_waited else self._place

    async def _wait(self, seconds: float) -> None:
        """Wait until woken, at most `seconds`. Returns at once after a wake since the last wait."""
        self._has_waited = True
        if not self._wakes.is_set():
            if self._read_at - time.monotonic() > SOON_SECONDS:
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
        """A page of the data that this process has written or read already, or None. Batches never change, so
        this takes no storage call. Other processes may have written since, so the next step is a read. The
        page is known to reach the tail only if this request was woken."""
        record, start = self._place.record, self.offset
        if start < record.compacted:
            return None  # The remembered batches may be older than the compaction.
        limit_bytes = SMALL_PAGE_BYTES if self._small else PAGE_BYTES
        batches = self._process.stores.recent.chain(record.incarnation, start, limit_bytes)
        if not batches:
            return None
        at_tail = self._woken and batches[-1].end - start <= limit_bytes
        if batches[-1].end - start > limit_bytes and len(batches) > 1:
            batches.pop()
        self._read_at = -math.inf
        closed = batches[-1].after.closed  # A read after the closing batch would not find the closure.
        return self._go_on(Reading(record, Page(start, tuple(batches), at_tail or closed, closed)))

    async def _read(self) -> Reading:
        process, place = self._process, self._place
        if self._renew_at_ms is not None and process.stores.clock_ms() >= self._renew_at_ms:
            # All readers share the renewal, at any offset.
            renew = partial(renew_while_waiting, process.stores, place.record)
            place = replace(place, record=await process.share(("renew", place.record.incarnation), renew))
        name = (place.record.incarnation, self.offset, self._at_tail, self._small)
        wake = process.wake if self._at_tail else None
        call = partial(register_and_read, process.stores, wake, place, small=self._small)
        reading, self._read_at = await process.share(name, call)
        return self._go_on(reading)

    def _go_on(self, reading: Reading) -> Reading:
        """Move to the end of `reading`, and return it."""
        batches, now_ms = reading.page.batches, self._process.stores.clock_ms()
        if batches and batches[0].time_ms >= self._since_ms:
            PROCESS.observe(WAKE_SECONDS, max(0, now_ms - batches[0].time_ms) / 1000)
        self._woken, self._has_waited, self._since_ms = False, False, now_ms
        self._place, self._at_tail = reading.without_bytes(), reading.page.up_to_date
        record, self.offset = self._place.record, self._place.page.start
        self.incarnation = record.incarnation
        self._renew_at_ms = renew_waiting_at_ms(record.expiry, record.used_ms)
        if self._renew_at_ms is not None:  # The end of a sliding expiry wakes no reader.
            renew_seconds = max(0, self._renew_at_ms - now_ms) / 1000
            self._read_at = min(self._read_at, time.monotonic() + renew_seconds)
        return reading


def register_and_read(
    stores: Stores, wake: Wake | None, place: Reading, *, small: bool = False
) -> tuple[Reading, float]:
    """Register this process for later appends, unless the reader is not at the tail yet (`wake` is None);
    then read the data after `place`. Also returns the latest time of the next read, by the monotonic clock:
    readers that share this read also share the next. Raises StreamNotFound or SoftDeleted."""
    seconds = wake.ensure_registered(place.record.incarnation, place.page.start) if wake else 0.0
    read_at = time.monotonic() + seconds
    return read_on(stores, place, small=small), read_at


class Watch(Follower):
    """A stream that a socket watches. The watch calls `moved` when the tail may have moved, but not before
    `answered` was called. `offset` is the last tail that the client got."""

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
        #: The end of the lease, by the monotonic clock.
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
        """Begin to call `moved`, at once if the tail has moved: the client has the answer to its request."""
        self.ends_at, self._is_answered = ends_at, True
        if self._was_woken:
            self._moved(self)

    async def message(self) -> Message | None:
        """Read the tail again. Returns None if the client knows the tail. Raises ProtocolError."""
        stores, wake, record = self._process.stores, self._process.wake, self._record
        assert record is not None, "it has begun"
        known = self.offset if self._wants_data else None

        def register_and_load() -> tuple[Tail, RenderedNews | None, float]:
            read_at = time.monotonic() + wake.ensure_registered(record.incarnation, self.offset)
            tail, news = load_tail(stores, record, known)
            return tail, news and render_news(tail, record.content_type, news), read_at

        call = self._process.share(("tail", self.incarnation, known), register_and_load)
        tail, news, read_at = await call
        self._read_in(read_at - time.monotonic())
        if tail.offset == self.offset and not tail.closed:
            return None
        self.offset = tail.offset
        return news_message(self.name, tail, news)

    def _read_in(self, seconds: float) -> None:
        """Read the tail again after these seconds, because appends of other processes may go unnoticed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds > MAX_LEASE_SECONDS else self.loop.call_later(seconds, self.wake)
