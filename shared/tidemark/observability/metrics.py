"""Metrics of one process, in memory: counters, and histograms of durations.

The local server shows them to Prometheus (`http/metrics.py`), and a deployed function sends them through
Powertools (`report.py`). They cost an append a few additions under a lock.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemark.observability.tracing import Spans

#: Upper bounds of the histograms' buckets, in seconds.
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """A number that only grows. Compared by identity, because a hash would cost more than the addition."""

    title: str
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Durations in seconds, counted in the buckets of `BOUNDS`."""

    title: str
    meaning: str


REQUESTS: Final = Counter("requests", "Responses, by method and status", ("method", "status"))
APPENDS: Final = Counter("appends", "Accepted appends, with producers' repetitions and creations with a body")
APPEND_BYTES: Final = Counter("append_bytes", "Bytes in accepted appends")
CONFLICTS: Final = Counter("conflicts", "Responses of 409")
OVERTAKEN: Final = Counter("overtaken", "Conflicts of appends that overtook their producer's previous one")
THROTTLED: Final = Counter("throttled", "Responses of 429: storage or the server was too busy")
FAULTS: Final = Counter(
    "faults", "Responses, event streams and watches ended by 5xx; refused posts to sockets"
)
STORAGE_CALLS: Final = Counter("storage_calls", "Calls to DynamoDB and S3, by operation", ("operation",))
RETRIES: Final = Counter("retries", "Repeated storage calls")
WAITS: Final = Counter(
    "waits", "Started long-polls, event streams and sockets of a server, by kind", ("kind",)
)
WAKES: Final = Counter(
    "wakes", "Started deliveries of subscriptions, by kind: webhook or pull-wake", ("kind",)
)
WEBHOOK_FAILURES: Final = Counter("webhook_failures", "Failed webhook calls, which are repeated")
SHARED_TAKEN: Final = Counter("shared_taken", "Messages given to workers of shared subscriptions")
SHARED_DONE: Final = Counter("shared_done", "Messages that workers of shared subscriptions have done")
SHARED_LATE: Final = Counter(
    "shared_late", "Receipts that came late: another worker of a shared subscription has the message"
)
PACKS: Final = Counter("packs", "Packs made of old batches")
MERGED_PACKS: Final = Counter("merged_packs", "Small packs merged into larger ones")
PACKED_BYTES: Final = Counter("packed_bytes", "Bytes of messages that packs have moved out of the table")
PACK_STORED_BYTES: Final = Counter("pack_stored_bytes", "Bytes of the objects of packs")
PACKED_BATCHES: Final = Counter("packed_batches", "Batches that packs have replaced")
COMPACTED_BYTES: Final = Counter("compacted_bytes", "Bytes of messages read by compaction")
COMPACTED_AWAY_BYTES: Final = Counter("compacted_away_bytes", "Bytes of messages removed by compaction")
ROUNDS_CUT_SHORT: Final = Counter(
    "rounds_cut_short", "Unfinished rounds of the janitor; the next round does the rest"
)
KEY_FAILURES: Final = Counter("key_failures", "Failed fetches of token keys or the origin secret")
CLOCK_OFF: Final = Counter("clock_off", "Checks that found this machine's clock 2 s or more off storage's")
COUNTERS: Final = tuple(each for each in tuple(globals().values()) if isinstance(each, Counter))

REQUEST_SECONDS: Final = Histogram("request_seconds", "Time until the response began, long-polls included")
_STORAGE_SECONDS: Final = Histogram("storage_seconds", "Time of one call to DynamoDB or, for a body, to S3")
WAKE_SECONDS: Final = Histogram("wake_seconds", "Time from an append to the response or event that it woke")
HISTOGRAMS: Final = (REQUEST_SECONDS, _STORAGE_SECONDS, WAKE_SECONDS)


@dataclass(slots=True)
class Distribution:
    """The observations of one histogram."""

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
    """All metrics of a process at one moment."""

    counts: Mapping[tuple[Counter, Labels], float]
    distributions: Mapping[Histogram, Distribution]
    #: Live reads that are waiting now.
    waiting: int


def overtook(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether this response makes a producer repeat its request after the previous one. Clients with several
    requests in flight get such responses."""
    return status == 409 and any(name == b"producer-expected-seq" for name, _ in headers)


class Meter:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[tuple[Counter, Labels], float] = defaultdict(float)
        self._distributions = {histogram: Distribution() for histogram in HISTOGRAMS}
        self._waiting = 0
        #: Makes spans of storage calls and wakes too; None unless they are exported.
        self.spans: Spans | None = None

    def export_spans(self) -> None:
        try:
            from tidemark.observability.tracing import Spans

            self.spans = self.spans or Spans()
        except ImportError:
            logging.getLogger("tidemark").warning("OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel")

    def add(self, counter: Counter, amount: float = 1.0, labels: Labels = ()) -> None:
        with self._lock:
            self._counts[counter, labels] += amount

    def observe(self, histogram: Histogram, seconds: float) -> None:
        with self._lock:
            self._distributions[histogram].observe(seconds)
        if self.spans and histogram is WAKE_SECONDS:
            self.spans.woken()

    def answered(self, method: str, status: int, seconds: float) -> None:
        """Count one response. Every append calls this method and the next two."""
        with self._lock:
            self._counts[REQUESTS, (method, status)] += 1
            self._distributions[REQUEST_SECONDS].observe(seconds)
        if status >= 500:
            self.add(FAULTS)
        elif status in _COUNTED_STATUSES:
            self.add(_COUNTED_STATUSES[status])

    def called(self, operation: str, seconds: float) -> None:
        """Count one finished storage call."""
        with self._lock:
            self._counts[STORAGE_CALLS, (operation,)] += 1
            self._distributions[_STORAGE_SECONDS].observe(seconds)
        if self.spans:
            self.spans.called(operation, seconds)

    def appended(self, size_bytes: int) -> None:
        """Count one accepted append."""
        with self._lock:
            self._counts[_APPENDS] += 1
            self._counts[_APPEND_BYTES] += size_bytes

    @contextmanager
    def waiting(self, kind: str) -> Iterator[None]:
        """Count a live read, or an open socket, as waiting while the block runs."""
        self.add(WAITS, 1, (kind,))
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def snapshot(self) -> MetricsSnapshot:
        with self._lock:
            distributions = {
                histogram: Distribution(list(observed.buckets), observed.total_seconds)
                for histogram, observed in self._distributions.items()
            }
            return MetricsSnapshot(dict(self._counts), distributions, self._waiting)


_APPENDS: Final = (APPENDS, ())
_APPEND_BYTES: Final = (APPEND_BYTES, ())
_COUNTED_STATUSES: Final = {409: CONFLICTS, 429: THROTTLED}

#: The one meter of this process.
PROCESS: Final = Meter()
