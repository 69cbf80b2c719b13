"""What is counted while requests are served: a few numbers of the process, in memory.

Nothing here knows where they go: the local server shows them to Prometheus
(`http/metrics.py`), a deployed function reports them through Powertools (`observability/`).
An append pays a few additions under a lock for it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

#: Upper bounds of the histograms' buckets, in seconds.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    """Compared by identity: an enumeration's hash would cost more than the addition."""

    title: str
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Duration:
    title: str
    meaning: str


REQUESTS: Final = Count("requests", "Answers, by method and status", ("method", "status"))
APPENDS: Final = Count("appends", "Appends accepted, a producer's repetitions included")
APPEND_BYTES: Final = Count("append_bytes", "Bytes in them")
CONFLICTS: Final = Count("conflicts", "Requests that contradicted the state of their stream (409)")
THROTTLED: Final = Count("throttled", "Requests turned away because storage was too busy (429)")
FAULTS: Final = Count("faults", "Answers of 500 and above")
STORAGE_CALLS: Final = Count("storage_calls", "Calls to DynamoDB and S3, by operation", ("operation",))
RETRIES: Final = Count("retries", "Of them, those that were sent again")
WAITS: Final = Count("waits", "Live reads that began: long-polls and event streams", ("kind",))
COUNTS: Final = (
    REQUESTS,
    APPENDS,
    APPEND_BYTES,
    CONFLICTS,
    THROTTLED,
    FAULTS,
    STORAGE_CALLS,
    RETRIES,
    WAITS,
)

REQUEST_SECONDS: Final = Duration("request_seconds", "Until the answer began, long-polls included")
STORAGE_SECONDS: Final = Duration("storage_seconds", "Of one call to DynamoDB or, for a body, to S3")
WAKE_SECONDS: Final = Duration(
    "wake_seconds", "From an append's own time to the answer or event that it woke"
)
DURATIONS: Final = (REQUEST_SECONDS, STORAGE_SECONDS, WAKE_SECONDS)


@dataclass(slots=True)
class Histogram:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total_seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total_seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.buckets)


Labels = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The numbers at one moment."""

    counts: Mapping[tuple[Count, Labels], float]
    durations: Mapping[Duration, Histogram]
    waiting: int


Watch = Callable[[str, str, float, int], None]
"""Told of a call to storage that has ended: service, operation, seconds, and the answer's
status, 0 where there was none."""


class Meter:
    """Safe to share between threads."""

    def __init__(self) -> None:
        #: Whoever traces calls (`observability/traces.py`); mostly nobody.
        self.watch: Watch | None = None
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[Count, Labels], float] = defaultdict(float)
        self._durations = {duration: Histogram() for duration in DURATIONS}
        self._waiting = 0

    def add(self, count: Count, amount: float = 1.0, labels: Labels = ()) -> None:
        with self._lock:
            self._counts[count, labels] += amount

    def observe(self, duration: Duration, seconds: float) -> None:
        with self._lock:
            self._durations[duration].observe(seconds)

    def answered(self, method: str, status: int, seconds: float) -> None:
        """One request. This and the next two are what every append pays for."""
        with self._lock:
            self._counts[REQUESTS, (method, status)] += 1
            self._durations[REQUEST_SECONDS].observe(seconds)
        if status >= 409:
            self._answered_badly(status)

    def _answered_badly(self, status: int) -> None:
        special = FAULTS if status >= 500 else _SPECIAL.get(status)
        if special is not None:
            self.add(special)

    def called(self, service: str, operation: str, seconds: float, status: int) -> None:
        """One call to storage."""
        with self._lock:
            self._counts[STORAGE_CALLS, (operation,)] += 1
            self._durations[STORAGE_SECONDS].observe(seconds)
        if self.watch is not None:
            self.watch(service, operation, seconds, status)

    def appended(self, size_bytes: int) -> None:
        with self._lock:
            self._counts[_APPENDS] += 1
            self._counts[_APPEND_BYTES] += size_bytes

    @contextmanager
    def waiting(self, kind: str) -> Iterator[None]:
        self.add(WAITS, 1, (kind,))
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def read(self) -> MetricsSnapshot:
        with self._lock:
            durations = {
                name: Histogram(list(each.buckets), each.total_seconds)
                for name, each in self._durations.items()
            }
            return MetricsSnapshot(dict(self._counts), durations, self._waiting)


_APPENDS: Final = (APPENDS, ())
_APPEND_BYTES: Final = (APPEND_BYTES, ())
_SPECIAL: Final = {409: CONFLICTS, 429: THROTTLED}

#: The process's own.
PROCESS: Final = Meter()
