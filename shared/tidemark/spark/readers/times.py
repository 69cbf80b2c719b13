"""When the rows of a page were appended, by what this project's server tells over HTTP (`GET /v1/times`).

The server lists the writes of a range of offsets: when each was made, how many messages it has, and how
many bytes. A page's rows are these messages in the same order. Rows of other streams are pieces of the page's
bytes, and a row has the time of the write of its first byte.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, repeat
from typing import Any

import pyarrow as pa

from tidemark.protocol.offset import parse_token
from tidemark.spark.readers.columns import time_column
from tidemark.spark.readers.port import BEGINNING


class TimesDoNotFit(Exception):
    """The server's times do not match the page's messages."""


class PageTimes:
    """The writes from `start` up to `end`, added as the server's answers come; then the times of the page's
    rows, taken in order."""

    def __init__(self, start: str, *, is_json: bool) -> None:
        self.end = start
        self._first = 0 if start == BEGINNING else parse_token(start) or 0
        self._is_json = is_json
        self._times_ms: list[int] = []
        self._messages: list[int] = []
        self._sizes: list[int] = []
        self._taken = 0
        self._left: Iterator[int] = iter(())

    def add(self, told: Mapping[str, Any]) -> None:
        """An answer that begins at `end`."""
        self._times_ms += told["times_ms"]
        self._messages += told["messages"]
        self._sizes += told["bytes"]
        self.end = told["end_offset"]

    def take(self, values: Sequence[bytes]) -> pa.Array:
        """The times of the next rows. Raises TimesDoNotFit if there are more rows than messages."""
        return time_column(self._of_messages(len(values)) if self._is_json else self._of_pieces(values))

    def _of_messages(self, count: int) -> list[int]:
        if not self._taken:
            self._left = chain.from_iterable(map(repeat, self._times_ms, self._messages))
        times = list(islice(self._left, count))
        self._taken += count
        if len(times) != count:
            raise TimesDoNotFit(f"tidemark: {self._taken} messages, and times of {sum(self._messages)}")
        return times

    def _of_pieces(self, values: Sequence[bytes]) -> list[int]:
        ends, times = list(accumulate(self._sizes)), []
        for value in values:
            times += self._times_ms[(place := bisect_right(ends, self._taken)) : place + 1]
            self._taken += len(value)
        if len(times) != len(values) or (ends and self._taken > ends[-1]):
            raise TimesDoNotFit(f"tidemark: {self._taken} bytes, and times of {sum(self._sizes)}")
        return times

    def check(self, end: str) -> None:
        """Once all rows before `end` were taken. Raises TimesDoNotFit if their number differs from the
        server's. Does not check an offset inside a write."""
        wanted = (parse_token(end) or 0) - self._first
        ends = list(accumulate(self._sizes, initial=0))
        expected: int | None = wanted
        if self._is_json:
            counts = dict(zip(ends, accumulate(self._messages, initial=0), strict=True))
            expected = counts.get(wanted)
        if expected not in (None, self._taken):
            raise TimesDoNotFit(f"tidemark: {self._taken} rows up to {end}, and times of {expected}")
