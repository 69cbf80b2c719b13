"""Batches of a log, read in bulk: column by column, without a Python object for each message.

`log/schema/` decodes an item into records with all attributes for a writer. A bulk read needs few attributes,
at several hundred thousand rows per second; for batches of one message, this decoder is three times as fast.
It decodes an answer of DynamoDB directly into these structs and skips all other attributes. Names, lengths,
checksums and compression are imported from `log/schema/`, and a test compares the two decoders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from tidemark.aws.retry import NoAnswer
from tidemark.blobs import BlobStore, parts_of
from tidemark.log import schema
from tidemark.log.pack_format import CorruptPack, decode_block, decode_index
from tidemark.log.schema.batches import inflate, inflate_all
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import WIDTH
from tidemark.spark.storage import ExplainingDynamoDB

#: The attributes that show the end offsets of an item's messages.
BOUNDARY_ATTRIBUTES: Final = (
    schema.SK,
    schema.END,
    schema.MESSAGE_LENGTHS,
    schema.TIME_MS,
    schema.BLOB,
    schema.PACK_INDEX,
)

#: Blocks of a pack in one request to S3: 2 MB of data.
_BLOCKS_AT_ONCE: Final = 16
_BODIES_AT_ONCE: Final = 16
#: Approximate limit of a run, in bytes of data.
RUN_BYTES: Final = 2 * 1024 * 1024
#: The place value of each digit of a rendered offset.
_PLACES: Final = 10 ** np.arange(WIDTH, dtype=np.int64)[::-1]


class Text(msgspec.Struct, gc=False):
    S: str


class Number(msgspec.Struct, gc=False):
    """A number, which DynamoDB sends as text: the decoder converts it (`strict=False`)."""

    N: int


class Binary(msgspec.Struct, gc=False):
    """Bytes, which DynamoDB sends in base64: the decoder converts them."""

    B: bytes


class Producers(msgspec.Struct, gc=False):
    """Producers as JSON, deflated if long."""

    S: str | None = None
    B: bytes | None = None


_NAMES: Final = {
    "key": schema.SK,
    "end_at": schema.END,
    "time": schema.TIME_MS,
    "plain": schema.DATA,
    "deflated": schema.DEFLATED_DATA,
    "blob": schema.BLOB,
    "message_lengths": schema.MESSAGE_LENGTHS,
    "producers": schema.PRODUCERS,
    "checksums": schema.CHECKSUMS,
    "index": schema.PACK_INDEX,
}


class BatchItem(msgspec.Struct, gc=False, rename=_NAMES):
    """The attributes of an item that a reader needs."""

    key: Text
    end_at: Number
    time: Number
    plain: Binary | None = None
    deflated: Binary | None = None
    blob: Text | None = None
    message_lengths: Binary | None = None
    producers: Producers | None = None
    checksums: Binary | None = None
    index: Binary | None = None

    @property
    def start(self) -> int:
        return int(self.key.S[:WIDTH])

    @property
    def end(self) -> int:
        return self.end_at.N

    @property
    def data(self) -> bytes | None:
        """The item's bytes; None if the bytes are in the blob, or if it has none. Raises Damaged."""
        if self.plain is not None:
            return self.plain.B
        if self.deflated is None:
            return None
        try:
            return inflate(self.deflated.B, self.end - self.start)
        except ValueError as fault:
            raise Damaged from fault

    @property
    def has_bytes(self) -> bool:
        return self.plain is not None or self.deflated is not None

    def fits(self, data: bytes) -> bool:
        return self.checksums is None or schema.decode_checksums(self.checksums.B).fit(self.start, data)


class _PlacedItem(BatchItem, rename=_NAMES | {"log": schema.PK}):
    """An item with the key of its log."""

    log: Text | None = None


class _Answer(msgspec.Struct):
    """The answer to a Query or a BatchGetItem."""

    Items: list[BatchItem] | None = None
    LastEvaluatedKey: dict[str, Any] | None = None
    Responses: dict[str, list[_PlacedItem]] | None = None
    UnprocessedKeys: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Answer, strict=False)


class BulkDynamoDB(ExplainingDynamoDB):
    """Client that returns the items of a log as `BatchItem`s instead of DynamoDB's JSON."""

    def parse(self, operation: str, status: int, reply: bytes) -> dict[str, Any]:
        if operation not in ("Query", "BatchGetItem") or status != 200:
            return super().parse(operation, status, reply)
        try:
            answer = msgspec.structs.asdict(_decoder.decode(reply))
        except msgspec.DecodeError as failure:
            raise NoAnswer(f"{operation}: the reply is not a page of items: {failure}") from failure
        return {name: member for name, member in answer.items() if member is not None}


def message_ends(item: BatchItem) -> list[int]:
    """Return the end offsets of the item's messages in order; the last is the item's end. For a pack, return
    the ends of its blocks: a message ends there, or did before compaction removed it."""
    start, end = item.start, item.end
    if item.index is not None:
        return [block.end for block in decode_index(item.index.B).blocks]
    if item.message_lengths is None:
        return [end] if end > start else []
    return list(accumulate(schema.decode_lengths(item.message_lengths.B), initial=start))[1:]


def cut_by_bytes(
    items: Iterable[BatchItem], low: int, high: int, wanted_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and bytes of ranges of [low, high) that end where an item or a block of a pack ends.
    Counts stored bytes, because a compacted stream has fewer bytes than its offsets span."""
    begin, size = low, 0
    for item in items:
        blocks = [] if item.index is None else decode_index(item.index.B).blocks
        sizes = [(block.end, block.data_bytes) for block in blocks] or [(item.end, item.end - item.start)]
        for end, data_bytes in sizes:
            size += data_bytes if end > begin else 0
            if size >= wanted_bytes and end < high:
                yield begin, end, size
                begin, size = end, 0
    yield begin, high, size


def producers_by_end(item: BatchItem) -> dict[int, tuple[str, int, int]]:
    """Return the known producers (id, epoch, seq) of the appends in this item, by end offset. Every item has
    the stream's recent producers with the end of each one's last append; most of these ends are in earlier
    items."""
    if item.producers is None:
        return {}
    start = item.start
    rows = orjson.loads(item.producers.S or inflate_all(item.producers.B or b""))
    return {end: (name, epoch, seq) for name, epoch, seq, end in rows if end > start}


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive messages, column by column.

    `data` has the stream's bytes from `start` to `end`, in pieces. `lengths` has the length of each message.
    `times_ms` and `batches` have the time and the number of messages of each batch. `producing` has the items
    with producers. `gaps` has the bytes that compaction removed before each message, or is None. Columns are
    numpy arrays.
    """

    start: int
    end: int
    data: Sequence[bytes]
    lengths: Any
    times_ms: Any
    batches: Any
    producing: Sequence[BatchItem] = ()
    gaps: Any = None

    @property
    def ends(self) -> Any:
        steps = self.lengths if self.gaps is None else self.lengths + self.gaps
        return self.start + np.cumsum(steps, dtype=np.int64)

    @property
    def starts(self) -> Any:
        return self.ends - self.lengths

    @property
    def message_times_ms(self) -> Any:
        return np.repeat(self.times_ms, self.batches)

    def until(self, end: int) -> MessageRun:
        """Return the messages that begin before `end`. The last message is cut at `end`."""
        count = int(np.searchsorted(self.starts, end))
        lengths = np.minimum(self.ends[:count], end) - self.starts[:count]
        times_ms, each = self.message_times_ms[:count], np.ones(count, np.int64)
        data = b"".join(self.data)[: lengths.sum()]
        gaps = None if self.gaps is None else self.gaps[:count]
        return MessageRun(self.start, end, [data], lengths, times_ms, each, self.producing, gaps)


def merge_page(items: Sequence[BatchItem], reached: int, high: int) -> Iterator[BatchItem | MessageRun]:
    """Yield the items of a page. Adjacent items from `reached` up to `high` are merged into runs.

    The chain walk (`log/chain.py`) skips an item that begins before `reached`, because a pack contains it,
    and looks for a pack at a gap. It needs single items for both, so runs end at the first such place; only
    the first item may begin before `reached`. An item whose bytes are in S3 is not merged. Raises Damaged.
    """
    # Parse all rendered offsets at once.
    digits = np.frombuffer("".join([item.key.S[:WIDTH] for item in items]).encode(), np.uint8)
    starts = (digits.reshape(-1, WIDTH) - np.uint8(ord("0"))) @ _PLACES
    ends = np.array([item.end for item in items], np.int64)
    first, last = 0, 0
    if len(items) and starts[0] <= reached <= ends[0]:
        first = int(starts[0] < reached)
        gaps = np.flatnonzero(starts[1:] != ends[:-1])
        last = int(np.searchsorted(starts[: gaps[0] + 1 if len(gaps) else len(items)], high))
    kinds = np.array([item.has_bytes for item in items], np.int64)
    groups = kinds + (starts - starts[:1]) // RUN_BYTES * 2
    changes = np.flatnonzero(np.diff(groups[first:last])) + first + 1
    yield from items[:first]
    for begin, end in pairwise([first, *changes.tolist(), max(first, last)]):
        if begin < end and kinds[begin]:
            some = items[begin:end]
            data = [item.plain.B if item.plain is not None else item.data or b"" for item in some]
            yield run_of(some, data, starts[begin:end], ends[begin:end])
        else:
            yield from items[begin:end]
    yield from items[max(first, last) :]


def run_of(items: Sequence[BatchItem], data: Sequence[bytes], starts: Any, ends: Any) -> MessageRun:
    """Make a run of items in order, or of different streams, with the bytes of each. Raises Damaged if the
    bytes or the lengths of messages do not match an item's bounds or checksums."""
    sizes, gaps = ends - starts, None
    if list(map(len, data)) != sizes.tolist() or not all(map(BatchItem.fits, items, data)):
        raise Damaged
    lengths, batches = sizes, np.ones(len(items), np.int64)
    if any(item.message_lengths is not None for item in items):
        lengths, batches = decode_all_lengths(
            [
                item.message_lengths.B if item.message_lengths is not None else schema.encode_lengths([size])
                for item, size in zip(items, sizes.tolist(), strict=True)
            ]
        )
        if not np.array_equal(np.add.reduceat(lengths, np.cumsum(batches) - batches), sizes):
            raise Damaged
    times_ms = np.array([item.time.N for item in items], np.int64)
    producing = [item for item in items if item.producers is not None]
    if not np.array_equal(starts[1:], ends[:-1]):
        gaps = np.zeros(len(lengths), np.int64)
        gaps[np.cumsum(batches)[:-1]] = starts[1:] - ends[:-1]
    return MessageRun(int(starts[0]), int(ends[-1]), data, lengths, times_ms, batches, producing, gaps)


def decode_all_lengths(encoded: Sequence[bytes]) -> tuple[Any, Any]:
    """Decode several columns of lengths (`decode_lengths`). Returns all lengths in order, and the number of
    lengths in each column."""
    digits = np.frombuffer(b"".join(encoded), np.uint8)
    is_last = digits < 0x80
    first = np.concatenate(([0], np.flatnonzero(is_last)[:-1] + 1))
    places = np.arange(len(digits)) - np.repeat(first, np.diff(first, append=len(digits)))
    lengths = np.add.reduceat((digits & 0x7F).astype(np.int64) << (7 * places), first)
    columns = np.cumsum([0, *map(len, encoded[:-1])])
    return lengths, np.add.reduceat(is_last, columns, dtype=np.int64)


def runs_of(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[MessageRun]:
    """Yield the messages of an item; of a pack, the messages of blocks that overlap [low, high). Raises
    Damaged."""
    if item.index is not None:
        yield from pack_blocks(item, blobs, low, high)
    else:
        data = item.data
        body = body_of(item, blobs) if data is None else data
        yield run_of([item], [body], np.array([item.start]), np.array([item.end]))


def pack_blocks(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[MessageRun]:
    """Yield the blocks of a pack that overlap [low, high), several with each request. A pack has no
    producers. Raises Damaged."""
    assert item.index is not None, "a pack"
    assert item.blob is not None, "a pack has an object"
    blocks = (block for block in decode_index(item.index.B).blocks if block.end > low and block.start < high)
    while some := list(islice(blocks, _BLOCKS_AT_ONCE)):
        first = some[0].first_byte
        stored = blobs.get_range(item.blob.S, first, some[-1].first_byte + some[-1].stored_bytes - first)
        for entry in some:
            place = entry.first_byte - first
            try:
                block = decode_block(entry, stored[place : place + entry.stored_bytes])
            except CorruptPack as fault:
                raise Damaged from fault
            lengths, times_ms, batches = map(np.asarray, (block.lengths, block.times_ms, block.batches))
            gaps = None if block.gaps is None else np.asarray(block.gaps, np.int64)
            yield MessageRun(entry.start, entry.end, [block.data], lengths, times_ms, batches, gaps=gaps)


def body_of(item: BatchItem, blobs: BlobStore) -> bytes:
    """Return the bytes in S3. A batch of combined appends may have several objects."""
    if item.blob is None:
        return b""
    parts = parts_of(item.blob.S, item.end - item.start)
    if len(parts) == 1:
        return blobs.get(item.blob.S)
    with ThreadPoolExecutor(_BODIES_AT_ONCE) as pool:
        return b"".join(pool.map(lambda part: blobs.get(*part), parts))
