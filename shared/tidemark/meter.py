"""What is counted while requests are served: a few numbers of the process, in memory.

Nothing here knows where they go: the local server shows them to Prometheus
(`http/metrics.py`), a deployed function reports them through Powertools (`deployed/`).
An append pays a few additions under a lock for it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

#: Upper bounds of the histograms' buckets, in seconds.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Count(Enum):
    """Name, what it means, and the name of its label."""

    REQUESTS = ("requests", "Answers, by method and status", ("method", "status"))
    APPENDS = ("appends", "Appends accepted, a producer's repetitions included", ())
    APPEND_BYTES = ("append_bytes", "Bytes in them", ())
    CONFLICTS = ("conflicts", "Requests that contradicted the state of their stream (409)", ())
    THROTTLED = ("throttled", "Requests turned away because storage was too busy (429)", ())
    FAULTS = ("faults", "Answers of 500 and above", ())
    STORAGE_CALLS = ("storage_calls", "Calls to DynamoDB and S3, by operation", ("operation",))
    RETRIES = ("retries", "Of them, those that were sent again", ())
    WAITS = ("waits", "Live reads that began: long-polls and event streams", ("kind",))

    def __init__(self, title: str, meaning: str, labels: tuple[str, ...]) -> None:
        self.title = title
        self.meaning = meaning
        self.labels = labels


class Duration(Enum):
    REQUEST = ("request_seconds", "Until the answer began, long-polls included")
    STORAGE = ("storage_seconds", "Of one call to DynamoDB")
    WAKE = ("wake_seconds", "From an append's own time to the long-poll that it woke")

    def __init__(self, title: str, meaning: str) -> None:
        self.title = title
        self.meaning = meaning


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


Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers at one moment."""

    counts: Mapping[tuple[Count, Labels], float]
    durations: Mapping[Duration, Histogram]
    waiting: int


class Meter:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Count, Labels], float] = {}
        self._durations = {duration: Histogram() for duration in Duration}
        self._waiting = 0

    def add(self, count: Count, amount: float = 1, *labels: str) -> None:
        with self._lock:
            key = (count, labels)
            self._counts[key] = self._counts.get(key, 0) + amount

    def observe(self, duration: Duration, seconds: float) -> None:
        with self._lock:
            self._durations[duration].observe(seconds)

    def answered(self, method: str, status: int, seconds: float) -> None:
        """One request; under one lock, because every append pays for it."""
        with self._lock:
            counts = self._counts
            key = (Count.REQUESTS, (method, str(status)))
            counts[key] = counts.get(key, 0) + 1
            self._durations[Duration.REQUEST].observe(seconds)
            special = _SPECIAL.get(status) or (Count.FAULTS if status >= 500 else None)
            if special is not None:
                counts[special, ()] = counts.get((special, ()), 0) + 1

    def called(self, operation: str, seconds: float) -> None:
        with self._lock:
            key = (Count.STORAGE_CALLS, (operation,))
            self._counts[key] = self._counts.get(key, 0) + 1
            self._durations[Duration.STORAGE].observe(seconds)

    def appended(self, size_bytes: int) -> None:
        with self._lock:
            counts = self._counts
            counts[_APPENDS] = counts.get(_APPENDS, 0) + 1
            counts[_APPEND_BYTES] = counts.get(_APPEND_BYTES, 0) + size_bytes

    @contextmanager
    def waiting(self, kind: str) -> Iterator[None]:
        self.add(Count.WAITS, 1, kind)
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def read(self) -> Reading:
        with self._lock:
            durations = {
                name: Histogram(list(each.buckets), each.total_seconds)
                for name, each in self._durations.items()
            }
            return Reading(dict(self._counts), durations, self._waiting)


_APPENDS: Final = (Count.APPENDS, ())
_APPEND_BYTES: Final = (Count.APPEND_BYTES, ())
_SPECIAL: Final = {409: Count.CONFLICTS, 429: Count.THROTTLED}

#: The process's own.
PROCESS: Final = Meter()
