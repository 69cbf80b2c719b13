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
from tidemark.spark.readers.port import bytes_between


class AdmittedStreamReader(StreamReaderBase, SupportsTriggerAvailableNow):
    _behind: Offset | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit for Spark, which only passes it back to `latestOffset`."""
        limit = self._options.limit_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.driver.look(fresh=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        begin = decode_offset(start)
        if self._target is None:
            tails = self.driver.everything_from(begin)
        else:
            tails = everything_until(self._options, begin, not_before(begin, self._target))
        ends = tails
        if tails is not begin and not isinstance(limit, ReadAllAvailable):
            ends = within_limit(self._options, self.driver.reader, begin, tails)
        places = ((ends.positions[name].offset, tail.offset) for name, tail in tails.positions.items())
        behind = [bytes_between(*each) or 0 for each in places if each[0] != each[1]]
        self._behind = {"streamsBehindLatest": len(behind), "bytesBehindLatest": sum(behind)}
        return start if tails is begin else encode_offset(ends)

    def reportLatestOffset(self) -> Offset | None:
        """Return what the planned batch leaves unread, for `latestOffset` in the query's progress. Positions
        of all streams would make each progress large."""
        return self._behind
