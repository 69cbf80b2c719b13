"""Turns rows into bodies of appends, in a task: validates the rows like the server, and groups them by
stream.

A row that the server would refuse must fail here: once a batch has its manifest, the commit publishes the
whole batch or fails.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, BinaryIO, Final
from zlib import crc32

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.errors import Malformed
from tidemark.protocol.json_text import MAX_DEPTH, check_value
from tidemark.protocol.messages import MAX_MESSAGES
from tidemark.spark.staging import encode_body
from tidemark.spark.writer.manifest import AppendRun

#: The most bytes of one append, including the brackets of a JSON array.
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: Limit of rows collected for all streams, in bytes.
HELD_BYTES: Final = 32 * 1024 * 1024
_SHOWN_BYTES: Final = 80


class BadRow(ValueError):
    """A row cannot be appended. The message has the row's number and the reason."""


@dataclass(slots=True)
class _Pending:
    pieces: list[pa.Array] = field(default_factory=list)
    size: int = 0


@dataclass
class Chunker:
    """Collects rows by stream and writes them as bodies to `file`. `where` names the task in error texts.
    `check_name` raises ValueError for an invalid stream name."""

    file: BinaryIO
    name: str
    is_json: bool
    bytes_per_append: int
    where: str
    check_name: Callable[[str], object]
    runs: list[AppendRun] = field(default_factory=list)
    #: For the manifest's fingerprint (`spark/writer/manifest.py`).
    rows_by_stream: Counter[str] = field(default_factory=Counter)
    checksum: int = 0
    _place: int = 0
    _rows: int = 0
    _held: int = 0
    _pending: dict[str, _Pending] = field(default_factory=dict)

    def add(self, streams: pa.Array | str, values: pa.Array) -> None:
        """Add rows in order. `streams` has the stream of each row, or of all rows. Raises BadRow."""
        values = values.cast(pa.binary())
        rows = values.to_pylist()
        self._check(values, rows)
        for stream, some in _by_stream(streams, values):
            try:
                if stream not in self.rows_by_stream:
                    self.check_name(stream)
            except ValueError as fault:
                raise BadRow(f"tidemark: a row of {self.where} has an invalid stream: {fault}") from fault
            pending = self._pending.setdefault(stream, _Pending())
            self.rows_by_stream[stream] += len(some)
            own_rows = rows if len(some) == len(rows) else some.to_pylist()
            self.checksum += sum(map(crc32, own_rows, repeat(crc32(stream.encode()))))
            pending.pieces.append(some)
            pending.size += some.nbytes
            self._held += some.nbytes
            if pending.size >= self.bytes_per_append:
                self._flush(stream, keep_last=True)
        self._rows += len(values)
        if self._held >= HELD_BYTES:
            self.finish()

    def finish(self) -> None:
        for stream in list(self._pending):
            self._flush(stream, keep_last=False)

    def _check(self, values: pa.Array, rows: Sequence[bytes]) -> None:
        lengths = pc.binary_length(values)
        if values.null_count:
            self._refuse(values.is_null().index(True).as_py(), "the value is null", b"")
        longest = pc.max(lengths).as_py() or 0
        if longest > _MAX_BODY_BYTES - 2 * self.is_json:
            what = f"{longest} bytes are more than one append may hold"
            self._refuse(pc.index(lengths, longest).as_py(), what, b"")
        if not self.is_json and len(values) and pc.min(lengths).as_py() == 0:
            self._refuse(pc.index(lengths, 0).as_py(), "an empty value cannot be appended", b"")
        if self.is_json:
            self._check_json(rows, longest)

    def _check_json(self, rows: Sequence[bytes], longest: int) -> None:
        """Validate JSON like the server. orjson takes half the time and differs only in the limit of
        depth."""
        with suppress(orjson.JSONDecodeError):
            deque(map(orjson.loads, rows), maxlen=0)
            if longest <= 2 * MAX_DEPTH or all(
                row.count(b"[") + row.count(b"{") <= MAX_DEPTH for row in rows
            ):
                return
        for number, row in enumerate(rows):
            try:
                check_value(row)
            except Malformed as fault:
                self._refuse(number, f"not JSON ({fault.message.removeprefix('Invalid JSON: ')})", row)

    def _refuse(self, row: int, what: str, value: bytes) -> None:
        shown = f": {value[:_SHOWN_BYTES]!r}" if value else ""
        raise BadRow(f"tidemark: row {self._rows + row} of {self.where}: {what}{shown}")

    def _flush(self, stream: str, *, keep_last: bool) -> None:
        """Write a stream's collected rows. With `keep_last`, the last append stays if it is not the only one,
        because it may not be full yet."""
        pending = self._pending.pop(stream)
        self._held -= pending.size
        values = pa.concat_arrays(pending.pieces)
        groups = list(self._groups(values))
        if keep_last and len(groups) > 1:
            low, high = groups.pop()
            left = values.slice(low, high - low)
            self._pending[stream] = _Pending([left], left.nbytes)
            self._held += left.nbytes
        start, appends, rows = self._place, 0, 0
        for low, high in groups:
            body = self._body(values.slice(low, high - low))
            rows += high - low
            if len(body):
                self._place += encode_body(self.file, body)
                appends += 1
        if appends:
            run = AppendRun(stream, self.name, start, self._place - start, appends, rows)
            # Join a run to the previous run if it follows directly.
            if self.runs and self.runs[-1].is_before(run):
                run = self.runs.pop().with_next(run)
            self.runs.append(run)

    def _groups(self, values: pa.Array) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows that share an append."""
        if not self.is_json:
            yield from ((row, row + 1) for row in range(len(values)))
            return
        ends = pc.cumulative_sum(pc.add(pc.binary_length(values).cast(pa.int64()), 1)).to_numpy()
        # `ends` counts a comma for each row; an array has one comma less and two brackets.
        most = self.bytes_per_append - 1
        low, taken = 0, 0
        while low < len(ends):
            high = int(ends.searchsorted(taken + most, side="right"))
            high = min(max(high, low + 1), low + MAX_MESSAGES)
            yield low, high
            low, taken = high, int(ends[high - 1])

    def _body(self, values: pa.Array) -> Any:
        if not self.is_json:
            return values[0].as_buffer()
        whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        joined = pc.binary_join(whole, pa.scalar(b",", pa.binary()))[0].as_buffer()
        return b"".join((b"[", joined, b"]"))


def _by_stream(streams: pa.Array | str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if isinstance(streams, str):
        if len(values):
            yield streams, values
        return
    if streams.null_count:
        raise BadRow("tidemark: a row has no stream: its stream column is null")
    encoded = streams.dictionary_encode()
    for index, stream in enumerate(encoded.dictionary.to_pylist()):
        yield stream, values.filter(pc.equal(encoded.indices, index))
