"""The metrics of a server: `/v1/metrics` in Prometheus's text format, the busiest streams at `/v1/traffic`,
and the last hour at `/v1/rates`.

All are counted in memory, without storage. A function has no such paths, because it would show the numbers of
one environment among many.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemark.http.requests import RECEIVED, STREAM, Respond
from tidemark.observability import metrics as meters
from tidemark.protocol.errors import RouteNotFound
from tidemark.protocol.stream_key import StreamKey

_SHOWN: Final = 20
#: Traffic is counted in two windows: the current one and the one before.
WINDOW_SECONDS: Final = 30.0
#: The most streams in a window. Later streams are left out until the next window.
MAX_STREAMS: Final = 2_000
#: The streams that were written last.
MAX_WRITTEN: Final = 1_000
#: An hour of samples, 8 numbers each.
SAMPLE_SECONDS: Final = 5.0
MAX_SAMPLES: Final = 721
_COUNTED: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
_Piece = str | bytes | memoryview


@dataclass(slots=True)
class StreamTraffic:
    """Successful appends and reads of a stream, the bytes of their bodies, and failed requests."""

    appends: int = 0
    append_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class TrafficSnapshot:
    """The busiest streams first. `left_out` counts requests to streams beyond the first `MAX_STREAMS`.
    `written` has the streams that were written last, the latest first, and the seconds since."""

    seconds: float
    streams: list[tuple[StreamKey, StreamTraffic]]
    left_out: int
    written: list[tuple[StreamKey, float]]


class Traffic:
    """Counts traffic by stream, in one event loop. An append costs a dictionary lookup and two additions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._streams: dict[StreamKey, StreamTraffic] = {}
        self._before: dict[StreamKey, StreamTraffic] = {}
        self._began = self._before_began = clock()
        self._left_out = self._left_out_before = 0
        #: The times of the last appends by `clock`, in their order.
        self.written: dict[StreamKey, float] = {}
        #: Totals of all streams since the start.
        self.reads = self.read_bytes = 0

    def appended(self, key: StreamKey, size: int) -> None:
        counted = self._of(key)
        counted.appends += 1
        counted.append_bytes += size
        self.written.pop(key, None)
        self.written[key] = self._clock()
        if len(self.written) > MAX_WRITTEN:
            del self.written[next(iter(self.written))]

    def read(self, key: StreamKey) -> None:
        self.reads += 1
        self._of(key).reads += 1

    def sent(self, key: StreamKey, size: int) -> None:
        self.read_bytes += size
        self._of(key).read_bytes += size

    def failed(self, key: StreamKey) -> None:
        self._of(key).failures += 1

    def snapshot(self, limit: int) -> TrafficSnapshot:
        now = self._turn()
        total: dict[StreamKey, StreamTraffic] = {}
        for window in (self._before, self._streams):
            for key, counted in window.items():
                shown = total.setdefault(key, StreamTraffic())
                shown.appends += counted.appends
                shown.append_bytes += counted.append_bytes
                shown.reads += counted.reads
                shown.read_bytes += counted.read_bytes
                shown.failures += counted.failures
        busiest = sorted(total.items(), key=lambda each: -each[1].appends - each[1].reads - each[1].failures)
        left_out = self._left_out_before + self._left_out
        written = [(key, now - at) for key, at in islice(reversed(self.written.items()), limit)]
        return TrafficSnapshot(round(now - self._before_began, 3), busiest[:limit], left_out, written)

    def _of(self, key: StreamKey) -> StreamTraffic:
        self._turn()
        counted = self._streams.get(key)
        if counted is None:
            counted = StreamTraffic()
            if len(self._streams) < MAX_STREAMS:
                self._streams[key] = counted
            else:
                self._left_out += 1
        return counted

    def _turn(self) -> float:
        """Begin a new window if the current one is over. Return the time."""
        now = self._clock()
        age = now - self._began
        if age >= WINDOW_SECONDS:
            is_recent = age < 2 * WINDOW_SECONDS
            self._before = self._streams if is_recent else {}
            self._left_out_before = self._left_out if is_recent else 0
            self._before_began = self._began if is_recent else now
            self._streams, self._left_out, self._began = {}, 0, now
        return now


@dataclass(frozen=True, slots=True)
class CountedTraffic:
    """Guard that counts successful appends and reads, the bytes of their bodies, and failures."""

    traffic: Traffic

    async def __call__(self, respond: Respond, request: Request) -> Response:
        response, scope = await respond(request), request.scope
        key, status = scope.get(STREAM), response.status_code
        if key is None or request.method not in _COUNTED or meters.overtook(status, response.raw_headers):
            return response
        if self._is_read(request.method, key, status, scope.get(RECEIVED, 0)):
            if isinstance(response, StreamingResponse):
                response.body_iterator = self._sent(key, response.body_iterator)
            else:
                self.traffic.sent(key, len(response.body))
        return response

    async def _sent(self, key: StreamKey, pieces: AsyncIterable[_Piece]) -> AsyncIterator[_Piece]:
        async for piece in pieces:
            self.traffic.sent(key, len(piece))
            yield piece

    def _is_read(self, method: str, key: StreamKey, status: int, received: int) -> bool:
        """Count a response. Return whether it is a read's, for which `sent` counts the bytes."""
        if method == "PUT" and not (status == 201 and received):
            return False
        if status >= 400:
            # Other errors are the client's: an invalid request, an unknown stream, or a missing right.
            if status in {409, 429} or status >= 500:
                self.traffic.failed(key)
        elif method == "DELETE":
            self.traffic.written.pop(key, None)
        elif method == "GET":
            self.traffic.read(key)
            return True
        else:
            self.traffic.appended(key, received)
        return False


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of this process since its start, and the number of waiting readers."""

    at_ms: int
    appends: int
    append_bytes: int
    reads: int
    read_bytes: int
    refused: int
    failed: int
    waiting: int


class Rates:
    """The last hour of this process, from samples, so that requests pay nothing."""

    def __init__(
        self, traffic: Traffic, meter: meters.Meter = meters.PROCESS, clock: Callable[[], float] = time.time
    ) -> None:
        self.traffic = traffic
        self._meter = meter
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def sample(self) -> None:
        counted = self._meter.snapshot()
        statuses = [
            (labels[1], count) for (each, labels), count in counted.counts.items() if each is meters.REQUESTS
        ]
        refused = sum(count for status, count in statuses if 400 <= int(status) < 500)
        self._samples.append(
            Sample(
                at_ms=round(self._clock() * 1000),
                appends=int(counted.counts.get((meters.APPENDS, ()), 0)),
                append_bytes=int(counted.counts.get((meters.APPEND_BYTES, ()), 0)),
                reads=self.traffic.reads,
                read_bytes=self.traffic.read_bytes,
                refused=int(refused - counted.counts.get((meters.OVERTAKEN, ()), 0)),
                failed=int(sum(count for status, count in statuses if int(status) >= 500)),
                waiting=counted.waiting,
            )
        )

    def lists(self) -> dict[str, list[int]]:
        """One list for each number, with one member for each interval: its end, its length, its counts, and
        the readers that waited at its end."""
        steps = list(pairwise(self._samples))
        grown = {
            name: [getattr(after, name) - getattr(before, name) for before, after in steps]
            for name in ("appends", "append_bytes", "reads", "read_bytes", "refused", "failed")
        }
        return {
            "at_ms": [after.at_ms for _, after in steps],
            "ms": [after.at_ms - before.at_ms for before, after in steps],
            **grown,
            "waiting": [after.waiting for _, after in steps],
        }

    @asynccontextmanager
    async def sampling(self) -> AsyncIterator[None]:
        async def keep() -> None:
            while True:
                self.sample()
                await asyncio.sleep(SAMPLE_SECONDS)

        task = asyncio.create_task(keep())
        try:
            yield
        finally:
            task.cancel()


def rates_of(request: Request) -> Rates:
    """Raises RouteNotFound on a server without metrics."""
    found: Rates | None = request.app.rates
    if found is None:
        raise RouteNotFound
    return found


async def traffic(request: Request) -> dict[str, Any]:
    """The busiest streams of this process, and the streams that it wrote last."""
    found = rates_of(request).traffic.snapshot(_SHOWN)
    streams = [
        {"bucket_id": key.bucket, "stream_id": key.stream_id, **asdict(each)} for key, each in found.streams
    ]
    written = [
        {"bucket_id": key.bucket, "stream_id": key.stream_id, "seconds_ago": round(seconds, 3)}
        for key, seconds in found.written
    ]
    return {"seconds": found.seconds, "streams": streams, "left_out": found.left_out, "written": written}


async def rates(request: Request) -> dict[str, list[int]]:
    """The last hour of this process."""
    return rates_of(request).lists()


_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(request: Request) -> Response:
    """The metrics of this process, in Prometheus's text format."""
    rates_of(request)  # Raises RouteNotFound without metrics.
    return Response(render(meters.PROCESS.snapshot()), media_type=_TYPE)


def render(snapshot: meters.MetricsSnapshot) -> str:
    lines: list[str] = []
    for counter in meters.COUNTERS:
        name = f"tidemark_{counter.title}_total"
        lines += _head(name, counter.meaning, "counter")
        found = [(labels, value) for (each, labels), value in snapshot.counts.items() if each is counter]
        for labels, value in sorted(found, key=str) or ([] if counter.labels else [((), 0.0)]):
            number = str(int(value)) if value.is_integer() else repr(value)
            lines.append(f"{name}{render_labels(counter.labels, labels)} {number}")
    lines += _head("tidemark_waiting", "Live reads that wait at this moment, and open sockets", "gauge")
    lines.append(f"tidemark_waiting {snapshot.waiting}")
    for histogram in meters.HISTOGRAMS:
        name, observed = f"tidemark_{histogram.title}", snapshot.distributions[histogram]
        lines += _head(name, histogram.meaning, "histogram")
        below = 0
        for bound, inside in zip(meters.BOUNDS, observed.buckets, strict=False):
            below += inside
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {below}')
        lines.append(f'{name}_bucket{{le="+Inf"}} {observed.count}')
        lines.append(f"{name}_sum {observed.total_seconds:.6f}")
        lines.append(f"{name}_count {observed.count}")
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, meaning: str, kind: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def render_labels(names: tuple[str, ...], values: meters.Labels) -> str:
    """`{name="value",…}`, with the escapes of Prometheus's text format; nothing without names."""
    pairs = []
    for name, value in zip(names, values, strict=True):
        escaped = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
