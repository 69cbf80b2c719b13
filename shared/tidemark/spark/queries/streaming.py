"""The streaming read: ends each batch and plans its partitions, by what the driver has seen. On
Spark 4.0 and 4.1 the source alone decides how far a batch goes.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Offset, Progress, decode_offset, encode_offset, everything_until
from tidemark.spark.queries import Driver, pack, plan_partitions, within_limit
from tidemark.spark.queries.batch import PackedPartition, PartitionReader


class StreamReaderBase(PartitionReader, DataSourceStreamReader):
    """The base of the streaming readers for every version of Spark, which sends it to every task."""

    #: Made when it is first used: in the driver, and never in a task.
    _driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options only."""
        return {"_options": self._options}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    def initialOffset(self) -> Offset:
        return encode_offset(self.driver.initial())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        starts, ends = decode_offset(start).positions, decode_offset(end).positions
        planned = plan_partitions(self._options, self.driver.reader, starts, ends)
        return [PackedPartition(parts) for parts in pack(planned, self._options.bytes_per_partition)]


class StreamReader(StreamReaderBase):
    """Spark does not say here where the batch begins. It does say, before it asks for the first
    batch after a restart, where the last one ended, by planning an empty one."""

    _position: Progress | None = None

    def __init__(self, options: ReadOptions) -> None:
        limits = {
            "maxBytesPerTrigger": options.limit_bytes,
            "maxMessagesPerTrigger": options.limit_messages,
            "minBytesPerTrigger": options.least_bytes,
        }
        given = [name for name, limit in limits.items() if limit is not None]
        if given and not options.assume_processing_time:
            why = (
                f"{', '.join(given)} on this version of Spark: with trigger AvailableNow it would stop"
                " with data unread, and a source cannot see the trigger before Spark 4.2;"
                " leave the limit out, or set assumeProcessingTime to true where the trigger is another one"
            )
            raise InvalidOptions([why])
        super().__init__(options)

    def initialOffset(self) -> Offset:
        self._position = self.driver.initial()
        return encode_offset(self._position)

    def latestOffset(self) -> Offset:
        if self._position is None:
            self._position = self.driver.initial()
        ends = everything_until(self._options, self._position, self.driver.look())
        if self.driver.waits(self._position.positions, ends.positions):
            return encode_offset(self._position)
        return encode_offset(within_limit(self._options, self.driver.reader, self._position, ends))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        self._position = decode_offset(end)
        return super().partitions(start, end)
