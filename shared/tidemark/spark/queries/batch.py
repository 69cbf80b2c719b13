"""The batch read: everything between two offsets that are pinned when it is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemark.spark.archives import forget_archives
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.queries.plan import load_heads, pack, pin_positions, plan_partitions, require_all
from tidemark.spark.queries.pushdown import PushedFilters
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import StreamPartition


@dataclass(frozen=True)
class PackedPartition(InputPartition):
    """The partitions that one task reads, one after the other."""

    parts: tuple[StreamPartition, ...]


class EmptyPartition(InputPartition):
    """For an empty read: without partitions Spark would make one up, and it would be None."""

    def __init__(self) -> None:
        super().__init__(None)


class PartitionReader:
    """The side of a reader that Spark sends to every task, so it holds the options and no connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a pack's streams; those of small streams share Arrow batches."""
        forget_archives()
        if not isinstance(partition, PackedPartition):
            return iter(())
        from tidemark.spark.readers.columns import join_batches

        reader = connect(self._options.connection)
        read = (reader.read(part, self._options.columns) for part in partition.parts)
        return join_batches(chain.from_iterable(read))


class BatchReader(PartitionReader, DataSourceReader):
    #: Set if Spark has pushed filters down.
    _filters: PushedFilters | None = None

    def partitions(self) -> list[InputPartition]:
        options = self._options if self._filters is None else self._filters.apply()
        if options is None:
            return [EmptyPartition()]
        reader = connect(options.connection)
        heads = load_heads(options, reader)
        require_all(options, reader, heads)
        starts, ends = pin_positions(options, reader, heads)
        if self._filters is not None:
            starts, ends = self._filters.within(starts, ends)
        planned = plan_partitions(options, reader, starts, ends)
        packs = [PackedPartition(parts) for parts in pack(planned, options.bytes_per_partition)]
        return packs or [EmptyPartition()]


class PushdownBatchReader(BatchReader):
    """Spark 4.1 and newer, where it is switched on; a reader that has this method makes Spark
    fail where it is switched off, so it is a class of its own."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._filters = PushedFilters(self._options)
        return self._filters.take(filters)
