"""Trims streams to the data that the lake does not have: `trim --archived`.

A stretch of a stream is in the lake when all its bytes are: the sizes of its rows add up to the distance
between its offsets. A stream is trimmed to where such stretches go on from its first retained offset without
a gap.

A compacted stream has less than its offsets are apart, and so has what was archived of it later. Of such a
stream the messages that are left are looked at: each must be in a stretch, and no stretch may have fewer
bytes than what is left there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
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
from tidemark.spark.readers.port import DataLoss, MissingStream
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
    """The data in the lake of each stream and incarnation, as `stretches` of begin, end and the bytes between
    them. `rows` are those of the lake's table, of one bucket; no value is read.

    A message that was archived twice counts once, and one whose copies differ counts for nothing. Offsets
    that are not numbers are another server's, and do not count either. A page with fewer bytes than its
    offsets are apart, of which no position is missing, is a stretch of its own.
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
    pages = once.groupBy(*stream, *page).agg(
        sizes.alias("stored"),
        functions.expr("count(*) = max(position) + 1 AND every(stored = most)").alias("has_all"),
    )
    whole = pages.where("stored = end - begin")
    short = pages.where("stored < end - begin AND has_all").drop("has_all")
    before = Window.partitionBy(*stream).orderBy(*page).rowsBetween(Window.unboundedPreceding, -1)
    until_here = Window.partitionBy(*stream).orderBy(*page).rowsBetween(Window.unboundedPreceding, 0)
    reached = functions.max("end").over(before)
    begins = whole.withColumn("gap", (reached.isNull() | (functions.col("begin") > reached)).cast("int"))
    numbered = begins.withColumn("number", functions.sum("gap").over(until_here))
    found = numbered.groupBy(*stream, "number").agg(
        functions.min("begin").alias("begin"), functions.max("end").alias("end")
    )
    found = found.selectExpr(*stream, *page, "end - begin AS stored").unionByName(short)
    stretches = functions.collect_list(functions.struct(*page, "stored")).alias("stretches")
    return found.groupBy(*stream).agg(stretches)


Stretch = tuple[int, int, int]
"""Where it begins and ends, and the bytes that the lake has of it."""


def archived_end(begin: int, stretches: Sequence[Stretch]) -> int:
    """How far the lake has every byte from `begin` on."""
    return contiguous_end(begin, [(start, end) for start, end, stored in stretches if stored == end - start])


def archived_end_of_compacted(
    begin: int, compacted: int, left: Sequence[tuple[int, int]], stretches: Sequence[Stretch]
) -> int:
    """How far the lake has every message from `begin` on of a stream that is compacted up to `compacted`, and
    of which `left` are the messages there. Between these there is nothing that the lake could lack."""
    starts = [start for start, _ in left]
    bytes_before = np.cumsum([0, *(end - start for start, end in left)])

    def has_all(start: int, end: int, stored: int) -> bool:
        if stored == end - start:
            return True
        first, last = np.searchsorted(starts, (start, end))
        return end <= compacted and bool(bytes_before[last] - bytes_before[first] <= stored)

    archived = [(start, end) for start, end, stored in stretches if has_all(start, end, stored)]
    nothing = zip([begin, *(end for _, end in left)], [*starts, compacted], strict=True)
    return contiguous_end(begin, [*archived, *nothing])


class Trimmer:
    """One task's work, connected."""

    def __init__(self, plan: TrimPlan) -> None:
        self._plan = plan
        self._stores = connect_to_write(plan.connection)
        self._reader = connect(plan.connection)

    def run(self, stream: str, incarnation: str, stretches: Sequence[Stretch]) -> TrimResult:
        """`stretches` are of this incarnation, and say nothing of a stream that has taken its name."""
        key = StreamKey(self._plan.connection.bucket, stream)
        record = load_stream(self._stores.table, key)
        if record is None or record.deleted or record.incarnation != incarnation:
            return TrimResult(stream, GONE)
        try:
            end = self._limit(record, self._archived_end(record, stretches))
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
        except (ProtocolError, DataLoss) as refusal:
            return TrimResult(stream, KEPT, detail=str(refusal))
        return TrimResult(stream, TRIMMED, size, f"to {render_offset(end)}")

    def _archived_end(self, record: StreamRecord, stretches: Sequence[Stretch]) -> int:
        end = archived_end(record.retained, stretches)
        if end >= record.compacted:
            return end
        return archived_end_of_compacted(record.retained, record.compacted, self._left(record), stretches)

    def _left(self, record: StreamRecord) -> list[tuple[int, int]]:
        """The messages below what is compacted. Raises MissingStream, DataLoss."""
        name = record.key.stream_id
        head = self._reader.head(name)
        low, high = (head.tail.at(render_offset(each)) for each in (record.retained, record.compacted))
        found: list[tuple[int, int]] = []
        for part in self._reader.partitions(name, low, high, 1 << 40):
            for batch in self._reader.read(part, ("offset", "end_offset")):
                places = (map(int, column.to_pylist()) for column in batch.columns)
                found += zip(*places, strict=True)
        return found

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
                places = [(each["begin"], each["end"], each["stored"]) for each in row["stretches"]]
                result = trimmer.run(row["stream"], row["incarnation"] or "", places)
                yield pa.RecordBatch.from_pylist([vars(result)], schema=_RESULT)

    return stretches.repartition(tasks).mapInArrow(work, RESULT_SCHEMA)
