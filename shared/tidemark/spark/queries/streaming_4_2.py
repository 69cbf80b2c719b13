"""The streaming read on Spark 4.2 and newer, which passes a batch's start and limit, and announces the
trigger AvailableNow."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from tidemark.spark.progress import Offset, decode_offset, encode_offset, everything_until, not_before
from tidemark.spark.queries import within_limit
from tidemark.spark.queries.readers import StreamReaderBase


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit for Spark, which only passes it back to `latestOffset`."""
        limit = self._options.limit_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.look(fresh=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begin = decode_offset(start)
        if self._target is None:
            ends = self.driver.everything_from(begin)
        else:
            ends = everything_until(self._options, begin, not_before(begin, self._target))
        if ends is begin:
            return start
        if not isinstance(limit, ReadAllAvailable):
            ends = within_limit(self._options, self.driver.reader, begin, ends)
        return encode_offset(ends)
