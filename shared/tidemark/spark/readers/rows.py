"""Messages gathered column by column into Arrow batches of bounded size, from the table's items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidemark.protocol.offset import WIDTH
from tidemark.spark.options.read import DEFAULT_COLUMNS, JSON_COLUMNS
from tidemark.spark.readers.columns import (
    BATCH_BYTES,
    BATCH_ROWS,
    json_arrays,
    make_batch,
    offset_column,
    producer_arrays,
    run_arrays,
    time_column,
)
from tidemark.spark.readers.items import MessageRun, PackBlock, Piece, Producer


class Rows:
    """Messages of one stream that begin in [low, high). `cut` is where the stream leaves the log
    that they are in: a fork may do so in the middle of a message, and has the first half."""

    def __init__(
        self,
        bucket: str,
        stream: str,
        content_type: str,
        incarnation: str = "",
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        low: int = 0,
        high: int | None = None,
        cut: int | None = None,
    ) -> None:
        self._columns = columns
        self._constants = {
            "bucket": bucket,
            "stream": stream,
            "content_type": content_type,
            "incarnation": incarnation,
            "position": 0,
        }
        self._low = low
        self._high = min(place for place in (10**WIDTH, high, cut) if place is not None)
        self._cut = cut
        # A stored JSON message ends in a comma of ours.
        is_json = content_type.partition(";")[0].strip().lower() == "application/json"
        self._has_members = is_json and not JSON_COLUMNS.isdisjoint(columns)
        self._separator_bytes = 1 if is_json else 0
        self._clear()

    def _clear(self) -> None:
        self._runs: list[MessageRun] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[bytes] = []
        self._times: list[int] = []
        self._producers: list[Producer | None] = []
        self._count = 0
        self._size = 0

    def add(self, piece: Piece | MessageRun | PackBlock, reached: int = 0) -> Iterator[pa.RecordBatch]:
        """Add the piece's wanted messages that begin at `reached` or later. Yields the batches that are
        full then, which are in order."""
        low = max(self._low, reached)
        if isinstance(piece, PackBlock):
            # A fork may leave a log in the middle of a message, and that is cut one by one.
            piece = piece.piece if self._cut is not None and piece.end > self._cut else piece.run
        if isinstance(piece, MessageRun):
            is_whole = low <= piece.start and piece.end <= self._high
            if not (is_whole and self._runs and self._runs[-1].end == piece.start):
                yield from self.take_rest()
            self._runs.append(piece)
            self._count += len(piece.lengths)
            self._size += piece.end - piece.start
            if not is_whole:
                yield from self.take_rest(low)
        else:
            if self._runs:
                yield from self.take_rest()
            self._add_some(piece, low)
            self._count = len(self._values)
        if self._count >= BATCH_ROWS or self._size >= BATCH_BYTES:
            yield from self.take_rest()

    def _add_some(self, piece: Piece, low: int) -> None:
        data, base, ends, times_ms, producers = piece
        start = base
        for message_end, time_ms in zip(ends, times_ms, strict=False):
            stop = message_end if self._cut is None else min(message_end, self._cut)
            if low <= start < self._high:
                self._starts.append(start)
                self._ends.append(stop)
                self._values.append(data[start - base : stop - base - self._separator_bytes])
                self._times.append(time_ms)
                self._producers.append(producers.get(stop) if producers else None)
            start = stop
        self._size += len(data)

    def take_rest(self, low: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows so far, if there are any, which are then forgotten; of runs those that begin at `low` or
        later."""
        if not self._count:
            return
        if self._runs:
            arrays = run_arrays(self._columns, self._runs, self._separator_bytes, low, self._high)
        else:
            arrays = self._message_arrays()
        if self._has_members:
            arrays |= json_arrays(self._columns, arrays["value"].to_pylist())
        count = len(arrays["value"])
        self._clear()
        if count:
            yield make_batch(self._columns, count, self._constants, arrays)

    def _message_arrays(self) -> dict[str, pa.Array]:
        """The columns of the messages that were added one by one."""
        arrays = {"value": pa.array(self._values, pa.binary())}
        for column, places in (("offset", self._starts), ("end_offset", self._ends)):
            if column in self._columns:
                arrays[column] = offset_column(places)
        if "timestamp" in self._columns:
            arrays["timestamp"] = time_column(self._times)
        return arrays | producer_arrays(self._columns, self._producers)
