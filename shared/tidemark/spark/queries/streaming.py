"""The driver's side of a streaming read: it loads heads, ends each batch and plans its partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemark.spark.options.read import ReadOptions
from tidemark.spark.queries.batch import read_partition
from tidemark.spark.queries.plan import (
    Positions,
    backlog_of,
    load_heads,
    pack,
    plan_partitions,
    positions_of,
    require_all,
)
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import DataLoss, Head, Position, Reader

Offset = dict[str, list[str | int]]
"""What Spark keeps of each batch: `{stream: [offset, incarnation, content type, gone since]}`."""

#: An idle query is asked for its latest offset every 10 ms; the streams are asked once a second.
LOOK_SECONDS: Final = 1.0


def encode_offset(positions: Positions) -> Offset:
    return {name: position.encode() for name, position in sorted(positions.items())}


def decode_offset(offset: Mapping[str, Any]) -> dict[str, Position]:
    return {name: Position.decode(value) for name, value in offset.items()}


class Driver:
    """A connected reader, and the heads of the streams as they were up to a second ago."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self._clock = clock
        self._date = date
        self._looked = float("-inf")
        self._let_go = float("-inf")
        self._heads: dict[str, Head] = {}
        self._connected: Reader | None = None

    @property
    def reader(self) -> Reader:
        if self._connected is None:
            self._connected = connect(self.options.connection)
        return self._connected

    def initial(self) -> dict[str, Position]:
        heads = self.heads(fresh=True)
        require_all(self.options, self.reader, heads)
        return positions_of("starting", self.options, self.reader, heads)

    def heads(self, *, fresh: bool = False) -> dict[str, Head]:
        if fresh or self._clock() - self._looked >= LOOK_SECONDS:
            self._heads = load_heads(self.options, self.reader)
            self._looked = self._clock()
        return self._heads

    def tails(self, *, fresh: bool = False) -> dict[str, Position]:
        return {name: head.tail for name, head in self.heads(fresh=fresh).items()}

    def waits(self, starts: Positions, ends: Positions) -> bool:
        """Whether too little has come for a batch, and the last one was not so long ago. The first batch
        after a start does not wait."""
        if self.options.least_bytes is None:
            return False
        size, now = backlog_of(self.options, self.reader, starts, ends), self._clock()
        is_enough = size >= self.options.least_bytes
        if size and (is_enough or now - self._let_go >= self.options.delay_seconds):
            self._let_go = now
            return False
        return True

    def with_gone(self, starts: Positions, tails: Positions) -> dict[str, Position]:
        """A stream that is gone stays where it was last read, and is forgotten after a while: otherwise the
        checkpoint would grow with every stream that there ever was. Raises DataLoss."""
        gone = sorted(starts.keys() - tails.keys())
        if gone and self.options.fail_on_data_loss:
            raise DataLoss(", ".join(gone), "it does not exist any more")
        now = int(self._date())
        kept = {name: replace(starts[name], gone_since=starts[name].gone_since or now) for name in gone}
        return {
            name: position
            for name, position in kept.items()
            if now - position.gone_since < self.options.forget_seconds
        } | dict(tails)


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
        reader = self.driver.reader
        planned = plan_partitions(self._options, reader, decode_offset(start), decode_offset(end))
        return list(pack(planned, self._options.bytes_per_partition))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)
