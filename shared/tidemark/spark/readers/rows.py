"""Messages gathered column by column into Arrow batches of bounded size, from the table's items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.offset import WIDTH
from tidemark.protocol.pack import Block
from tidemark.spark.options.read import DEFAULT_COLUMNS, JSON_COLUMNS
from tidemark.spark.readers.columns import BATCH_BYTES, BATCH_ROWS, make_batch
from tidemark.spark.readers.items import BatchItem, Producer, message_ends, producers_by_end
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
        self._high = 10**WIDTH if high is None else high
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

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        return len(self._values) >= BATCH_ROWS or self._size >= BATCH_BYTES

    def add(self, item: BatchItem, data: bytes, reached: int = 0) -> None:
        """Those of the item's messages that are wanted, and begin at `reached` or later; `data` is all of its
        bytes."""
        ends = message_ends(item) if item.m is not None else (item.end,)
        producers = producers_by_end(item) if item.p is not None else None
        self._add(data, item.start, ends, repeat(int(item.t.N)), reached, producers=producers)

    def add_block(self, start: int, block: Block, reached: int) -> None:
        """The same of a pack's block, which tells of no producers."""
        ends = list(accumulate(block.lengths, initial=start))[1:]
        times = chain.from_iterable(map(repeat, block.times_ms, block.batches))
        self._add(block.data, start, ends, times, reached)

    def _add(
        self,
        data: bytes,
        base: int,
        ends: Iterable[int],
        times_ms: Iterable[int],
        reached: int,
        *,
        producers: Mapping[int, Producer] | None = None,
    ) -> None:
        start, low = base, max(self._low, reached)
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

    def take(self) -> pa.RecordBatch:
        """The rows so far, which are then forgotten."""
        arrays: dict[str, pa.Array] = {}
        if "value" in self._columns:
            arrays["value"] = pa.array(self._values, pa.binary())
        if self._has_members:
            arrays |= json_arrays(self._columns, self._values)
        if "offset" in self._columns:
            arrays["offset"] = _render_offsets(self._starts)
        if "end_offset" in self._columns:
            arrays["end_offset"] = _render_offsets(self._ends)
        if "timestamp" in self._columns:
            micros = pc.multiply(pa.array(self._times, pa.int64()), 1000)
            arrays["timestamp"] = micros.cast(pa.timestamp("us", tz="UTC"))
        if self._producers:
            ids: list[Any] = [None] * self.count
            epochs, seqs = ids[:], ids[:]
            for row, producer in self._producers:
                ids[row], epochs[row], seqs[row] = producer.producer_id, producer.epoch, producer.seq
            arrays["producer_id"] = pa.array(ids, pa.string())
            arrays["producer_epoch"] = pa.array(epochs, pa.int64())
            arrays["producer_seq"] = pa.array(seqs, pa.int64())
        batch = make_batch(self._columns, self.count, self._constants, arrays)
        self._clear()
        return batch


def _render_offsets(places: list[int]) -> pa.Array:
    """`render_offset`, a column at a time."""
    return pc.utf8_lpad(pa.array(places, pa.int64()).cast(pa.string()), WIDTH, "0")
