"""The driver's side of a streaming read: it loads heads, ends each batch and plans its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import Offset, decode_offset, encode_offset
from tidemark.spark.queries.batch import make_partitions, read_partition
from tidemark.spark.queries.driver import Driver
from tidemark.spark.queries.plan import plan_partitions


class StreamReaderBase(DataSourceStreamReader):
    """The base of the streaming readers for every version of Spark, which sends it to every task."""

    #: Made when it is first used: in the driver, and never in a task.
    _driver: Driver | None = None

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

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
        return make_partitions(planned, self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)
