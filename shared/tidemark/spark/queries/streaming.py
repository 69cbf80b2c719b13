"""The streaming read: the driver looks at its streams (which there are, where they end, whether to wait for
more), ends each batch and plans its partitions. On Spark 4.0 and 4.1 the source alone decides how far a batch
goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.progress import (
    Look,
    Offset,
    Positions,
    Progress,
    decode_offset,
    encode_offset,
    everything_until,
)
from tidemark.spark.queries.batch import PackedPartition, PartitionReader
from tidemark.spark.queries.plan import (
    backlog_of,
    load_heads,
    pack,
    plan_partitions,
    positions_of,
    require_all,
    within_limit,
)
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.port import Reader

#: An idle query is asked for its latest offset every 10 ms; the streams are asked once a second.
LOOK_SECONDS = 1.0


class Driver:
    """A connected reader, and the streams as they were up to a second ago."""

    def __init__(
        self,
        options: ReadOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._clock = clock
        self._looked = float("-inf")
        self._let_go = float("-inf")
        self._last_look = Look({}, 0)
        self._connected: Reader | None = None

    @property
    def reader(self) -> Reader:
        if self._connected is None:
            self._connected = connect(self.options.connection)
        return self._connected

    def initial(self) -> Progress:
        heads = self.look(fresh=True).heads
        require_all(self.options, self.reader, heads)
        return Progress(positions_of("starting", self.options, self.reader, heads))

    def look(self, *, fresh: bool = False) -> Look:
        if fresh or self._clock() - self._looked >= LOOK_SECONDS:
            began = self._clock()
            heads = load_heads(self.options, self.reader)
            self._looked = self._clock()
            # By the clock that wrote when the streams were created; it is known once the server has answered.
            at_ms = self.reader.now_ms() - round(1000 * (self._looked - began))
            self._last_look = Look(heads, max(0, at_ms))
        return self._last_look

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
            "maxBytesPerTrigger (or maxOffsetsPerTrigger)": options.limit_bytes,
            "maxMessagesPerTrigger": options.limit_messages,
            "minBytesPerTrigger (or minOffsetsPerTrigger)": options.least_bytes,
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
