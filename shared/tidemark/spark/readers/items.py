"""A batch's item, read for its messages alone.

`log/schema/` decodes an item into records with all that a writer must know; of that, a bulk
read needs few attributes, and needs them at several hundred thousand rows a second. So an
answer of DynamoDB is decoded straight into what is wanted here, and the rest is passed over.
A test holds the two decoders to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from tidemark.aws.retry import NoAnswer
from tidemark.blobs import BlobStore, parts_of
from tidemark.log.pack_format import BlockColumns, CorruptPack, decode_columns, decode_index, inflate_library
from tidemark.log.schema import (
    BLOB,
    END,
    MESSAGE_LENGTHS,
    PACK_INDEX,
    SK,
    TIME_MS,
    decode_checksums,
    decode_lengths,
    inflate_all,
)
from tidemark.log.schema.batches import inflate
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import WIDTH
from tidemark.spark.storage import ExplainingDynamoDB

#: Enough of an item to know where its messages end.
BOUNDARY_ATTRIBUTES: Final = (SK, END, MESSAGE_LENGTHS, TIME_MS, BLOB, PACK_INDEX)


#: Blocks of a pack that are fetched together: 2 MB of data.
_BLOCKS_AT_ONCE: Final = 16
_BODIES_AT_ONCE: Final = 16
#: Items are read together up to about this many bytes of data, and from this many items on.
RUN_BYTES: Final = 2 * 1024 * 1024
_RUN_ITEMS: Final = 4
#: The place value of each digit of a rendered offset.
_PLACES: Final = 10 ** np.arange(WIDTH, dtype=np.int64)[::-1]


class Text(msgspec.Struct, gc=False):
    S: str


class Number(msgspec.Struct, gc=False):
    """In an answer it is text; a decoder with `strict=False` takes care of that."""

    N: int


class Binary(msgspec.Struct, gc=False):
    """In an answer it is base64; the decoder takes care of that."""

    B: bytes


class Producers(msgspec.Struct, gc=False):
    """JSON; deflated where it is long."""

    S: str | None = None
    B: bytes | None = None

    @property
    def rows(self) -> list[tuple[str, int, int, int]]:
        rows: list[tuple[str, int, int, int]] = orjson.loads(self.S or inflate_all(self.B or b""))
        return rows


class BatchItem(msgspec.Struct, gc=False):
    """The attributes by their names in the table (`log/schema/batches.py` says what they are)."""

    sk: Text
    e: Number
    t: Number
    b: Binary | None = None
    z: Binary | None = None
    s: Text | None = None
    m: Binary | None = None
    p: Producers | None = None
    h: Binary | None = None
    px: Binary | None = None

    @property
    def start(self) -> int:
        return int(self.sk.S[:WIDTH])

    @property
    def end(self) -> int:
        return self.e.N

    @property
    def data(self) -> bytes | None:
        """None where the bytes are in the blob that `s` names. Raises Damaged."""
        if self.b is not None:
            return self.checked(self.b.B)
        if self.z is None:
            return None
        try:
            return self.checked(inflate(self.z.B, self.end - self.start, inflate_library()))
        except ValueError as fault:
            raise Damaged from fault

    def fits(self, data: bytes) -> bool:
        return self.h is None or decode_checksums(self.h.B).fit(self.start, data)

    def checked(self, data: bytes) -> bytes:
        if not self.fits(data):
            raise Damaged
        return data


class _Answer(msgspec.Struct):
    Items: list[BatchItem]
    LastEvaluatedKey: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Answer, strict=False)


class BulkDynamoDB(ExplainingDynamoDB):
    """Answers queries of a log with `BatchItem`s in place of DynamoDB's own JSON."""

    def parse(self, operation: str, status: int, reply: bytes) -> dict[str, Any]:
        if operation != "Query" or status != 200:
            return super().parse(operation, status, reply)
        try:
            page = _decoder.decode(reply)
        except msgspec.DecodeError as failure:
            raise NoAnswer(f"Query: the reply is not a page of items: {failure}") from failure
        more = {} if page.LastEvaluatedKey is None else {"LastEvaluatedKey": page.LastEvaluatedKey}
        return {"Items": page.Items} | more


def message_ends(item: BatchItem) -> list[int]:
    """The end offsets of the item's messages in order; the last is the item's own end. For a pack, the ends
    of its blocks, which are also ends of messages."""
    start, end = item.start, item.end
    if item.px is not None:
        return [block.end for block in decode_index(item.px.B).blocks]
    if item.m is None:
        return [end] if end > start else []
    return list(accumulate(decode_lengths(item.m.B), initial=start))[1:]


@dataclass(frozen=True, slots=True)
class PackBlock:
    """A block of a pack, which has the stream's data [start, end)."""

    start: int
    end: int
    columns: BlockColumns

    @property
    def ends(self) -> list[int]:
        """The end offset of each message."""
        return list(accumulate(self.columns.lengths, initial=self.start))[1:]

    @property
    def times_ms(self) -> Iterable[int]:
        """When each of its messages was appended."""
        return chain.from_iterable(map(repeat, self.columns.times_ms, self.columns.batches))

    @property
    def run(self) -> MessageRun:
        block = self.columns
        columns = (np.asarray(column) for column in (block.lengths, block.times_ms, block.batches))
        return MessageRun(self.start, self.end, [block.data], *columns)

    @property
    def piece(self) -> Piece:
        return self.columns.data, self.start, self.ends, self.times_ms, None


def pack_blocks(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[PackBlock]:
    """The blocks of a pack that overlap [low, high); a few of them with each request. Raises
    Damaged."""
    assert item.px is not None, "a pack"
    assert item.s is not None, "a pack has an object"
    blocks = (block for block in decode_index(item.px.B).blocks if block.end > low and block.start < high)
    while some := list(islice(blocks, _BLOCKS_AT_ONCE)):
        first = some[0].first_byte
        stored = blobs.get_range(item.s.S, first, some[-1].first_byte + some[-1].stored_bytes - first)
        for entry in some:
            place = entry.first_byte - first
            try:
                columns = decode_columns(entry, stored[place : place + entry.stored_bytes])
            except CorruptPack as fault:
                raise Damaged from fault
            yield PackBlock(entry.start, entry.end, columns)


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive whole batches, column by column: messages do not become Python objects.

    `data` in its pieces is that of the stream from `start` to `end`. `lengths` are those of the messages,
    `times_ms` and `batches` say of each batch when it was appended and how many messages it has, and
    `producing` are the items that name producers. The three columns are arrays of numpy's.
    """

    start: int
    end: int
    data: Sequence[bytes]
    lengths: Any
    times_ms: Any
    batches: Any
    producing: Sequence[BatchItem] = ()


def merge_page(items: Sequence[BatchItem], reached: int, high: int) -> Iterator[BatchItem | MessageRun]:
    """The items, those of them as runs that go on from `reached` without a gap and begin below `high`.

    The walk skips an item that begins before what it has reached, because that lies in a pack, and looks for
    a pack where there is a gap. It does so item by item, so from the first such place on there are no runs;
    the first item may begin earlier.
    """
    starts = _parse_offsets([item.sk.S[:WIDTH] for item in items])
    ends = np.array([item.e.N for item in items], np.int64)
    first, last = 0, 0
    if len(items) and starts[0] <= reached <= ends[0]:
        first = int(starts[0] < reached)
        gaps = np.flatnonzero(starts[1:] != ends[:-1])
        last = int(np.searchsorted(starts[: gaps[0] + 1 if len(gaps) else len(items)], high))
    # Items of a run are of one kind: all have one message, or all have several.
    kinds = [0 if item.b is None and item.z is None else 1 if item.m is None else 2 for item in items]
    groups = kinds + (starts - starts[:1]) // RUN_BYTES * 3
    changes = np.flatnonzero(np.diff(groups[first:last])) + first + 1
    yield from items[:first]
    for begin, end in pairwise([first, *changes.tolist(), max(first, last)]):
        if end - begin >= _RUN_ITEMS and kinds[begin]:
            yield from _merge(items[begin:end], int(starts[begin]), ends[begin:end])
        else:
            yield from items[begin:end]
    yield from items[max(first, last) :]


def _parse_offsets(rendered: Sequence[str]) -> Any:
    """`render_offset` back, all of them at once."""
    digits = np.frombuffer("".join(rendered).encode(), np.uint8).reshape(-1, WIDTH)
    return (digits - np.uint8(ord("0"))) @ _PLACES


def _merge(items: Sequence[BatchItem], start: int, ends: Any) -> Sequence[BatchItem | MessageRun]:
    """One run; the items themselves where one is not as it says."""
    data = [item.b.B if item.b is not None else item.data or b"" for item in items]
    lengths, batches = np.diff(ends, prepend=start), np.ones(len(items), np.int64)
    if list(map(len, data)) != lengths.tolist() or not all(map(BatchItem.fits, items, data)):
        return items
    if items[0].m is not None:
        lengths, batches = decode_all_lengths([item.m.B for item in items if item.m is not None])
        if not np.array_equal(start + np.cumsum(lengths)[np.cumsum(batches) - 1], ends):
            return items
    times_ms = np.array([item.t.N for item in items], np.int64)
    producing = [item for item in items if item.p is not None]
    return [MessageRun(start, int(ends[-1]), data, lengths, times_ms, batches, producing)]


def decode_all_lengths(encoded: Sequence[bytes]) -> tuple[Any, Any]:
    """The lengths in several columns, one behind the other, and how many are in each (`decode_lengths`)."""
    digits = np.frombuffer(b"".join(encoded), np.uint8)
    is_last = digits < 0x80
    first = np.concatenate(([0], np.flatnonzero(is_last)[:-1] + 1))
    places = np.arange(len(digits)) - np.repeat(first, np.diff(first, append=len(digits)))
    lengths = np.add.reduceat((digits & 0x7F).astype(np.int64) << (7 * places), first)
    columns = np.cumsum([0, *map(len, encoded[:-1])])
    return lengths, np.add.reduceat(is_last, columns, dtype=np.int64)


Piece = tuple[bytes, int, Sequence[int], Iterable[int], "dict[int, MessageProducer] | None"]
"""Messages in one piece: their bytes, where these begin, where each message ends, when it was appended (ms),
and whose append ends with it."""


def pieces_of(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[Piece | PackBlock]:
    """A batch as one piece; of a pack, which tells of no producers, each block that has something of
    [low, high)."""
    if item.px is not None:
        yield from pack_blocks(item, blobs, low, high)
        return
    data = item.data
    if data is None:
        data = item.checked(body_of(item, blobs))
    ends = message_ends(item) if item.m is not None else (item.end,)
    producers = producers_by_end(item) if item.p is not None else None
    yield data, item.start, ends, repeat(item.t.N), producers


def body_of(item: BatchItem, blobs: BlobStore) -> bytes:
    """The bytes that are in S3, of a crowd's batch in several objects."""
    if item.s is None:
        return b""
    parts = parts_of(item.s.S, item.end - item.start)
    if len(parts) == 1:
        return blobs.get(item.s.S)
    with ThreadPoolExecutor(_BODIES_AT_ONCE) as pool:
        return b"".join(pool.map(lambda part: blobs.get(*part), parts))


@dataclass(frozen=True, slots=True)
class MessageProducer:
    """The producer of the append that ends with a message."""

    producer_id: str
    epoch: int
    seq: int


def producers_by_end(item: BatchItem) -> dict[int, MessageProducer]:
    """Of the appends in this item, as far as is known: every item carries its stream's recent
    producers with the end of the last append of each, and most of those ended earlier."""
    if item.p is None:
        return {}
    start = item.start
    return {end: MessageProducer(name, epoch, seq) for name, epoch, seq, end in item.p.rows if end > start}
