"""Trims streams to the data that the lake does not have: `trim --archived`.

A stretch of a stream is in the lake when all its bytes are: the sizes of its rows add up to the distance
between its offsets. A stream is trimmed to where such stretches go on from its first retained offset without
a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidemark.log.read import load_stream
from tidemark.log.records import StreamRecord
from tidemark.protocol.errors import Busy, OutcomeUnknown, ProtocolError, SoftDeleted, StreamNotFound
from tidemark.protocol.offset import render_offset
from tidemark.protocol.retention import contiguous_end
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.retention import check_may_trim, trim_below
from tidemark.spark.http_client import retry
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.progress import Progress, taken_by_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.columns import arrow_schema
from tidemark.spark.readers.port import MissingStream
from tidemark.spark.storage import connect_to_write

#: The outcome for a stream.
TRIMMED: Final = "trimmed"
WOULD_TRIM: Final = "would trim"
UNCHANGED: Final = "unchanged"
GONE: Final = "gone"
KEPT: Final = "kept"

RESULT_SCHEMA: Final = "stream STRING, outcome STRING, bytes BIGINT, detail STRING"
_RESULT: Final = arrow_schema(RESULT_SCHEMA)


@dataclass(frozen=True)
class TrimPlan:
    """The instructions for every task. `consumers` is the progress of each consumer: no stream is trimmed
    beyond the slowest."""

    connection: ConnectionOptions
    consumers: tuple[Progress, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class TrimResult:
    """`bytes` is the number of bytes that were trimmed."""

    stream: str
    outcome: str
    bytes: int = 0
    detail: str = ""


def archived_stretches(rows: Any) -> Any:
    """The data in the lake of each stream and incarnation, as `stretches` of begin and end. `rows` are those
    of the lake's table, of one bucket; no value is read.

    A message that was archived twice counts once, and one whose copies differ counts for nothing. Offsets
    that are not numbers are another server's, and do not count either.
    """
    from pyspark.sql import Window, functions

    stream, page = ["stream", "incarnation"], ["begin", "end"]
    is_json = "lower(trim(split(content_type, ';')[0])) = 'application/json'"
    messages = rows.selectExpr(
        *stream,
        "CASE offset WHEN '-1' THEN 0 ELSE try_cast(offset AS BIGINT) END AS begin",
        "try_cast(end_offset AS BIGINT) AS end",
        "position",
        # A stored JSON message ends in a comma.
        f"bytes + IF({is_json}, 1, 0) AS stored",
    )
    once = messages.groupBy(*stream, *page, "position").agg(
        functions.min("stored").alias("stored"), functions.max("stored").alias("most")
    )
    sizes = functions.sum(functions.expr("IF(stored = most, stored, NULL)"))
    pages = once.groupBy(*stream, *page).agg(sizes.alias("stored"), functions.count("*").alias("rows"))
    whole = pages.where("stored = end - begin")
    before = Window.partitionBy(*stream).orderBy(*page).rowsBetween(Window.unboundedPreceding, -1)
    until_here = Window.partitionBy(*stream).orderBy(*page).rowsBetween(Window.unboundedPreceding, 0)
    reached = functions.max("end").over(before)
    begins = whole.withColumn("gap", (reached.isNull() | (functions.col("begin") > reached)).cast("int"))
    numbered = begins.withColumn("number", functions.sum("gap").over(until_here))
    found = numbered.groupBy(*stream, "number").agg(
        functions.min("begin").alias("begin"), functions.max("end").alias("end")
    )
    stretches = functions.collect_list(functions.struct("begin", "end")).alias("stretches")
    return found.groupBy(*stream).agg(stretches)


class Trimmer:
    """One task's work, connected."""

    def __init__(self, plan: TrimPlan) -> None:
        self._plan = plan
        self._stores = connect_to_write(plan.connection)
        self._reader = connect(plan.connection)

    def run(self, stream: str, incarnation: str, stretches: list[tuple[int, int]]) -> TrimResult:
        """`stretches` are of this incarnation, and say nothing of a stream that has taken its name."""
        key = StreamKey(self._plan.connection.bucket, stream)
        record = load_stream(self._stores.table, key)
        if record is None or record.deleted or record.incarnation != incarnation:
            return TrimResult(stream, GONE)
        try:
            end = self._limit(record, contiguous_end(record.retained, stretches))
            size = end - record.retained
            if size <= 0:
                return TrimResult(stream, UNCHANGED)
            check_may_trim(record, incarnation)
            if self._plan.dry_run:
                return TrimResult(stream, WOULD_TRIM, size, f"to {render_offset(end)}")
            seconds = self._plan.connection.retry_seconds
            retry(lambda: trim_below(self._stores, key, end, incarnation), seconds, Busy, OutcomeUnknown)
        except (MissingStream, StreamNotFound, SoftDeleted):
            return TrimResult(stream, GONE)
        except ProtocolError as refusal:
            return TrimResult(stream, KEPT, detail=refusal.message)
        return TrimResult(stream, TRIMMED, size, f"to {render_offset(end)}")

    def _limit(self, record: StreamRecord, end: int) -> int:
        """Never beyond the progress of every consumer."""
        if not self._plan.consumers:
            return end
        head = self._reader.head(record.key.stream_id)
        floor = taken_by_all(self._plan.consumers, record.key.bucket, head)
        return min(end, int(floor.offset)) if floor is not None and floor.offset.isdigit() else 0


def trim_streams(plan: TrimPlan, stretches: Any, tasks: int) -> Any:
    """A data frame with the outcome of each stream of `archived_stretches`."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        trimmer = Trimmer(plan)
        for batch in batches:
            for row in batch.to_pylist():
                places = [(each["begin"], each["end"]) for each in row["stretches"]]
                result = trimmer.run(row["stream"], row["incarnation"] or "", places)
                yield pa.RecordBatch.from_pylist([vars(result)], schema=_RESULT)

    return stretches.repartition(tasks).mapInArrow(work, RESULT_SCHEMA)
