"""The process's numbers in Prometheus's text format, at `/v1/metrics`; of the local server
alone, because a function's numbers are those of one environment among many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidemark.observability.metrics import (
    BOUNDS,
    COUNTS,
    DURATIONS,
    PROCESS,
    Duration,
    Histogram,
    Labels,
    MetricsSnapshot,
)

METRICS_PATH: Final = "/v1/metrics"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(_: Request) -> Response:
    return Response(render(PROCESS.read()), media_type=_TYPE, headers={"Cache-Control": "no-store"})


def render(reading: MetricsSnapshot) -> str:
    return "".join(f"{line}\n" for line in _lines(reading))


def _lines(reading: MetricsSnapshot) -> Iterator[str]:
    for count in COUNTS:
        name = f"tidemark_{count.title}_total"
        yield from _head(name, count.meaning, "counter")
        found = [(labels, value) for (each, labels), value in reading.counts.items() if each is count]
        for labels, value in sorted(found, key=str) or ([] if count.labels else [((), 0.0)]):
            yield f"{name}{_labels(count.labels, labels)} {_number(value)}"
    yield from _head("tidemark_waiting", "Live reads that wait at this moment", "gauge")
    yield f"tidemark_waiting {reading.waiting}"
    for duration in DURATIONS:
        yield from _histogram(duration, reading.durations[duration])


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _labels(names: tuple[str, ...], values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escape(str(value))}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _histogram(duration: Duration, histogram: Histogram) -> Iterator[str]:
    name = f"tidemark_{duration.title}"
    yield from _head(name, duration.meaning, "histogram")
    below = 0
    for bound, inside in zip(map("{:g}".format, BOUNDS), histogram.buckets, strict=False):
        below += inside
        yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f'{name}_bucket{{le="+Inf"}} {histogram.count}'
    yield f"{name}_sum {histogram.total_seconds:.6f}"
    yield f"{name}_count {histogram.count}"
