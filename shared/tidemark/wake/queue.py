"""Waking if other processes write too: a process registers with the streams that it follows, and a thread
receives the wake messages of the process's queue while a request waits."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, QueueGone, Queues, QueueUnavailable
from tidemark.log.records import Waiter
from tidemark.log.schema import decode_log_pk, is_log_pk
from tidemark.log.table import Table
from tidemark.log.waiters import has_many_waiters, put_waiter, remove_waiters
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.wake.follow import Hub


class NotAWakeMessage(ValueError):
    """A message that `encode_message` did not write."""


@dataclass(frozen=True, slots=True)
class WakeMessage:
    """`start` is the offset of the newest batch: a reader that has read further needs no message."""

    log_pk: str
    start: int

    @property
    def key(self) -> StreamKey:
        return decode_log_pk(self.log_pk)[0]

    @property
    def incarnation(self) -> str:
        return decode_log_pk(self.log_pk)[1]


def encode_message(message: WakeMessage) -> str:
    """Encode as plain ASCII: a stream's name may hold characters that SQS refuses."""
    return json.dumps([message.log_pk, message.start], separators=(",", ":"))


def decode_message(body: str) -> WakeMessage:
    """Raises NotAWakeMessage."""
    try:
        log_pk, start = json.loads(body)
    except (ValueError, TypeError):
        raise NotAWakeMessage(body) from None
    if not (isinstance(log_pk, str) and is_log_pk(log_pk) and isinstance(start, int)):
        raise NotAWakeMessage(body)
    return WakeMessage(log_pk, start)


#: Life of a registration, in milliseconds. The first request after half of the life renews the registration,
#: so that a process makes one or two writes for each stream in a minute of waiting.
LIFE_MS: Final = 60_000
RENEW_MS: Final = LIFE_MS // 2


#: Seconds between the reads of a process that polls. In a second they cost two thirds of a message's wake-up.
POLL_SECONDS: Final = 0.2
#: A process polls after `FAST_NEWS` reads with data in `FAST_MS` milliseconds, until `QUIET_MS` bring none.
FAST_NEWS: Final = 3
FAST_MS: Final = 1500
QUIET_MS: Final = 1500
#: No process begins to poll if a stream has more waiters: a partition takes 3,000 consistent reads a second.
MOST_POLLING: Final = 16


@dataclass(slots=True)
class _Registration:
    """A registration. With the lock, concurrent requests share a write."""

    until_ms: int = 0
    #: None while the outcome of the last write is unknown.
    polls: bool | None = None
    offset: int = 0
    #: The last times at which the readers had more data than before.
    news_ms: deque[int] = field(default_factory=partial(deque[int], maxlen=FAST_NEWS))
    #: The stream has too many waiters, which are not counted again before this time.
    many_until_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_fast(self, offset: int, now_ms: int) -> bool:
        """Whether data come so fast that polls cost less than messages. The readers are at `offset`."""
        if offset > self.offset:
            self.offset = offset
            self.news_ms.append(now_ms)
        if self.polls and now_ms - self.news_ms[-1] >= QUIET_MS:
            self.news_ms.clear()
        is_full = len(self.news_ms) == FAST_NEWS
        return is_full and (self.polls or now_ms - self.news_ms[0] <= FAST_MS)


class Waiters:
    """The registrations of this process. Safe to share between threads. Uses the wall clock, which goes on
    while the process is suspended."""

    def __init__(self, table: Table, clock_ms: Callable[[], int], hub: Hub) -> None:
        self._table = table
        self._clock_ms = clock_ms
        self._hub = hub
        self._registrations: dict[tuple[str, str], _Registration] = {}
        self._lock = threading.Lock()

    def ensure(self, incarnation: str, queue_url: str, offset: int = 0) -> bool:
        """Write the registration unless it is up to date and has at least half of its life left. Return
        whether the readers of the stream, which have the data before `offset`, must poll the log."""
        with self._lock:
            found = self._registrations.setdefault((incarnation, queue_url), _Registration())
        with found.lock:
            now_ms, was_polling = self._clock_ms(), found.polls
            polls = found.is_fast(offset, now_ms) and (
                was_polling or self._may_poll(found, incarnation, now_ms)
            )
            if was_polling is polls and found.until_ms - now_ms > RENEW_MS:
                return polls
            # A late copy of an earlier write changes nothing, because its end is earlier.
            found.polls, found.until_ms = None, max(now_ms + LIFE_MS, found.until_ms + 1)
            put_waiter(self._table, Waiter(incarnation, queue_url, found.until_ms, polls=polls))
            found.polls = polls
        if polls and not was_polling:
            self._hub.wake_all(incarnation)  # No message wakes those that wait for one.
        with self._lock:
            lapsed = [name for name, each in self._registrations.items() if 0 < each.until_ms <= now_ms]
            for name in lapsed:
                del self._registrations[name]
        return polls

    def _may_poll(self, found: _Registration, incarnation: str, now_ms: int) -> bool:
        if now_ms >= found.many_until_ms and has_many_waiters(self._table, incarnation, now_ms, MOST_POLLING):
            found.many_until_ms = now_ms + RENEW_MS
        return now_ms >= found.many_until_ms

    def withdraw(self) -> None:
        """Remove all registrations, because the process ends."""
        with self._lock:
            registrations, self._registrations = self._registrations, {}
        remove_waiters(self._table, [Waiter(*name, each.until_ms) for name, each in registrations.items()])


_log = logging.getLogger("tidemark")

#: Seconds after its creation within which some of SQS's servers may not know a queue.
SETTLING_SECONDS: Final = 1.0
#: Seconds after which an idle thread checks whether another thread has replaced it.
IDLE_SECONDS: Final = 60.0
#: Seconds between a failure and the next receive, or the next attempt to make a queue.
RETRY_SECONDS: Final = 1.0
#: A receive that is this many milliseconds late never returns, because the process was suspended meanwhile.
_LATE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class OwnQueue:
    """The queue of this process."""

    url: str
    #: The end of the queue's first second.
    settled_at: float


class Receiver:
    """Wakes the hub's followers when a message for their stream arrives in the queue. A receive without
    messages wakes all followers, so a lost wake message delays a follower by one receive at most.
    """

    def __init__(
        self,
        hub: Hub,
        queues: Queues,
        clock_ms: Callable[[], int],
        receive_seconds: int = MAX_RECEIVE_SECONDS,
    ) -> None:
        self._hub = hub
        self._queues = queues
        self._clock_ms = clock_ms
        self._receive_seconds = receive_seconds
        self._queue: OwnQueue | None = None
        self._create_after = -math.inf
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._late_after_ms: float = math.inf
        self._all_woken_at = time.monotonic()
        self._failing = False
        self._closed = False

    def queue(self) -> OwnQueue:
        """This process's queue. The first waiting request makes the queue, because a snapshot of a fresh
        process must not contain one. Raises QueueUnavailable."""
        with self._lock:
            if self._queue is None:
                if self._closed:
                    raise QueueUnavailable("the process ends")
                if time.monotonic() < self._create_after:
                    raise QueueUnavailable("it failed a moment ago")
                try:
                    url = self._queues.create(self._clock_ms())
                finally:
                    # Counted from the end: an attempt may take long to fail, and the next must not wait too.
                    self._create_after = time.monotonic() + RETRY_SECONDS
                self._queue = OwnQueue(url, time.monotonic() + SETTLING_SECONDS)
            return self._queue

    def ensure_running(self) -> None:
        """Start a listening thread if there is none, or if it is stuck. Called before a request waits."""
        with self._lock:
            is_alive = self._thread is not None and self._thread.is_alive()
            if self._closed or (is_alive and self._clock_ms() < self._late_after_ms):
                return
            self._late_after_ms = math.inf
            self._thread = threading.Thread(target=self._listen, name="tidemark-wake", daemon=True)
            self._thread.start()

    def _is_current(self) -> bool:
        return self._thread is threading.current_thread() and not self._closed

    def _listen(self) -> None:
        """Receive in a loop. A receive lasts no longer than the longest wait of a request."""
        while self._is_current():
            wait_seconds = self._hub.longest_wait_seconds(IDLE_SECONDS)
            if wait_seconds is None:
                continue
            try:
                bodies = self._receive(min(math.ceil(wait_seconds), self._receive_seconds))
            except QueueGone:
                self._wake_all()
            except Exception as failure:  # noqa: BLE001 - readers must not wait for this thread
                if self._closed:
                    return
                if not self._failing:
                    _log.warning("the wake queue cannot be used; readers poll the log", exc_info=failure)
                self._failing = True
                self._wake_all()
                time.sleep(RETRY_SECONDS)
            else:
                self._failing = False
                for body in bodies:
                    with suppress(NotAWakeMessage):
                        message = decode_message(body)
                        self._hub.wake(*decode_log_pk(message.log_pk), message.start)
                # The queue may never be empty, because messages for other streams keep coming.
                if not bodies or time.monotonic() - self._all_woken_at >= self._receive_seconds:
                    self._wake_all()

    def _receive(self, seconds: int) -> list[str]:
        """Receive once. Raises QueueGone if the queue was removed; the waiting requests then register with a
        new queue and read the log."""
        queue = self.queue()
        time.sleep(max(0.0, queue.settled_at - time.monotonic()))
        self._late_after_ms = self._clock_ms() + seconds * 1000 + _LATE_MS
        try:
            return self._queues.receive(queue.url, seconds)
        except QueueGone:
            with self._lock:
                if self._queue is queue:
                    self._queue = None
            raise
        finally:
            if self._is_current():
                self._late_after_ms = math.inf

    def _wake_all(self) -> None:
        self._all_woken_at = time.monotonic()
        self._hub.wake_all()

    def close(self) -> None:
        """Stop listening and remove the queue, which also ends a receive that is under way."""
        with self._lock:
            self._closed = True
            queue, self._queue = self._queue, None
        if queue is not None:
            with suppress(QueueGone, QueueUnavailable):
                self._queues.delete(queue.url)


#: Seconds between a follower's reads of the log while SQS may not know the new queue everywhere.
NEW_QUEUE_SECONDS: Final = 0.1
#: Seconds between a follower's reads of the log while no queue can be made.
NO_QUEUE_SECONDS: Final = 1.0
#: Seconds, after the length of a receive, in which a follower must be woken. Otherwise it reads the log by
#: itself, because the listening thread may have died.
_OVERDUE_SECONDS: Final = 4.0


class WakeByQueue:
    """Waking if other processes write too: the notifier sends wake messages to this process's queue."""

    def __init__(
        self,
        table: Table,
        queues: Queues,
        clock_ms: Callable[[], int],
        receive_seconds: int = MAX_RECEIVE_SECONDS,
    ) -> None:
        self.hub = Hub()
        self._waiters = Waiters(table, clock_ms, self.hub)
        self._receiver = Receiver(self.hub, queues, clock_ms, receive_seconds)
        self._read_seconds = receive_seconds + _OVERDUE_SECONDS

    def ensure_registered(self, incarnation: str, offset: int = 0) -> float:
        self._receiver.ensure_running()
        try:
            queue = self._receiver.queue()
        except QueueUnavailable:
            return NO_QUEUE_SECONDS
        if self._waiters.ensure(incarnation, queue.url, offset):
            # All readers of the process poll at the same times, and so share the polls.
            return 1.5 * POLL_SECONDS - (time.monotonic() + 0.5 * POLL_SECONDS) % POLL_SECONDS
        return NEW_QUEUE_SECONDS if queue.settled_at > time.monotonic() else self._read_seconds

    def close(self) -> None:
        """Remove queue and registrations. A registration that cannot be removed lapses."""
        self._receiver.close()
        with suppress(ProtocolError):
            self._waiters.withdraw()
