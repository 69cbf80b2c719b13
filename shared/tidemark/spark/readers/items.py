"""A batch's item, read for its messages alone.

`log/schema/` decodes an item into records with all that a writer must know; of that, a bulk
read needs few attributes, and needs them at several hundred thousand rows a second. So an
answer of DynamoDB is decoded straight into what is wanted here, and the rest is passed over.
A test holds the two decoders to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat
from typing import Any, Final

import msgspec
import orjson

from tidemark.aws.retry import NoAnswer
from tidemark.blobs.store import BlobStore
from tidemark.log.deflate import inflate
from tidemark.log.schema import BLOB, END, MESSAGE_LENGTHS, PACK_INDEX, SK, TIME_MS, decode_lengths
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import WIDTH
from tidemark.protocol.pack import BlockColumns, CorruptPack, decode_columns, decode_index
from tidemark.spark.clients.storage import ExplainingDynamoDB

#: Enough of an item to know where its messages end.
BOUNDARY_ATTRIBUTES: Final = (SK, END, MESSAGE_LENGTHS, TIME_MS, BLOB, PACK_INDEX)


#: Blocks of a pack that are fetched together: 2 MB of data.
_BLOCKS_AT_ONCE: Final = 16


class Text(msgspec.Struct, gc=False):  # type: ignore[call-arg] # msgspec is not where types are checked
    S: str


class Number(msgspec.Struct, gc=False):  # type: ignore[call-arg] # msgspec is not where types are checked
    N: str


class Binary(msgspec.Struct, gc=False):  # type: ignore[call-arg] # msgspec is not where types are checked
    """In an answer it is base64; the decoder takes care of that."""

    B: bytes


class BatchItem(msgspec.Struct, gc=False):  # type: ignore[call-arg] # msgspec is not where types are checked
    """The attributes by their names in the table (`log/schema/batches.py` says what they are)."""

    sk: Text
    e: Number
    t: Number
    b: Binary | None = None
    z: Binary | None = None
    s: Text | None = None
    m: Binary | None = None
    p: Text | None = None
    px: Binary | None = None

    @property
    def start(self) -> int:
        return int(self.sk.S[:WIDTH])

    @property
    def end(self) -> int:
        return int(self.e.N)

    @property
    def data(self) -> bytes | None:
        """None where the bytes are in the blob that `s` names."""
        if self.b is not None:
            return self.b.B
        return None if self.z is None else inflate(self.z.B, self.end - self.start)


class _Answer(msgspec.Struct):
    Items: list[BatchItem]
    LastEvaluatedKey: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Answer)


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
    """Offsets, the first message's end first; the last is the item's own end. Of a pack the ends of its
    blocks, which end where messages do."""
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
        """Where its messages end."""
        return list(accumulate(self.columns.lengths, initial=self.start))[1:]

    @property
    def times_ms(self) -> Iterable[int]:
        """When each of its messages was appended."""
        return chain.from_iterable(map(repeat, self.columns.times_ms, self.columns.batches))

    @property
    def piece(self) -> Piece:
        return self.columns.data, self.start, self.ends, self.times_ms, None


def pack_blocks(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[PackBlock]:
    """Those blocks of a pack that have something of [low, high); a few of them with each request. Raises
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


class PlainPage:
    """Batches of one message each, one behind the other, that are read together: column by column in place
    of one by one."""

    __slots__ = ("end", "ends", "items", "start", "starts")

    def __init__(self, items: Sequence[BatchItem]) -> None:
        self.items = items
        self.starts = [int(item.sk.S[:WIDTH]) for item in items]
        self.ends = [int(item.e.N) for item in items]
        self.start, self.end = self.starts[0], self.ends[-1]


def merge_page(items: Sequence[BatchItem], reached: int, high: int) -> Iterable[BatchItem | PlainPage]:
    """The items; or one plain page, where they go on from `reached` without a gap or a pack, and none begins
    at `high` or later. One that began elsewhere could lie in a pack in part; the walk takes it as a whole."""
    for item in items:
        if item.b is None or item.m is not None or item.p is not None:
            return items
    page = PlainPage(items) if items else None
    if page is None or page.start != reached or page.starts[-1] >= high or page.starts[1:] != page.ends[:-1]:
        return items
    return [page]


Piece = tuple[bytes, int, Sequence[int], Iterable[int], "dict[int, Producer] | None"]
"""Messages in one piece: their bytes, where these begin, where each message ends, when it was appended (ms),
and whose append ends with it."""


def pieces_of(item: BatchItem, blobs: BlobStore, low: int, high: int) -> Iterator[Piece | PackBlock]:
    """A batch as one piece; of a pack, which tells of no producers, each block that has something of
    [low, high)."""
    if item.px is not None:
        yield from pack_blocks(item, blobs, low, high)
        return
    data = item.b.B if item.b is not None else item.data
    if data is None:
        data = blobs.get(item.s.S) if item.s is not None else b""
    ends = message_ends(item) if item.m is not None else (item.end,)
    producers = producers_by_end(item) if item.p is not None else None
    yield data, item.start, ends, repeat(int(item.t.N)), producers


@dataclass(frozen=True, slots=True)
class Producer:
    """Whose append a message was the last of."""

    producer_id: str
    epoch: int
    seq: int


def producers_by_end(item: BatchItem) -> dict[int, Producer]:
    """Of the appends in this item, as far as is known: every item carries its stream's recent
    producers with the end of the last append of each, and most of those ended earlier."""
    if item.p is None:
        return {}
    start = item.start
    return {
        end: Producer(name, epoch, seq) for name, epoch, seq, end in orjson.loads(item.p.S) if end > start
    }
