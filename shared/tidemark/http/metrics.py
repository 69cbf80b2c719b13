"""The process's numbers in Prometheus's text format, at `/v1/metrics`; of the local server
alone, because a function's numbers are those of one environment among many."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.traffic import traffic_of
from tidemark.observability.metrics import (
    BOUNDS,
    COUNTERS,
    HISTOGRAMS,
    PROCESS,
    Labels,
    MetricsSnapshot,
)
from tidemark.protocol.caching import NO_STORE

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(request: Request) -> Response:
    """The numbers of this process, in Prometheus's text format."""
    traffic_of(request)  # Without traffic counting there are no numbers.
    return Response(render(PROCESS.snapshot()), media_type=_TYPE, headers={"Cache-Control": NO_STORE})


def render(snapshot: MetricsSnapshot) -> str:
    lines: list[str] = []
    for counter in COUNTERS:
        name = f"tidemark_{counter.title}_total"
        lines += _head(name, counter.meaning, "counter")
        found = [(labels, value) for (each, labels), value in snapshot.counts.items() if each is counter]
        for labels, value in sorted(found, key=str) or ([] if counter.labels else [((), 0.0)]):
            number = str(int(value)) if value.is_integer() else repr(value)
            lines.append(f"{name}{render_labels(counter.labels, labels)} {number}")
    lines += _head("tidemark_waiting", "Live reads that wait at this moment", "gauge")
    lines.append(f"tidemark_waiting {snapshot.waiting}")
    for histogram in HISTOGRAMS:
        name, observed = f"tidemark_{histogram.title}", snapshot.distributions[histogram]
        lines += _head(name, histogram.meaning, "histogram")
        below = 0
        for bound, inside in zip(BOUNDS, observed.buckets, strict=False):
            below += inside
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {below}')
        lines.append(f'{name}_bucket{{le="+Inf"}} {observed.count}')
        lines.append(f"{name}_sum {observed.total_seconds:.6f}")
        lines.append(f"{name}_count {observed.count}")
    return "".join(f"{line}\n" for line in lines)


def _head(name: str, meaning: str, kind: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


def render_labels(names: tuple[str, ...], values: Labels) -> str:
    """`{name="value",…}`, with the escapes of Prometheus's text format; nothing without names."""
    pairs = []
    for name, value in zip(names, values, strict=True):
        escaped = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        pairs.append(f'{name}="{escaped}"')
    return f"{{{','.join(pairs)}}}" if pairs else ""
