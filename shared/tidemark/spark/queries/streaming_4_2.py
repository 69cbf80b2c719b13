"""The streaming read on Spark 4.2 and newer, which says where a batch begins, how much it may
hold, and whether the query is to end once it has read what is there now."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidemark.spark.queries.plan import Positions, within_limit
from tidemark.spark.queries.streaming import Offset, StreamReaderBase, decode_offset, encode_offset
from tidemark.spark.readers.port import is_past


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    _target: Positions | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark is told that there is one; it counts nothing itself."""
        asked = self._options
        if asked.limit_bytes is not None:
            return ReadMaxBytes(asked.limit_bytes)
        if asked.limit_messages is not None:
            return ReadMaxRows(asked.limit_messages)
        if asked.least_bytes is not None:
            return ReadMinRows(1)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.tails(fresh=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        starts = decode_offset(start)
        tails = dict(self.driver.tails() if self._target is None else self._target)
        if self._target is not None:
            # What was there when the query began, and nothing newer. A batch may begin beyond it,
            # where an earlier run had already planned to read.
            for name, end in self._target.items():
                begin = starts.get(name, end)
                if begin.incarnation == end.incarnation and is_past(begin.offset, end.offset):
                    tails[name] = begin
        ends = self.driver.with_gone(starts, tails)
        if isinstance(limit, ReadAllAvailable):
            return encode_offset(ends)
        # A query that ends by itself takes what is there.
        if self._target is None and self.driver.waits(starts, ends):
            return start
        return encode_offset(within_limit(self._options, self.driver.reader, starts, ends))

    def reportLatestOffset(self) -> Offset | None:
        return encode_offset(self.driver.tails()) or None
