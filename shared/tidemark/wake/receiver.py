"""The receiver: a process's queue, and the one thread that listens to it while somebody waits."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, QueueGone, Queues, QueueUnavailable
from tidemark.wake.hub import Hub
from tidemark.wake.ring import NotARing, decode_ring

_log = logging.getLogger("tidemark")

#: A queue may not be heard of everywhere in its first second.
SETTLING_SECONDS: Final = 1.0
#: How often a thread that nobody needs looks whether it still is the one.
IDLE_SECONDS: Final = 60.0
#: After a failure: before the queue is asked again, and before another one is made.
RETRY_SECONDS: Final = 1.0
#: A receive that is this late is not coming back: the process was frozen while it was on its way.
_LATE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class OwnQueue:
    url: str
    settled_at: float

    @property
    def settling_seconds(self) -> float:
        """How much of that second is left."""
        return max(0.0, self.settled_at - time.monotonic())


class Receiver:
    """Rings the hub's bells for what arrives in the queue; all of them when nothing does.

    Whatever goes wrong, every waiting request looks for itself: a ring that got lost costs
    one receive at most.
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
        self._all_rung_at = time.monotonic()
        self._troubled = False
        self._closed = False

    def queue(self) -> OwnQueue:
        """This process's queue, made by the first who waits: a snapshot of a fresh process
        holds none. Raises QueueUnavailable."""
        with self._lock:
            if self._queue is None:
                self._queue = self._create()
            return self._queue

    def _create(self) -> OwnQueue:
        if self._closed or time.monotonic() < self._create_after:
            raise QueueUnavailable("the process ends" if self._closed else "it failed a moment ago")
        try:
            url = self._queues.create(self._clock_ms())
        finally:
            # From its end on: it may have taken long to fail, and whoever comes next must not wait again.
            self._create_after = time.monotonic() + RETRY_SECONDS
        return OwnQueue(url, time.monotonic() + SETTLING_SECONDS)

    def attend(self) -> None:
        """Somebody is about to wait: there must be a thread that listens, and is not stuck."""
        with self._lock:
            if self._closed or (self._is_alive() and self._clock_ms() < self._late_after_ms):
                return
            self._late_after_ms = math.inf
            self._thread = threading.Thread(target=self._listen, name="tidemark-wake", daemon=True)
            self._thread.start()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _listen(self) -> None:
        while self._is_current():
            patience = self._hub.patience_seconds(IDLE_SECONDS)
            if patience is not None:
                self._turn(patience)

    def _is_current(self) -> bool:
        return self._thread is threading.current_thread() and not self._closed

    def _turn(self, patience: float) -> None:
        """One receive, no longer than the most patient reader waits."""
        try:
            bodies = self._receive(min(math.ceil(patience), self._receive_seconds))
        except QueueGone:
            self._ring_all()
        except Exception as failure:  # noqa: BLE001 - whatever it is, readers must not wait for this thread
            if self._closed:
                return
            self._report(failure)
            self._ring_all()
            time.sleep(RETRY_SECONDS)
        else:
            self._troubled = False
            self._ring(bodies)

    def _receive(self, seconds: int) -> list[str]:
        queue = self.queue()
        time.sleep(queue.settling_seconds)
        self._late_after_ms = self._clock_ms() + seconds * 1000 + _LATE_MS
        try:
            return self._queues.receive(queue.url, seconds)
        except QueueGone:
            self._lose(queue)
            raise
        finally:
            if self._is_current():
                self._late_after_ms = math.inf

    def _lose(self, queue: OwnQueue) -> None:
        """Somebody removed it. Whoever still waits looks, and before that makes a new one
        and registers with it."""
        with self._lock:
            if self._queue is queue:
                self._queue = None

    def _ring(self, bodies: list[str]) -> None:
        """What was received, and every reader whom nothing has rung for as long as a receive
        lasts: other streams may keep the queue from ever being empty."""
        for body in bodies:
            with suppress(NotARing):
                ring = decode_ring(body)
                self._hub.ring(ring.key, ring.incarnation, ring.start)
        if not bodies or time.monotonic() - self._all_rung_at >= self._receive_seconds:
            self._ring_all()

    def _report(self, failure: Exception) -> None:
        if not self._troubled:
            _log.warning("no queue wakes this process, its readers look for themselves", exc_info=failure)
        self._troubled = True

    def _ring_all(self) -> None:
        self._all_rung_at = time.monotonic()
        self._hub.ring_all()

    def close(self) -> None:
        """Stop listening and remove the queue. A receive under way ends by that."""
        with self._lock:
            self._closed = True
            queue, self._queue = self._queue, None
        if queue is not None:
            with suppress(QueueGone, QueueUnavailable):
                self._queues.delete(queue.url)
