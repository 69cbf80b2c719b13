"""Folds many streams at once. One task reads a stream, folds it and publishes its snapshot: no message
is shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidemark.spark.archives import forget_archives
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.progress import Progress, least_taken
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import DataLoss, Head, MissingStream, Position, Reader, is_past
from tidemark.spark.snapshots.folds import BadMessage, BulkFold, Fold, find_fold
from tidemark.spark.snapshots.store import SnapshotRefused, connect_snapshots

RESULT_SCHEMA: Final = (
    "stream STRING, outcome STRING, offset STRING, messages BIGINT, skipped BIGINT, skipped_first STRING, "
    "detail STRING"
)
_RESULT: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("outcome", pa.string()),
        ("offset", pa.string()),
        ("messages", pa.int64()),
        ("skipped", pa.int64()),
        ("skipped_first", pa.string()),
        ("detail", pa.string()),
    ]
)
_PARTITION_BYTES: Final = 1 << 40

#: The outcome for a stream.
PUBLISHED: Final = "published"
FOLDED: Final = "folded"
UNCHANGED: Final = "unchanged"
CONFLICT: Final = "conflict"
NOT_TAKEN: Final = "not taken yet"
FAILED: Final = "failed"


@dataclass(frozen=True)
class SnapshotPlan:
    """The instructions for every task. `consumers` is the progress of each consumer; without consumers, the
    tail is the limit."""

    connection: ConnectionOptions
    publish_to: ConnectionOptions
    fold: str
    key: str
    skip_bad: bool
    consumers: tuple[Progress, ...] = ()
    dry_run: bool = False


@dataclass
class FoldResult:
    stream: str
    outcome: str
    offset: str = ""
    messages: int = 0
    skipped: int = 0
    #: The place of the first skipped message, and the reason.
    skipped_first: str = ""
    detail: str = ""


class Snapshotter:
    """One task's work, connected."""

    def __init__(self, plan: SnapshotPlan) -> None:
        self._plan = plan
        self._reader: Reader = connect(plan.connection)
        self._store = connect_snapshots(plan.publish_to)
        self._fold: Fold = find_fold(plan.fold, plan.key)

    def run(self, stream: str) -> FoldResult:
        try:
            return self._run(stream)
        except MissingStream:
            return FoldResult(stream, CONFLICT, detail="the stream is gone")
        except (BadMessage, DataLoss, SnapshotRefused) as fault:
            return FoldResult(stream, FAILED, detail=str(fault))

    def _run(self, stream: str) -> FoldResult:
        head = self._reader.head(stream)
        end = self._limit(head)
        before = None if self._plan.dry_run else self._store.latest(stream)
        start = head.earliest
        if before is not None:
            start = head.tail.at(before.offset)
        if end is None or end.offset < start.offset or end.offset == self._reader.beginning:
            return FoldResult(stream, NOT_TAKEN, detail="a consumer has not taken what is retained")
        if end.offset == start.offset:
            return FoldResult(stream, UNCHANGED, end.offset)
        result = FoldResult(stream, PUBLISHED, end.offset)
        state = self._fold.load(before.body if before else None)
        for partition in self._reader.partitions(stream, start, end, _PARTITION_BYTES):
            for batch in self._reader.read(partition, ("offset", "value")):
                result.messages += batch.num_rows
                state = self._fold_batch(result, state, batch)
        return self._publish(result, self._fold.dump(state))

    def _fold_batch(self, result: FoldResult, state: Any, batch: pa.RecordBatch) -> Any:
        """All of the batch's messages at once where the fold knows how, else one by one. Raises BadMessage
        if none may be skipped."""
        messages = batch.column("value").to_pylist()
        if isinstance(self._fold, BulkFold):
            with suppress(BadMessage):
                return self._fold.apply_many(state, messages)
        for row, message in enumerate(messages):
            try:
                state = self._fold.apply(state, message)
            except BadMessage as fault:
                where = f"message at {batch.column('offset')[row]}: {fault}"
                if not self._plan.skip_bad:
                    raise BadMessage(f"stream {result.stream}, {where}") from fault
                result.skipped += 1
                result.skipped_first = result.skipped_first or where
        return state

    def _limit(self, head: Head) -> Position | None:
        """Never beyond the progress of every consumer: retention follows the snapshot. Progress in a stream
        that was deleted and created again does not count for the new one."""
        if not self._plan.consumers:
            return head.tail
        bucket = self._plan.connection.bucket
        floor = least_taken([progress.taken(bucket, head) for progress in self._plan.consumers])
        if floor is None or floor.is_of_another(head.tail) or is_past(floor.offset, head.tail.offset):
            return None
        return head.tail.at(floor.offset)

    def _publish(self, result: FoldResult, body: bytes) -> FoldResult:
        if self._plan.dry_run:
            result.outcome = FOLDED
            result.detail = body.decode(errors="replace")
            return result
        try:
            self._store.publish(result.stream, result.offset, self._fold.content_type, body)
        except SnapshotRefused as refusal:
            result.outcome = CONFLICT if refusal.is_conflict else FAILED
            result.detail = str(refusal)
        return result


def snapshot_streams(spark: Any, plan: SnapshotPlan, streams: Iterable[str], tasks: int) -> Any:
    """A data frame with the outcome of each stream."""
    names = spark.createDataFrame([(name,) for name in streams], "stream STRING").repartition(tasks)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forget_archives()
        snapshotter = Snapshotter(plan)
        for batch in batches:
            for name in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([vars(snapshotter.run(name))], schema=_RESULT)

    return names.mapInArrow(work, RESULT_SCHEMA)
