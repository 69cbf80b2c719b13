"""What each batch of a streaming query has read, and how far the query is behind.

Spark's progress has `metrics` for each source, but a Python data source cannot fill it (Spark 4.0 to 4.3).
The progress has the offsets too. They are byte positions, so the same can be computed from them:

    spark.streams.addListener(MetricsListener(print))
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql import functions
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidemark.spark.progress import Positions, decode_offset
from tidemark.spark.readers.port import BEGINNING, bytes_between
from tidemark.spark.source import spark_version

_OBSERVED: Final = "tidemark"


@dataclass(frozen=True)
class SourceMetrics:
    """A number is None where it is not known: `bytes` and `streams` of a new query's first batch, what is
    `behind` before Spark 4.2, and all bytes of a server whose offsets are opaque."""

    rows: int
    bytes: int | None
    #: How many streams had new messages.
    streams: int | None
    bytes_behind: int | None
    #: How old the newest message of the batch was when the batch began; 0 if nothing more was there. Only
    #: for a frame of `observe_times`.
    seconds_behind: float | None


def source_metrics(progress: Any, source: int = 0) -> SourceMetrics:
    """Of a `StreamingQueryProgress`; `source` is the place among the query's sources."""
    told = progress.sources[source]
    start, end, latest = map(_positions, (told.startOffset, told.endOffset, told.latestOffset))
    read = _sizes(start, end)
    # Older versions say that the latest offset is where the batch ends.
    behind = _total(_sizes(end, latest)) if spark_version() >= (4, 2) else None
    return SourceMetrics(
        rows=told.numInputRows,
        bytes=_total(read),
        streams=None if read is None else len(read),
        bytes_behind=behind,
        seconds_behind=_age_seconds(progress) if behind else behind,
    )


def observe_times(frame: Any) -> Any:
    """The same frame, for `seconds_behind`; it needs the column `timestamp`."""
    newest = functions.max(functions.unix_millis("timestamp"))
    return frame.observe(_OBSERVED, newest.alias("newest_ms"))


class MetricsListener(StreamingQueryListener):
    """Reports the metrics of the first source of every query after each of its batches."""

    def __init__(self, report: Callable[[SourceMetrics], object]) -> None:
        self._report = report

    def onQueryProgress(self, event: Any) -> None:
        self._report(source_metrics(event.progress))

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def _positions(offset: str | None) -> Positions | None:
    """Of a query's first batch some versions tell the start as text."""
    return None if offset in (None, "None", "null") else decode_offset(json.loads(offset)).positions


def _sizes(start: Positions | None, end: Positions | None) -> list[int | None] | None:
    """By how many bytes `end` is beyond `start` in each stream that has moved. None where one of the two is
    not known, and in the list for opaque offsets."""
    if start is None or end is None:
        return None
    sizes = []
    for name, position in end.items():
        before = start.get(name)
        if before is None or before.is_of_another(position):
            sizes.append(bytes_between(BEGINNING, position.offset))
        elif before.offset != position.offset:
            sizes.append(bytes_between(before.offset, position.offset))
    return sizes


def _total(sizes: list[int | None] | None) -> int | None:
    if sizes is None:
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _age_seconds(progress: Any) -> float | None:
    observed = progress.observedMetrics.get(_OBSERVED)
    newest_ms = None if observed is None else observed["newest_ms"]
    if newest_ms is None:
        return None
    began = datetime.fromisoformat(progress.timestamp).timestamp()
    return max(0.0, began - int(newest_ms) / 1000)
