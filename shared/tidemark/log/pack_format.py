"""The format of a pack: many batches in one object, in blocks that are read on their own.

    object  = header, blocks, index, footer
    header  = "TIDEPACK", version (1 byte), 7 bytes of zero
    block   = raw deflate of: counts, lengths, appends, batches, gaps, data
    counts  = messages, appends, batches                       three uint32
    lengths = of each message, in bytes                        uint32 each
    appends = messages of each append                          uint32 each
    batches = messages of each batch, and then its times       uint32 each, int64 each: Unix ms
    gaps    = before each message, the bytes that compaction   uint64 each; nothing in a block without gaps
              has removed                                      between its messages
    data    = the stored bytes of the messages, one after the other
    index   = version (1 byte), the offset at which the pack begins (uint64), and of each block:
              bytes of data, bytes stored, CRC-32 of the stored bytes             three uint32
              and in version 2, before these, its length in offsets               uint64
    footer  = bytes of the index, CRC-32 of the index (two uint32), "TIDEPACK"

All numbers are little-endian. A block ends at the end of a batch, so no batch is cut. The table has a copy of
the index, so that a read at any offset gets its blocks with one ranged request. The copy in the object makes
the object readable without the table (`docs/internals/packs.md`).

A pack with removed messages has version 2, any other has version 1. If a block's length in offsets exceeds
its data and gaps, the rest is a gap after the last message.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, islice
from operator import add
from types import ModuleType
from typing import Final

MAGIC: Final = b"TIDEPACK"
_VERSION: Final = 1
COMPACTED_VERSION: Final = 2
#: A block is closed before it has more data than this, in bytes. A batch in the table has at most half as
#: much, so each block except the last is at least half full.
BLOCK_BYTES: Final = 128 * 1024

#: Raw deflate, without header and checksum: the index has a checksum, and so has DynamoDB.
RAW: Final = -zlib.MAX_WBITS

_HEADER: Final = struct.Struct("<8sB7x")
_INDEX_HEAD: Final = struct.Struct("<BQ")
#: The form of an index entry, by the pack's version.
_ENTRIES: Final = {_VERSION: struct.Struct("<III"), COMPACTED_VERSION: struct.Struct("<QIII")}
_COUNTS: Final = struct.Struct("<III")
_FOOTER: Final = struct.Struct("<II8s")
#: A high level, because a pack is written once and read often.
_LEVEL: Final = 6
#: The most inflated bytes of a message of one byte: byte, length, append, batch, time, gap.
_MOST_PER_BYTE: Final = 1 + 4 + 4 + 4 + 8 + 8


class CorruptPack(ValueError):
    """The bytes are not a whole pack. The message names the fault."""


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """A block's place in the object, and its range [start, end) of the stream. Compaction leaves
    `data_bytes`."""

    start: int
    end: int
    data_bytes: int
    first_byte: int
    stored_bytes: int
    checksum: int

    @property
    def is_whole(self) -> bool:
        return self.data_bytes == self.end - self.start

    def encoded(self, version: int) -> bytes:
        row = (self.data_bytes, self.stored_bytes, self.checksum)
        return _ENTRIES[version].pack(*(row if version == _VERSION else (self.end - self.start, *row)))


@dataclass(frozen=True, slots=True)
class Block:
    """The content of a block. `appends` counts the messages of each append, `batches` the messages of each
    batch; `times_ms` is the time of each batch. `gaps` are the bytes removed before each message; None means
    none."""

    data: bytes
    lengths: array[int]
    appends: array[int]
    batches: array[int]
    times_ms: array[int]
    gaps: array[int] | None = None


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The number of messages and the time of each batch in a block. The form is as compact as in the block,
    because blocks are kept in memory (`log/tails.py`)."""

    messages: array[int]
    times_ms: array[int]

    def without_first(self, messages: int) -> BatchTimes:
        left = array("I")
        for count in self.messages:
            skipped = min(count, messages)
            messages -= skipped
            if count > skipped:
                left.append(count - skipped)
        return BatchTimes(left, self.times_ms[len(self.times_ms) - len(left) :])


@dataclass(frozen=True, slots=True)
class PackIndex:
    """The blocks of a pack in order, without a gap."""

    blocks: tuple[BlockEntry, ...]

    @property
    def start(self) -> int:
        return self.blocks[0].start

    @property
    def end(self) -> int:
        return self.blocks[-1].end

    @property
    def data_bytes(self) -> int:
        return sum(block.data_bytes for block in self.blocks)

    def stored_blocks(self, stored: memoryview) -> Iterator[tuple[BlockEntry, memoryview]]:
        """Yield each block with its slice of `stored`, the bytes of all blocks."""
        first_byte = self.blocks[0].first_byte
        for block in self.blocks:
            begin = block.first_byte - first_byte
            yield block, stored[begin : begin + block.stored_bytes]

    def blocks_from(self, offset: int) -> Iterator[BlockEntry]:
        """Yield the blocks from the one that contains `offset`; all for an offset below the pack."""
        first = max(0, bisect_right(self.blocks, offset, key=lambda block: block.start) - 1)
        return iter(self.blocks[first:])


def message_ends(start: int, lengths: Sequence[int], gaps: Sequence[int] | None) -> Iterator[int]:
    """Yield the offset after each message, so that a caller may stop between messages without a list."""
    steps = lengths if gaps is None else map(add, gaps, lengths)
    return islice(accumulate(steps, initial=start), 1, None)


class PackWriter:
    """Takes batches in order and deflates them block by block, so that at most one block of data is in
    memory. `skip` makes a gap after the last batch."""

    def __init__(self, start: int, block_bytes: int) -> None:
        self.start = start
        self.end = start
        self.batch_count = 0
        self._block_bytes = block_bytes
        self._stored: list[bytes | memoryview] = []
        self._blocks: list[BlockEntry] = []
        self._first_byte = _HEADER.size
        self._closed_bytes = self._skipped = 0
        self._clear()

    def _clear(self) -> None:
        self._lengths, self._appends, self._batches = array("I"), array("I"), array("I")
        self._times_ms = array("q")
        self._data: list[bytes] = []
        self._data_bytes = 0
        #: For each gap, the number of messages before the gap, and its size in bytes.
        self._gaps: list[tuple[int, int]] = []

    @property
    def data_bytes(self) -> int:
        return self._closed_bytes + self._data_bytes

    @property
    def reached(self) -> int:
        """The offset after the last batch and its gap."""
        return self.end + self._skipped

    def skip(self, data_bytes: int) -> None:
        """Add a gap of `data_bytes`. A pack needs a batch before or after the gap."""
        self._skipped += data_bytes

    def add(self, data: bytes, lengths: Sequence[int], appends: Sequence[int], time_ms: int) -> None:
        """Add a batch. The lengths of its messages add up to its bytes; no `appends` means one append."""
        if self._data_bytes and self._data_bytes + len(data) > self._block_bytes:
            self._close_block()
        if self._skipped:
            self._gaps.append((len(self._lengths), self._skipped))
            self.end += self._skipped
            self._skipped = 0
        self._data.append(data)
        self._data_bytes += len(data)
        self._lengths.extend(lengths)
        self._appends.extend(appends or (len(lengths),))
        self._batches.append(len(lengths))
        self._times_ms.append(time_ms)
        self.end += len(data)
        self.batch_count += 1

    def take(self, entry: BlockEntry, stored: bytes | memoryview) -> None:
        """Add a block of another pack that begins at this pack's end. A large block is copied as it is; the
        batches of a small block share a block with their neighbours. Raises CorruptPack."""
        assert not self._skipped, "the block begins where this one ends"
        if entry.is_whole and 2 * entry.data_bytes < self._block_bytes:
            for batch in batches_of(decode_block(entry, stored)):
                self.add(*batch)
            return
        check_block(entry, stored)
        self._close_block()
        self._append_block(entry.end, entry.data_bytes, stored)
        self.end = entry.end

    def _append_block(self, end: int, data_bytes: int, stored: bytes | memoryview) -> None:
        start = self._blocks[-1].end if self._blocks else self.start
        entry = BlockEntry(start, end, data_bytes, self._first_byte, len(stored), zlib.crc32(stored))
        self._blocks.append(entry)
        self._stored.append(stored)
        self._first_byte += len(stored)
        self._closed_bytes += data_bytes

    def _close_block(self) -> None:
        if not self._data_bytes:
            return
        columns = [self._lengths, self._appends, self._batches, self._times_ms]
        counts = _COUNTS.pack(*map(len, columns[:3]))
        if self._gaps:
            columns.append(gaps := array("Q", bytes(8 * len(self._lengths))))
            for messages, data_bytes in self._gaps:
                gaps[messages] = data_bytes
        deflating = zlib.compressobj(_LEVEL, zlib.DEFLATED, RAW)
        pieces = [deflating.compress(piece) for piece in (counts, *map(_to_bytes, columns), *self._data)]
        stored = b"".join((*pieces, deflating.flush()))
        self._append_block(self.end, self._data_bytes, stored)
        self._clear()

    def finish(self) -> tuple[bytes, bytes]:
        """Return the whole object and its index. Call this once, after at least one batch."""
        self._close_block()
        self._blocks[-1] = replace(self._blocks[-1], end=self._blocks[-1].end + self._skipped)
        version = _VERSION if all(block.is_whole for block in self._blocks) else COMPACTED_VERSION
        entries = [block.encoded(version) for block in self._blocks]
        index = b"".join((_INDEX_HEAD.pack(version, self.start), *entries))
        footer = _FOOTER.pack(len(index), zlib.crc32(index), MAGIC)
        pack = b"".join((_HEADER.pack(MAGIC, version), *self._stored, index, footer))
        self._stored.clear()
        return pack, index


def decode_index(encoded: bytes) -> PackIndex:
    """Return the index. Raises CorruptPack, also for a version that this release does not know."""
    if len(encoded) <= _INDEX_HEAD.size:
        raise CorruptPack(f"an index cannot have {len(encoded)} bytes")
    version, offset = _INDEX_HEAD.unpack_from(encoded)
    if version not in _ENTRIES:
        raise CorruptPack(f"the pack has version {version}, and this release reads up to {COMPACTED_VERSION}")
    entry = _ENTRIES[version]
    if (len(encoded) - _INDEX_HEAD.size) % entry.size:
        raise CorruptPack(f"an index cannot have {len(encoded)} bytes")
    blocks, first_byte = [], _HEADER.size
    for *lengths, data_bytes, stored_bytes, checksum in entry.iter_unpack(encoded[_INDEX_HEAD.size :]):
        end = offset + (lengths[0] if lengths else data_bytes)
        if not 0 < data_bytes <= end - offset:
            raise CorruptPack(f"the block at {offset} cannot have {data_bytes} bytes")
        blocks.append(BlockEntry(offset, end, data_bytes, first_byte, stored_bytes, checksum))
        offset = end
        first_byte += stored_bytes
    return PackIndex(tuple(blocks))


def read_index(pack: bytes) -> PackIndex:
    """Return the index of a whole object. Raises CorruptPack."""
    if len(pack) < _HEADER.size + _FOOTER.size or _HEADER.unpack_from(pack)[0] != MAGIC:
        raise CorruptPack("the object does not begin with the header of a pack")
    behind_index = len(pack) - _FOOTER.size
    index_bytes, checksum, magic = _FOOTER.unpack_from(pack, behind_index)
    encoded = pack[max(0, behind_index - index_bytes) : behind_index]
    if magic != MAGIC or zlib.crc32(encoded) != checksum:
        raise CorruptPack("the object does not end with the footer of a pack")
    return decode_index(encoded)


def check_block(entry: BlockEntry, stored: bytes | memoryview) -> None:
    """Raise CorruptPack unless the bytes have the size and checksum in the index."""
    if len(stored) != entry.stored_bytes or zlib.crc32(stored) != entry.checksum:
        raise CorruptPack(f"the block at {entry.start} does not fit its checksum")


@cache
def fast_zlib() -> ModuleType:
    """Return ISA-L's zlib if it is installed, else zlib. ISA-L is several times faster, with the same
    interface, checksums and format. The import happens at the first use."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def decode_block(entry: BlockEntry, stored: bytes | memoryview) -> Block:
    """Return the block's content. Raises CorruptPack as `check_block`, and if the block contradicts the
    index."""
    check_block(entry, stored)
    size = entry.data_bytes
    inflating = fast_zlib().decompressobj(RAW)
    try:
        plain = inflating.decompress(stored, _COUNTS.size + _MOST_PER_BYTE * size)
    except fast_zlib().error as failure:
        raise CorruptPack(f"the block at {entry.start} is not deflated: {failure}") from failure
    if not inflating.eof or len(plain) < _COUNTS.size:
        raise CorruptPack(f"the block at {entry.start} has a wrong size")
    messages, appends, batches = _COUNTS.unpack_from(plain)
    edges = [_COUNTS.size]
    for count, width in ((messages, 4), (appends, 4), (batches, 4), (batches, 8)):
        edges.append(edges[-1] + count * width)
    has_gaps = len(plain) - edges[-1] > size
    edges.append(edges[-1] + has_gaps * messages * 8)
    if len(plain) - edges[-1] != size:
        raise CorruptPack(f"the block at {entry.start} has a wrong size")
    block = Block(
        data=plain[edges[-1] :],
        lengths=_from_bytes("I", plain[edges[0] : edges[1]]),
        appends=_from_bytes("I", plain[edges[1] : edges[2]]),
        batches=_from_bytes("I", plain[edges[2] : edges[3]]),
        times_ms=_from_bytes("q", plain[edges[3] : edges[4]]),
        gaps=None if entry.is_whole else _from_bytes("Q", plain[edges[4] : edges[5]] or bytes(8 * messages)),
    )
    if sum(block.lengths) != size or sum(block.appends) != messages or sum(block.batches) != messages:
        raise CorruptPack(f"the messages of the block at {entry.start} do not add up")
    if size + sum(block.gaps or ()) > entry.end - entry.start:
        raise CorruptPack(f"the gaps of the block at {entry.start} do not add up")
    return block


def batches_of(block: Block) -> Iterator[tuple[bytes, tuple[int, ...], tuple[int, ...], int]]:
    """Yield each batch: its data, the lengths of its messages, the messages of each append, and its time."""
    lengths, appends, position = iter(block.lengths), iter(block.appends), 0
    for messages, time_ms in zip(block.batches, block.times_ms, strict=True):
        own = tuple(islice(lengths, messages))
        counts, left = [], messages
        while left > 0:
            counts.append(next(appends))
            left -= counts[-1]
        end = position + sum(own)
        yield block.data[position:end], own, tuple(counts), time_ms
        position = end


def _to_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _from_bytes(typecode: str, encoded: bytes) -> array[int]:
    column = array(typecode)
    column.frombytes(encoded)
    if sys.byteorder == "big":
        column.byteswap()
    return column
