"""The streaming read on Spark 4.2 and newer, which says where a batch begins, how much it may
hold, and whether the query is to end once it has read what is there now."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from tidemark.spark.queries.plan import Positions, within_limit
from tidemark.spark.queries.streaming import Offset, StreamReaderBase, decode_offset, encode_offset
from tidemark.spark.readers.port import Position, is_past


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    _target: Positions | None = None

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
        return encode_offset(within_limit(self._options, self.driver.reader, starts, ends))

    def _up_to_target(self, starts: Positions) -> Positions:
        """What was there when the query began, and nothing newer: it may begin beyond, where an
        earlier run had already planned to."""
        assert self._target is not None
        return {name: _later(starts.get(name), end) for name, end in self._target.items()}

    def reportLatestOffset(self) -> Offset | None:
        return encode_offset(self.driver.tails()) or None


def _later(start: Position | None, end: Position) -> Position:
    """Of two in one incarnation; of a stream that was created again, its own."""
    if start is None or start.incarnation != end.incarnation or not is_past(start.offset, end.offset):
        return end
    return start
