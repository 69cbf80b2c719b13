"""Messages gathered column by column into Arrow batches of bounded size, from the table's items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.offset import WIDTH
from tidemark.spark.options.read import DEFAULT_COLUMNS, JSON_COLUMNS
from tidemark.spark.readers.blocks import block_arrays
from tidemark.spark.readers.columns import BATCH_BYTES, BATCH_ROWS, make_batch
from tidemark.spark.readers.items import PackBlock, Piece, PlainPage, Producer
from tidemark.spark.readers.json_columns import json_arrays


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
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._values: list[bytes] = []
        self._times: list[int] = []
        self._producers: list[tuple[int, Producer]] = []
        self._size = 0

    def add(self, piece: Piece | PlainPage | PackBlock, reached: int = 0) -> Iterator[pa.RecordBatch]:
        """Those of its messages that are wanted and begin at `reached` or later; of a plain page all are. The
        batches that are full then, which are in order."""
        low = max(self._low, reached)
        if isinstance(piece, PackBlock):
            if low <= piece.start and piece.end <= self._high:
                yield from self.take_rest()
                arrays = block_arrays(self._columns, piece, self._separator_bytes)
                if self._has_members:
                    arrays |= json_arrays(self._columns, arrays["value"].to_pylist())
                yield make_batch(self._columns, len(piece.columns.lengths), self._constants, arrays)
                return
            piece = piece.piece
        if isinstance(piece, PlainPage):
            self._starts += piece.starts
            self._ends += piece.ends
            self._times += [int(item.t.N) for item in piece.items]
            separator = -self._separator_bytes or None
            self._values += [item.b.B[:separator] for item in piece.items if item.b is not None]
            self._size += piece.end - piece.start
        else:
            self._add_some(piece, low)
        if len(self._values) >= BATCH_ROWS or self._size >= BATCH_BYTES:
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
                if producers and stop in producers:
                    self._producers.append((len(self._values) - 1, producers[stop]))
            start = stop
        self._size += len(data)

    def take_rest(self) -> Iterator[pa.RecordBatch]:
        """The rows so far, if there are any, which are then forgotten."""
        if not self._values:
            return
        arrays: dict[str, pa.Array] = {}
        if "value" in self._columns:
            arrays["value"] = pa.array(self._values, pa.binary())
        if self._has_members:
            arrays |= json_arrays(self._columns, self._values)
        for column, places in (("offset", self._starts), ("end_offset", self._ends)):
            if column in self._columns:
                # `render_offset`, a column at a time.
                arrays[column] = pc.utf8_lpad(pa.array(places, pa.int64()).cast(pa.string()), WIDTH, "0")
        if "timestamp" in self._columns:
            micros = pc.multiply(pa.array(self._times, pa.int64()), 1000)
            arrays["timestamp"] = micros.cast(pa.timestamp("us", tz="UTC"))
        if self._producers:
            ids: list[Any] = [None] * len(self._values)
            epochs, seqs = ids[:], ids[:]
            for row, producer in self._producers:
                ids[row], epochs[row], seqs[row] = producer.producer_id, producer.epoch, producer.seq
            arrays["producer_id"] = pa.array(ids, pa.string())
            arrays["producer_epoch"] = pa.array(epochs, pa.int64())
            arrays["producer_seq"] = pa.array(seqs, pa.int64())
        yield make_batch(self._columns, len(self._values), self._constants, arrays)
        self._clear()
