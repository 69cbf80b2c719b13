"""The batch read: everything between two offsets that are pinned when it is planned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidemark.spark.options.read import ReadOptions
from tidemark.spark.queries.plan import look, pinned_ends, plan_parts, require_all
from tidemark.spark.queries.pushdown import Narrowing
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import Part


class BatchReader(DataSourceReader):
    """Is sent to every task, so it holds the options and no connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._narrowing = Narrowing(options)

    def partitions(self) -> list[InputPartition]:
        options = self._narrowing.apply()
        if options is None:
            return [Nothing()]
        reader = connect(options.origin)
        heads = look(options, reader)
        require_all(options, heads)
        starts, ends = pinned_ends(options, reader, heads)
        starts, ends = self._narrowing.within(starts, ends)
        return list(plan_parts(options, reader, starts, ends)) or [Nothing()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._options, partition)


class PushdownBatchReader(BatchReader):
    """Spark 4.1 and newer, where it is switched on; a reader that has this method makes Spark
    fail where it is switched off, so it is a class of its own."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        return self._narrowing.take(filters)


class Nothing(InputPartition):
    """For an empty read: without partitions Spark would make one up, and it would be None."""

    def __init__(self) -> None:
        super().__init__(None)


def read_part(options: ReadOptions, partition: InputPartition) -> Iterator[Any]:
    if not isinstance(partition, Part):
        return iter(())
    return connect(options.origin).read(partition)
