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
from tidemark.spark.readers.port import is_past


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    _target: Positions | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        limit_bytes = self._options.limit_bytes
        return ReadAllAvailable() if limit_bytes is None else ReadMaxBytes(limit_bytes)

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
        return encode_offset(within_limit(self._options, self.driver.reader, starts, ends))

    def reportLatestOffset(self) -> Offset | None:
        return encode_offset(self.driver.tails()) or None
