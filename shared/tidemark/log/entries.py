"""What lies in a log: batches, the packs that take the place of many of them, and the tombstone behind the
last one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Final
from zlib import crc32

from tidemark.log.combining import Mailed
from tidemark.log.pack_format import BatchTimes, BlockEntry, PackIndex
from tidemark.protocol.tail import Tail


@dataclass(frozen=True, slots=True)
class Checksums:
    """`after` is the CRC-32 of `before`, the batch's start and its bytes as they were sent: so each batch
    proves its own bytes and names the batch before it. `before` is the `after` of that batch. It is None
    where the chain begins: in an empty log, and behind batches of releases without checksums. A pack has
    the `before` of its first batch and the `after` of its last one."""

    before: int | None
    after: int | None

    @classmethod
    def of(cls, before: int | None, start: int, data: bytes) -> Checksums:
        return cls(before, crc32(data, _head_crc(before, start)))

    @classmethod
    def of_bodies(cls, before: int | None, start: int, bodies: Iterable[tuple[int, int]]) -> Checksums:
        """The same, of bytes that are elsewhere: the CRC-32 and the size of each part."""
        crc = _head_crc(before, start)
        for part, size in bodies:
            crc = crc32_joined(crc, part, size)
        return cls(before, crc)

    def fit(self, start: int, data: bytes) -> bool:
        return self.after is None or self.after == crc32(data, _head_crc(self.before, start))

    def follow(self, earlier: Checksums) -> bool:
        """Whether this batch was written behind that one, as far as both say."""
        return self.before is None or earlier.after in {None, self.before}


def _head_crc(before: int | None, start: int) -> int:
    return crc32((before or 0).to_bytes(4, "big") + start.to_bytes(8, "big"))


def crc32_joined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two pieces, one after the other, by that of each and the size of the second one. The
    first is moved on by `size` zero bytes, of which each power of two is a linear map of its bits (as zlib's
    `crc32_combine` does it)."""
    bit = 0
    while size:
        if size & 1:
            first = _mapped(_zeros(bit), first)
        size, bit = size >> 1, bit + 1
    return first ^ second


def _mapped(columns: tuple[int, ...], value: int) -> int:
    result = 0
    for index, column in enumerate(columns):
        if value >> index & 1:
            result ^= column
    return result


@cache
def _zeros(bit: int) -> tuple[int, ...]:
    """What 2 ** `bit` zero bytes make of each bit of a CRC-32, which is complemented before and after."""
    if not bit:
        return tuple(crc32(b"\0", 1 << index) ^ crc32(b"\0", 0) for index in range(32))
    half = _zeros(bit - 1)
    return tuple(_mapped(half, column) for column in half)


UNKNOWN_CHECKSUMS: Final = Checksums(None, None)


@dataclass(slots=True, unsafe_hash=True)
class _Written:
    """What is stored at the key `start`. `after` is the tail behind it, as far as it is known.
    `append_id` is the write's own mark: a writer that finds it in the table knows that its write landed.

    Never changed once it is made, and yet not frozen: a frozen one takes five times as long to make, and a
    read makes thousands (`benchmarks/reading.py`).
    """

    start: int
    after: Tail
    append_id: str
    time_ms: int

    @property
    def end(self) -> int:
        return self.after.offset

    @property
    def size(self) -> int:
        return self.after.offset - self.start


@dataclass(slots=True, unsafe_hash=True)
class Batch(_Written):
    """The data that one write added to the log, from `start` up to `after.offset`.

    The bytes are in `data`, or, where that is None, in the blob named `blob`. A fork may inherit a part
    of a batch; `blob_bytes` is then how long the whole blob is.
    `appends` counts the messages of each append, where the batch holds several appends.
    `mailed` names the appends in it, in order, where they were combined (`log/combining.py`).
    One that was read from a pack has `times`: when each of the batches in it was written, the last of them
    at `time_ms`.
    """

    data: bytes | None = b""
    blob: str | None = None
    lengths: tuple[int, ...] = ()
    appends: tuple[int, ...] = ()
    mailed: tuple[Mailed, ...] = ()
    blob_bytes: int | None = None
    times: BatchTimes | None = field(default=None, compare=False)
    checksums: Checksums = field(default=UNKNOWN_CHECKSUMS, compare=False)


@dataclass(slots=True, unsafe_hash=True)
class Pack(_Written):
    """One entry in place of many batches: its bytes are in the blocks of the object `blob` (None where it was
    not read), of which `index` says where they lie (`log/packs.py`). It is never the last of a log, so it
    knows no state of writers. `append_id` is that of its first batch, `time_ms` that of its last one."""

    blob: str | None
    index: PackIndex
    checksums: Checksums = field(default=UNKNOWN_CHECKSUMS, compare=False)


@dataclass(slots=True, unsafe_hash=True)
class UnreadBlock:
    """A block of a pack, whose bytes are not read yet: with them it is a `Batch`."""

    pack: Pack
    entry: BlockEntry

    @property
    def start(self) -> int:
        return self.entry.start

    @property
    def end(self) -> int:
        return self.entry.end

    @property
    def checksums(self) -> Checksums:
        whole = self.pack.checksums
        before = whole.before if self.start == self.pack.start else None
        return Checksums(before, whole.after if self.end == self.pack.end else None)


@dataclass(slots=True, unsafe_hash=True)
class Tombstone(_Written):
    """Ends the log of a deleted stream: it holds the place of the next write. In a closed stream that place
    may be taken by the mark of closing, and no write will come; there the tombstone stands behind it."""

    behind_closing: bool = False


Entry = Batch | Pack | Tombstone
