"""What a query's progress tells about its source: `tidemark.spark.metrics`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.spark.streams import Streams, started
from tidemark.spark import metrics
from tidemark.spark.metrics import MetricsListener, SourceMetrics, observe_times, source_metrics
from tidemark.spark.source import spark_version

ADMISSION = spark_version() >= (4, 2)


def test_a_listener_reports_rows_bytes_and_how_far_a_query_is_behind(
    spark: Any, streams: Streams, tmp_path: Path
) -> None:
    """Twelve bytes are three messages of four. The tests' clock is ahead of Spark's, so nothing is old."""
    streams.fill(*[b"%04d" % number for number in range(7)])
    reported: list[SourceMetrics] = []
    listener = MetricsListener(reported.append)
    options = {"maxBytesPerTrigger": "12"} | ({} if ADMISSION else {"assumeProcessingTime": "true"})
    frame = spark.readStream.format("tidemark").options(**streams.by_table(**options)).load()
    writing = observe_times(frame).writeStream.format("noop").option("checkpointLocation", str(tmp_path))

    def run() -> None:
        query = writing.trigger(processingTime="0 seconds").start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    spark.streams.addListener(listener)
    try:
        started(run)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    read = [(3, None, None), (3, 12, 1), (1, 4, 1)]
    behind = [(16, 0.0), (4, 0.0), (0, 0.0)] if ADMISSION else [(None, None)] * 3
    assert reported == [SourceMetrics(*one, *more) for one, more in zip(read, behind, strict=True)]


def at(place: int, incarnation: str = "i") -> list[str]:
    return [f"{place:016}", incarnation]


@pytest.mark.parametrize(
    ("start", "latest", "expected"),
    [
        ({"a": at(1), "b": at(9, "old")}, {"a": at(8), "b": at(4), "c": at(2)}, (7, 2, 6, 1.5)),
        ({"a": at(4), "b": at(4)}, {"a": at(4), "b": at(4)}, (0, 0, 0, 0.0)),
        ({"a": ["x7"], "b": at(4)}, {"a": ["x9"], "b": at(4)}, (None, 1, None, None)),
        (None, {"a": at(4), "b": at(4)}, (None, None, 0, 0.0)),
    ],
    ids=["another stream of a name, and a new one", "nothing new", "opaque offsets", "the first batch"],
)
def test_metrics_are_computed_from_the_offsets_in_the_progress(
    start: Any, latest: Any, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "spark_version", lambda: (4, 2))
    end = {"a": at(4), "b": at(4)}
    source = SimpleNamespace(
        numInputRows=2,
        startOffset=json.dumps(start),
        endOffset=json.dumps(end),
        latestOffset=json.dumps(latest),
    )
    progress = SimpleNamespace(
        sources=[source],
        timestamp="2026-11-21T10:00:01.500Z",
        observedMetrics={"tidemark": {"newest_ms": 1795255200000}},
    )
    assert source_metrics(progress) == SourceMetrics(2, *expected)
