"""The streaming read on Spark 4.2 and newer, which says where a batch begins, how much it may
hold, and whether the query is to end once it has read what is there now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from tidemark.spark.batch import read_part
from tidemark.spark.options import ReadOptions
from tidemark.spark.plan import Positions, limited, plan_parts
from tidemark.spark.stream import Driver, Offset, decode_offset, encode_offset


class AdmittedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._driver: Driver | None = None
        self._target: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        """To the tasks go the options alone."""
        return {"_options": self._options, "_driver": None, "_target": None}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver(self._options)
        return self._driver

    def initialOffset(self) -> Offset:
        return encode_offset(self.driver.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        limit_bytes = self._options.limit_bytes
        return ReadAllAvailable() if limit_bytes is None else ReadMaxBytes(limit_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.tails(fresh=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        starts = decode_offset(start)
        tails = self.driver.tails() if self._target is None else self._up_to_target(starts)
        ends = self.driver.with_gone(starts, tails)
        if isinstance(limit, ReadAllAvailable):
            return encode_offset(ends)
        return encode_offset(limited(self._options, self.driver.reader, starts, ends))

    def _up_to_target(self, starts: Positions) -> Positions:
        """What was there when the query began, and nothing newer: it may begin beyond, where an
        earlier run had already planned to."""
        assert self._target is not None
        return {
            name: starts[name] if _is_beyond(starts, name, end.offset) else end
            for name, end in self._target.items()
        }

    def reportLatestOffset(self) -> Offset | None:
        return encode_offset(self.driver.tails()) or None

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return list(plan_parts(self._options, self.driver.reader, decode_offset(start), decode_offset(end)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._options, partition)


def _is_beyond(starts: Positions, name: str, offset: str) -> bool:
    start = starts.get(name)
    return start is not None and start.offset != "-1" and start.offset > offset
