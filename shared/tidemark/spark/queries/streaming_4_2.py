"""The streaming read on Spark 4.2 and newer, which says where a batch begins, how much it may
hold, and whether the query is to end once it has read what is there now."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidemark.spark.progress import Offset, decode_offset, encode_offset, everything_until, not_before
from tidemark.spark.queries import within_limit
from tidemark.spark.queries.streaming import StreamReaderBase


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark is told that there is one; it counts nothing itself."""
        asked = self._options
        if asked.limit_bytes is not None:
            return ReadMaxBytes(asked.limit_bytes)
        if asked.least_bytes is not None:
            return ReadMinRows(1)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.look(fresh=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begin = decode_offset(start)
        if self._target is None:
            ends = self.driver.everything_from(begin)
        else:
            ends = everything_until(self._options, begin, not_before(begin, self._target))
        # A query that ends by itself takes what is there.
        waits = self._target is None and self.driver.waits(begin.positions, ends.positions)
        if ends is begin or waits:
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = within_limit(self._options, self.driver.reader, begin, ends)
        return encode_offset(ends)
