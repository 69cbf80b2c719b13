"""The batch read: everything between two offsets that are pinned when it is planned."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemark.protocol.offset import parse_token, render_offset
from tidemark.spark.archives import forget_archives
from tidemark.spark.options import Transport
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Positions, decode_offset
from tidemark.spark.queries import load_heads, pack, pin_positions, plan_partitions, require_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Reader, StreamPartition

#: By kind of comparison: from which place on messages may begin, and before which; of the place
#: that they are compared with. Offsets are compared as text, and as 16 digits that is the same.
_BOUNDS = {
    "EqualTo": (0, 1),
    "GreaterThan": (1, None),
    "GreaterThanOrEqual": (0, None),
    "LessThan": (None, 0),
    "LessThanOrEqual": (None, 1),
}


@dataclass
class PushedFilters:
    """The streams and offsets that filters leave. `names` None is all streams; messages of each must begin
    between `low` and `high`."""

    options: ReadOptions
    names: frozenset[str] | None = None
    low: int = 0
    high: int | None = None

    def take(self, filters: Iterable[Any]) -> Iterable[Any]:
        """Keeps what it understands and gives back the rest, which Spark then evaluates."""
        for condition in filters:
            streams, buckets = _values_of("stream", condition), _values_of("bucket", condition)
            if streams is not None:
                self.names = streams if self.names is None else self.names & streams
            elif buckets is not None:
                # A read is of one bucket.
                self.names = self.names if self.options.connection.bucket in buckets else frozenset()
            elif not self._take_offset(condition):
                yield condition

    def _take_offset(self, condition: Any) -> bool:
        """Only where a row is a message and its offset a place in the stream."""
        if self.options.connection.transport is not Transport.DYNAMODB or _column(condition) != "offset":
            return False
        bounds = _BOUNDS.get(type(condition).__name__)
        place = parse_token(condition.value) if bounds and isinstance(condition.value, str) else None
        if bounds is None or place is None:
            return False
        low, high = bounds
        if low is not None:
            self.low = max(self.low, place + low)
        if high is not None:
            self.high = place + high if self.high is None else min(self.high, place + high)
        return True

    def apply(self) -> ReadOptions | None:
        """The options for the streams that are left, or None if none is."""
        options = self.options
        if self.names is None:
            return options
        if options.pattern is not None:
            names = sorted(name for name in self.names if re.fullmatch(options.pattern, name))
            # A stream that a pattern may find need not exist.
            narrowed = "|".join(map(re.escape, names))
            return dataclasses.replace(options, pattern=narrowed) if names else None
        names = [name for name in options.names if name in self.names]
        return dataclasses.replace(options, names=tuple(names)) if names else None

    def within(self, starts: Positions, ends: Positions) -> tuple[Positions, Positions]:
        """The positions brought nearer to each other; streams of which nothing is left are left out."""
        if not self.low and self.high is None:
            return starts, ends
        nearer_starts, nearer_ends = {}, {}
        for name, end in ends.items():
            low = max(int(starts[name].offset), self.low)
            high = int(end.offset) if self.high is None else min(int(end.offset), self.high)
            if low < high:
                nearer_starts[name] = starts[name].at(render_offset(low))
                nearer_ends[name] = end.at(render_offset(high))
        return nearer_starts, nearer_ends


def _column(condition: Any) -> str | None:
    match getattr(condition, "attribute", None):
        case (str(column),):
            return column
    return None


def _values_of(column: str, condition: Any) -> frozenset[str] | None:
    """The values of which the column must have one, if that is what the condition says."""
    kind = type(condition).__name__
    if _column(condition) != column:
        return None
    if kind == "EqualTo" and isinstance(condition.value, str):
        return frozenset({condition.value})
    if kind == "In" and all(isinstance(value, str) for value in condition.value):
        return frozenset(condition.value)
    return None


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
        starts, ends = _bounds(options, reader)
        if self._filters is not None:
            starts, ends = self._filters.within(starts, ends)
        planned = plan_partitions(options, reader, starts, ends)
        packs = [PackedPartition(parts) for parts in pack(planned, options.bytes_per_partition)]
        return packs or [EmptyPartition()]


def _bounds(options: ReadOptions, reader: Reader) -> tuple[Positions, Positions]:
    """Where the read begins and ends in each stream."""
    if options.between is None:
        heads = load_heads(options, reader)
        require_all(options, reader, heads)
        return pin_positions(options, reader, heads)
    starts, ends = (decode_offset(offset).positions for offset in options.between)
    return starts, {name: end for name, end in ends.items() if options.subscribes(name)}


class PushdownBatchReader(BatchReader):
    """Spark 4.1 and newer, where it is switched on; a reader that has this method makes Spark
    fail where it is switched off, so it is a class of its own."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._filters = PushedFilters(self._options)
        return self._filters.take(filters)
