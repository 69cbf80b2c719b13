"""The process's numbers in Prometheus's text format, at `/v1/metrics`; of the local server
alone, because a function's numbers are those of one environment among many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidemark.observability.metrics import (
    BOUNDS,
    COUNTERS,
    HISTOGRAMS,
    PROCESS,
    Distribution,
    Histogram,
    Labels,
    MetricsSnapshot,
)
from tidemark.protocol.caching import NO_STORE

METRICS_PATH: Final = "/v1/metrics"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(_: Request) -> Response:
    return Response(render(PROCESS.snapshot()), media_type=_TYPE, headers={"Cache-Control": NO_STORE})


def render(snapshot: MetricsSnapshot) -> str:
    return "".join(f"{line}\n" for line in _lines(snapshot))


def _lines(snapshot: MetricsSnapshot) -> Iterator[str]:
    for counter in COUNTERS:
        name = f"tidemark_{counter.title}_total"
        yield from _head(name, counter.meaning, "counter")
        found = [(labels, value) for (each, labels), value in snapshot.counts.items() if each is counter]
        for labels, value in sorted(found, key=str) or ([] if counter.labels else [((), 0.0)]):
            yield f"{name}{_labels(counter.labels, labels)} {_number(value)}"
    yield from _head("tidemark_waiting", "Live reads that wait at this moment", "gauge")
    yield f"tidemark_waiting {snapshot.waiting}"
    for histogram in HISTOGRAMS:
        yield from _histogram(histogram, snapshot.distributions[histogram])


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


def _histogram(histogram: Histogram, observed: Distribution) -> Iterator[str]:
    name = f"tidemark_{histogram.title}"
    yield from _head(name, histogram.meaning, "histogram")
    below = 0
    for bound, inside in zip(map("{:g}".format, BOUNDS), observed.buckets, strict=False):
        below += inside
        yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f'{name}_bucket{{le="+Inf"}} {observed.count}'
    yield f"{name}_sum {observed.total_seconds:.6f}"
    yield f"{name}_count {observed.count}"
