"""The columns of a read as Arrow batches of limited size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.protocol.offset import WIDTH
from tidemark.spark.options.read import COLUMNS, JSON_COLUMNS

# Workers that read over HTTP must not import the modules of the log and of AWS, which take 0.3 s of CPU.
if TYPE_CHECKING:
    from tidemark.spark.readers.items import BatchItem, MessageRun
    from tidemark.spark.readers.port import StreamPartition

_TIME: Final = pa.timestamp("us", tz="UTC")
#: Arrow types by Spark type.
ARROW_TYPES: Final = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": _TIME,
}
ARROW_SCHEMA: Final = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])


#: Limits of a batch in rows and bytes, so that a task's memory does not grow with the stream.
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 4 * 1024 * 1024


def make_batch(
    columns: Sequence[str], rows: int, constants: Mapping[str, Any], arrays: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Return a batch with the `columns`, from `arrays` or `constants`; null where neither has the column."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
    found = [
        arrays[field.name]
        if field.name in arrays
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(found, schema=schema)


def offset_column(places: Any) -> pa.Array:
    """Render offsets as text, like `render_offset` for a whole array."""
    return pc.utf8_lpad(pa.array(places, pa.int64()).cast(pa.string()), WIDTH, "0")


def time_column(times_ms: Any) -> pa.Array:
    """Convert milliseconds since 1970 to the column `timestamp`."""
    return pc.multiply(pa.array(times_ms, pa.int64()), 1000).cast(_TIME)


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches up to the limits of a batch. A batch of a quarter of a limit or more stays as it is,
    because joining copies the data."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_large = batch.num_rows >= BATCH_ROWS // 4 or batch.nbytes >= BATCH_BYTES // 4
        if held and (is_large or rows >= BATCH_ROWS or size >= BATCH_BYTES):
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, size = [], 0, 0
        if is_large:
            yield batch
        else:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()


_ABSENT: Final = msgspec.Raw(b"null")


class _Change(msgspec.Struct, gc=False):
    type: msgspec.Raw = _ABSENT
    key: msgspec.Raw = _ABSENT
    headers: msgspec.Raw = _ABSENT


class _TextChange(msgspec.Struct, gc=False):
    """A change of the usual form, which is decoded in half of the time."""

    type: str | None = None
    key: str | None = None
    headers: msgspec.Raw = _ABSENT


_decoder: Final = msgspec.json.Decoder(_Change)
_texts_decoder: Final = msgspec.json.Decoder(list[_TextChange])


def json_arrays(columns: Sequence[str], values: Sequence[bytes]) -> dict[str, pa.Array]:
    """Return the wanted columns that are members of the JSON messages."""
    changes: Sequence[_TextChange | _Change] = ()
    wanted, texts = JSON_COLUMNS.intersection(columns), {"type", "key"}
    if wanted:
        try:
            changes = _texts_decoder.decode(b"[%b]" % b",".join(values))
        except msgspec.DecodeError:
            changes, texts = list(map(_decode, values)), set()
    members = {name: map(attrgetter(name), changes) for name in wanted}
    return {
        name: pa.array(list(each if name in texts else map(_text, each)), pa.string())
        for name, each in members.items()
    }


def _decode(value: bytes) -> _Change:
    try:
        change: _Change = _decoder.decode(value)
    except msgspec.ValidationError:
        return _Change()  # JSON, but not an object.
    except msgspec.DecodeError:
        # msgspec refuses a lone surrogate escape, which JavaScript writes for a text cut inside an emoji.
        found = json.loads(value)
        members = found.items() if isinstance(found, dict) else ()
        texts = ((name, json.dumps(each, separators=(",", ":"))) for name, each in members)
        return _Change(**{name: msgspec.Raw(text.encode()) for name, text in texts if name in JSON_COLUMNS})
    return change


def _text(member: msgspec.Raw) -> str | None:
    """Decode a string; return any other value as its JSON text, and null as None."""
    raw = bytes(member)
    if raw == b"null":
        return None
    if not raw.startswith(b'"'):
        return raw.decode()
    try:
        text: str = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        # Arrow's text is UTF-8, which has no lone surrogate.
        text = json.loads(raw).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_PRODUCER_COLUMNS: Final = frozenset({"producer_id", "producer_epoch", "producer_seq"})


def run_arrays(
    columns: Sequence[str], runs: Sequence[MessageRun], separator_bytes: int, low: int, high: int
) -> dict[str, pa.Array]:
    """Return the columns that differ between rows, `value` always among them, for the messages of consecutive
    runs that begin in [low, high). `separator_bytes` are cut from the end of each value."""
    lengths = np.concatenate([run.lengths for run in runs])
    ends = np.concatenate([run.ends for run in runs])
    starts = ends - lengths
    first, last = (int(place) for place in np.searchsorted(starts, (low, high)))
    # The bounds of messages within the data, in the form of Arrow's offsets.
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    data = b"".join(piece for run in runs for piece in run.data)
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), last - first, buffers, offset=first)
    arrays = {"value": pc.binary_slice(values, 0, -separator_bytes) if separator_bytes else values}
    if "offset" in columns or "end_offset" in columns:
        arrays |= offset_arrays(starts[first:last], ends[first:last])
    if "timestamp" in columns:
        times = np.concatenate([run.message_times_ms for run in runs])[first:last]
        arrays["timestamp"] = time_column(times)
    producing = [item for run in runs for item in run.producing]
    if producing and not _PRODUCER_COLUMNS.isdisjoint(columns):
        from tidemark.spark.readers.items import producers_by_end

        known = {end: each for item in producing for end, each in producers_by_end(item).items()}
        arrays |= producer_arrays(columns, [known.get(end) for end in ends[first:last].tolist()])
    return arrays


def offset_arrays(starts: Any, ends: Any) -> dict[str, pa.Array]:
    """Return the two offset columns. Renders each offset once if the messages are adjacent."""
    if not np.array_equal(starts[1:], ends[:-1]):
        return {"offset": offset_column(starts), "end_offset": offset_column(ends)}
    rendered = offset_column(np.concatenate((starts[:1], ends)))
    return {"offset": rendered[:-1], "end_offset": rendered[1:]}


def producer_arrays(
    columns: Sequence[str], producers: Sequence[tuple[str, int, int] | None]
) -> dict[str, pa.Array]:
    """Return the producer columns: the producer of the append that ends with each message. Empty if no
    producer is known."""
    if _PRODUCER_COLUMNS.isdisjoint(columns) or not any(producers):
        return {}
    ids, epochs, seqs = zip(*(each or (None, None, None) for each in producers), strict=True)
    return {
        "producer_id": pa.array(ids, pa.string()),
        "producer_epoch": pa.array(epochs, pa.int64()),
        "producer_seq": pa.array(seqs, pa.int64()),
    }


class MessageRows:
    """Collects messages of one stream that begin in the partition. `cut` is the offset at which a fork leaves
    the log of its source. A fork may begin inside a message, and then has the first part of the message."""

    def __init__(
        self, bucket: str, part: StreamPartition, columns: Sequence[str], cut: int | None = None
    ) -> None:
        content_type, of_stream = part.content_type, {"stream": part.name, "incarnation": part.incarnation}
        self._constants = {"bucket": bucket, "content_type": content_type, "position": 0} | of_stream
        self._columns, self._cut = columns, cut
        self._low, high = int(part.start), int(part.end)
        self._high = high if cut is None else min(high, cut)
        # A stored JSON message ends with a comma, which the server adds.
        is_json = content_type.partition(";")[0].strip().lower() == "application/json"
        self._has_members = is_json and not JSON_COLUMNS.isdisjoint(columns)
        self._separator_bytes = 1 if is_json else 0
        self._clear()

    def _clear(self) -> None:
        self._runs: list[MessageRun] = []
        self._count = 0
        self._size = 0

    def add(self, run: MessageRun, reached: int = 0) -> Iterator[pa.RecordBatch]:
        """Add the run's wanted messages that begin at `reached` or later. Yields full batches, in order."""
        low = max(self._low, reached)
        if self._cut is not None and run.end > self._cut:
            run = run.until(self._cut)
        is_whole = low <= run.start and run.end <= self._high
        if not is_whole:
            yield from self.take_rest()
        self._runs.append(run)
        self._count += len(run.lengths)
        self._size += sum(map(len, run.data))
        if not is_whole:
            yield from self.take_rest(low)
        elif self._count >= BATCH_ROWS or self._size >= BATCH_BYTES:
            yield from self.take_rest()

    def take_rest(self, low: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows that begin at `low` or later, if any, and clear the collection."""
        if not self._runs:
            return
        arrays = run_arrays(self._columns, self._runs, self._separator_bytes, low, self._high)
        if self._has_members:
            arrays |= json_arrays(self._columns, arrays["value"].to_pylist())
        count = len(arrays["value"])
        self._clear()
        if count:
            yield make_batch(self._columns, count, self._constants, arrays)


def rows_of_batches(
    bucket: str, columns: Sequence[str], pairs: Sequence[tuple[StreamPartition, BatchItem]]
) -> pa.RecordBatch:
    """Return the rows of one batch from each of several streams of one content type. Raises Damaged."""
    from tidemark.spark.readers.items import producers_by_end, run_of

    parts, items = zip(*pairs, strict=True)
    starts, ends = np.array([(int(part.start), int(part.end)) for part in parts], np.int64).T
    run = run_of(items, [item.data or b"" for item in items], starts, ends)
    rows = MessageRows(bucket, replace(parts[0], start="0", end=str(2**62)), columns)
    # Producers are added below: end offsets of different streams may be equal.
    [batch] = [*rows.add(replace(run, producing=())), *rows.take_rest()]
    of_row = np.repeat(np.arange(len(parts)), run.batches)
    arrays = dict(zip(columns, batch.columns, strict=True))
    for name, values in (("stream", "name"), ("incarnation", "incarnation")):
        arrays[name] = pa.array([getattr(part, values) for part in parts]).take(pa.array(of_row))
    if run.producing:
        known = list(map(producers_by_end, items))
        of_rows = zip(of_row.tolist(), run.ends.tolist(), strict=True)
        arrays |= producer_arrays(columns, [known[number].get(end) for number, end in of_rows])
    return make_batch(columns, batch.num_rows, {}, arrays)
