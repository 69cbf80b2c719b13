"""The driver's side of a streaming read: it loads heads, ends each batch and plans its partitions."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemark.spark.progress import Offset, decode_offset, encode_offset
from tidemark.spark.queries.batch import PackedPartition, PartitionReader
from tidemark.spark.queries.driver import Driver
from tidemark.spark.queries.plan import pack, plan_partitions


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
