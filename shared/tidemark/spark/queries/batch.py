"""The batch read: all messages between two positions, which are pinned when the read is planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemark.spark.archives import forget_archives
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Positions, decode_offset
from tidemark.spark.queries import load_heads, pack, pin_positions, plan_partitions, require_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Reader, StreamPartition


@dataclass(frozen=True)
class PackedPartition(InputPartition):
    """The partitions of one task."""

    parts: tuple[StreamPartition, ...]


class PartitionReader:
    """The part of a reader that Spark sends to every task, so it has options but no connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a pack's streams. Rows of small streams share Arrow batches."""
        forget_archives()
        assert isinstance(partition, PackedPartition), "planned by this source"
        from tidemark.spark.readers.columns import join_batches

        reader = connect(self._options.connection)
        return join_batches(reader.read_all(partition.parts, self._options.columns))


class BatchReader(PartitionReader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        reader = connect(self._options.connection)
        starts, ends = _bounds(self._options, reader)
        planned = plan_partitions(self._options, reader, starts, ends)
        packs = [PackedPartition(parts) for parts in pack(planned, self._options.bytes_per_partition)]
        # For an empty list Spark would pass None as a partition.
        return packs or [PackedPartition(())]


def _bounds(options: ReadOptions, reader: Reader) -> tuple[Positions, Positions]:
    """Return the positions at which the read begins and ends in each stream."""
    if options.between is None:
        heads = load_heads(options, reader)
        require_all(options, reader, heads)
        return pin_positions(options, reader, heads)
    starts, ends = (decode_offset(offset).positions for offset in options.between)
    return starts, {name: end for name, end in ends.items() if options.subscribes(name)}
