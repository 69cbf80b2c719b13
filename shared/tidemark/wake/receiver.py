"""The receiver: a process's queue, and the one thread that listens to it while a request waits."""

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
from tidemark.wake.message import NotAWakeMessage, decode_message

_log = logging.getLogger("tidemark")

#: In its first second a queue may not be known everywhere in SQS.
SETTLING_SECONDS: Final = 1.0
#: How often an idle thread checks whether another one has replaced it.
IDLE_SECONDS: Final = 60.0
#: After a failure: the time before the next receive, and before another queue is made.
RETRY_SECONDS: Final = 1.0
#: A receive that is this late does not come back: the process was frozen while it was under way.
_LATE_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class OwnQueue:
    url: str
    settled_at: float

    @property
    def settling_seconds(self) -> float:
        """How much of its first second is left."""
        return max(0.0, self.settled_at - time.monotonic())


class Receiver:
    """Wakes the hub's listeners for which a message arrives in the queue, and all of them if none arrives.

    Every waiting request also polls the log by itself: a lost wake message delays it by one receive at most.
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
        """This process's queue. The first request that waits makes it, because a snapshot of a fresh
        process must not hold one. Raises QueueUnavailable."""
        with self._lock:
            if self._queue is None:
                if self._closed:
                    raise QueueUnavailable("the process ends")
                if time.monotonic() < self._create_after:
                    raise QueueUnavailable("it failed a moment ago")
                try:
                    url = self._queues.create(self._clock_ms())
                finally:
                    # Counted from its end: it may have taken long to fail, and the next must not wait again.
                    self._create_after = time.monotonic() + RETRY_SECONDS
                self._queue = OwnQueue(url, time.monotonic() + SETTLING_SECONDS)
            return self._queue

    def ensure_running(self) -> None:
        """A request is about to wait: there must be a thread that listens, and one that is not stuck."""
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
        """One receive after another, none longer than the last request waits."""
        while self._is_current():
            wait_seconds = self._hub.longest_wait_seconds(IDLE_SECONDS)
            if wait_seconds is None:
                continue
            try:
                bodies = self._receive(min(math.ceil(wait_seconds), self._receive_seconds))
            except QueueGone:
                self._wake_all()
            except Exception as failure:  # noqa: BLE001 - whatever it is, readers must not wait for this thread
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
                        self._hub.wake(message.key, message.incarnation, message.start)
                # Messages for other streams may keep the queue from ever being empty.
                if not bodies or time.monotonic() - self._all_woken_at >= self._receive_seconds:
                    self._wake_all()

    def _receive(self, seconds: int) -> list[str]:
        """Raises QueueGone if the queue was removed. Then each request that still waits polls the log,
        and before that makes a new queue and registers with it."""
        queue = self.queue()
        time.sleep(queue.settling_seconds)
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
