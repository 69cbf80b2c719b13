"""The rows of the benchmark: the load of each, and the figures that are compared."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A measurement of a row. `target` is the ratio to reach; above 1, Tidemark is the better one."""

    key: str
    label: str
    unit: str
    more_is_better: bool
    target: float = 1.0

    def ratio(self, ours: float, theirs: float) -> float:
        return ours / theirs if self.more_is_better else theirs / ours


@dataclass(frozen=True)
class Load:
    """A call of the load generator: the name of its row, and its options as JSON."""

    row: str
    options: str


@dataclass(frozen=True)
class Row:
    """`prepare` runs once a server, `load` each repeat; a `cold` row restarts the server before that."""

    name: str
    load: Load
    figures: tuple[Figure, ...]
    prepare: Load | None = None
    cold: bool = False


def load(row: str, **options: float | str) -> Load:
    return Load(row, json.dumps(options))


def rate(label: str, target: float = 1.0) -> Figure:
    return Figure("per_second", label, "appends/s", more_is_better=True, target=target)


def milliseconds(key: str, label: str) -> Figure:
    return Figure(key, label, "ms", more_is_better=False)


def throughput(label: str) -> Figure:
    return Figure("mb_per_second", label, "MB/s", more_is_better=True)


BINARY = load("fillBinary", name="bench-binary", pieces=500, piece_bytes=100_000)
JSON = load("fillJson", name="bench-json", appends=1000, messages=100)


#: A server that packs has the time to do so.
SMALL = load("fillJson", name="bench-small", appends=1000, messages=500, rest_seconds=45)


def read_binary(times: int) -> Load:
    return load("catchUp", name="bench-binary", at_least_bytes=50_000_000, times=times)


def read_json(times: int) -> Load:
    return load("catchUp", name="bench-json", at_least_bytes=10_000_000, times=times)


def latency_figures(label: str) -> tuple[Figure, ...]:
    return milliseconds("p50_ms", f"{label}, p50"), milliseconds("p99_ms", f"{label}, p99")


ROWS: tuple[Row, ...] = (
    Row(
        "sequential",
        load("sequential", count=400, seconds=4),
        (*latency_figures("sequential append"), rate("sequential appends")),
    ),
    Row("32-to-1", load("fan", clients=32, streams=1, seconds=2.5), (rate("32 clients → 1 stream", 3.0),)),
    Row("32-to-32", load("fan", clients=32, streams=32, seconds=2.5), (rate("32 clients → 32 streams"),)),
    Row("catch-up", read_binary(3), (throughput("catch-up of 50 MB binary"),), prepare=BINARY),
    Row(
        "catch-up-cold",
        read_binary(1),
        (throughput("50 MB binary, first read after a restart"),),
        prepare=BINARY,
        cold=True,
    ),
    Row(
        "catch-up-json",
        read_json(3),
        (throughput("catch-up of 10 MB JSON, 100-byte messages"),),
        prepare=JSON,
    ),
    Row(
        "catch-up-json-cold",
        read_json(1),
        (throughput("10 MB JSON, first read after a restart"),),
        prepare=JSON,
        cold=True,
    ),
    Row(
        "small-cold",
        load("catchUp", name="bench-small", at_least_bytes=50_000_000, times=1),
        (throughput("50 MB of 100-byte messages, first read"),),
        prepare=SMALL,
        cold=True,
    ),
    Row("long-poll", load("readers", readers=1, rounds=100, settle_ms=15), latency_figures("long-poll wake")),
    Row("sse", load("sse", count=100, settle_ms=10), latency_figures("SSE delivery")),
    Row(
        "100-readers",
        load("readers", readers=100, rounds=10, settle_ms=250),
        (milliseconds("p50_ms", "100 waiting readers, until the last one has it, p50"),),
    ),
    Row(
        "500-readers",
        load("readers", readers=500, rounds=5, settle_ms=800),
        (milliseconds("p50_ms", "500 waiting readers, until the last one has it, p50"),),
    ),
)


def chosen_rows(names: str | None) -> tuple[Row, ...]:
    """Return the rows in a comma-separated list of names, in the table's order; without a list, all rows."""
    if names is None:
        return ROWS
    wanted = set(names.split(","))
    unknown = wanted - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in ROWS)}"
        )
    return tuple(row for row in ROWS if row.name in wanted)
