"""The readers of a batch read, whose positions are pinned when the read is planned, and of a streaming read,
which decides the end of each batch. On Spark 4.0 and 4.1 the source alone limits a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

try:
    from pyspark.sql.streaming import datasource as newer
except ImportError:  # Spark 4.0 and 4.1.
    newer = SimpleNamespace(SupportsTriggerAvailableNow=object)

from tidemark.cold_start import forget_archives
from tidemark.spark import progress, queries
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Look, Offset, Positions, crossed, decode_offset, encode_offset
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Reader, StreamPartition, bytes_between


@dataclass(frozen=True)
class PackedPartition(InputPartition):
    """The partitions of one task."""

    parts: tuple[StreamPartition, ...]


class PartitionReader:
    """The part of a reader that Spark sends to every task, so it has options but no connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def packs(self, reader: Reader, starts: Positions, ends: Positions) -> list[InputPartition]:
        """Plan the tasks that read the messages between the positions."""
        planned = queries.plan_partitions(self._options, reader, starts, ends)
        return [PackedPartition(parts) for parts in queries.pack(planned, self._options.bytes_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a pack's streams. Rows of small streams share Arrow batches."""
        forget_archives()
        assert isinstance(partition, PackedPartition), "planned by this source"
        from tidemark.spark.readers.columns import join_batches

        reader = connect(self._options.connection)
        return join_batches(reader.read_all(partition.parts, self._options.columns))


class BatchReader(PartitionReader, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        options = self._options
        reader = connect(options.connection)
        if options.between is None:
            heads = queries.load_heads(options, reader)
            queries.require_all(options, reader, heads)
            starts, ends = queries.pin_positions(options, reader, heads)
        else:
            starts, ends = (decode_offset(offset).positions for offset in options.between)
            ends = {name: end for name, end in ends.items() if options.subscribes(name)}
        # For an empty list Spark would pass None as a partition.
        return self.packs(reader, starts, ends) or [PackedPartition(())]


class StreamReaderBase(PartitionReader, DataSourceStreamReader):
    """The base of the streaming readers for all versions of Spark. Spark sends it to every task."""

    #: The query's first offset, after Spark's first call.
    _initial: Offset | None = None
    #: The end of a query with trigger AvailableNow: the heads when it began.
    _target: Look | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the options only, which the tasks need."""
        return {"_options": self._options}

    @cached_property
    def driver(self) -> queries.Driver:
        return queries.Driver(self._options)

    def initialOffset(self) -> Offset:
        """Return the same offset each time: Spark 4.0 asks again after the end of the first batch is
        known."""
        if self._initial is None:
            self._initial = encode_offset(self.driver.initial(self._target))
        return self._initial

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        starts, ends = decode_offset(start).positions, decode_offset(end).positions
        if start == self._initial and self._options.starting != "earliest":
            # After a crash Spark asks for the start of the first batch again. By then a tail may be beyond
            # the batch's end, and the batch has no message of that stream.
            starts = {**starts, **{name: ends[name] for name in crossed(starts, ends)}}
        return self.packs(self.driver.reader, starts, ends)


class StreamReader(StreamReaderBase):
    """The streaming reader for Spark 4.0 and 4.1, where `latestOffset` gets no start. After a restart Spark
    first plans an empty batch, whose end is the last offset; the reader keeps it."""

    _last: Offset | None = None

    def __init__(self, options: ReadOptions) -> None:
        if options.limit_bytes is not None and not options.assume_processing_time:
            why = (
                "maxBytesPerTrigger on this version of Spark: with trigger AvailableNow it would stop"
                " with data unread, and a source cannot see the trigger before Spark 4.2;"
                " leave the limit out, or set assumeProcessingTime to true where the trigger is another one"
            )
            raise InvalidOptions([why])
        super().__init__(options)

    def initialOffset(self) -> Offset:
        self._last = super().initialOffset()
        return self._last

    def latestOffset(self) -> Offset:
        last = self.initialOffset() if self._last is None else self._last
        begin = decode_offset(last)
        ends = self.driver.everything_from(begin)
        if ends is begin:
            return last
        return encode_offset(queries.within_limit(self._options, self.driver.reader, begin, ends))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._last = end
        return super().partitions(start, end)


class AdmittedStreamReader(StreamReaderBase, newer.SupportsTriggerAvailableNow):
    """The streaming reader for Spark 4.2 and newer, which passes a batch's start and limit, and announces the
    trigger AvailableNow."""

    _behind: Offset | None = None

    def getDefaultReadLimit(self) -> newer.ReadLimit:
        """Return the limit for Spark, which only passes it back to `latestOffset`."""
        limit = self._options.limit_bytes
        return newer.ReadAllAvailable() if limit is None else newer.ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.look(fresh=True)

    def latestOffset(self, start: Offset, limit: newer.ReadLimit) -> Offset:
        begin = decode_offset(start)
        if self._target is None:
            tails = self.driver.everything_from(begin)
        else:
            tails = progress.everything_until(self._options, begin, progress.not_before(begin, self._target))
        ends = tails
        if tails is not begin and not isinstance(limit, newer.ReadAllAvailable):
            ends = queries.within_limit(self._options, self.driver.reader, begin, tails)
        places = ((ends.positions[name].offset, tail.offset) for name, tail in tails.positions.items())
        behind = [bytes_between(*each) or 0 for each in places if each[0] != each[1]]
        self._behind = {"streamsBehindLatest": len(behind), "bytesBehindLatest": sum(behind)}
        return start if tails is begin else encode_offset(ends)

    def reportLatestOffset(self) -> Offset | None:
        """Return what the planned batch leaves unread, for `latestOffset` in the query's progress. Positions
        of all streams would make each progress large."""
        return self._behind
