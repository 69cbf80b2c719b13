"""The table's items as records, free of DynamoDB's own types. First what lies in a log: batches, the packs
that take the place of many of them, and the tombstone behind the last one."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from operator import sub
from typing import Final

from tidemark.log.combining import Mailed
from tidemark.log.pack_format import BatchTimes, BlockEntry, PackIndex, fast_zlib, message_ends
from tidemark.protocol.compaction import NOT_YET, Compaction, Horizon
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import ContentType
from tidemark.protocol.retention import FOREVER, Retention
from tidemark.protocol.stream_key import StreamKey
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
        return cls(before, _crc(before, start, data))

    @classmethod
    def of_bodies(cls, before: int | None, start: int, bodies: Iterable[tuple[int, int]]) -> Checksums:
        """The same for bytes that are elsewhere, by the CRC-32 and the size of each part."""
        crc = _crc(before, start, b"")
        for part, size in bodies:
            crc = crc32_joined(crc, part, size)
        return cls(before, crc)

    def fit(self, start: int, data: bytes) -> bool:
        return self.after is None or self.after == _crc(self.before, start, data)

    def follow(self, earlier: Checksums) -> bool:
        """Whether this batch was written behind that one, as far as both say."""
        return self.before is None or earlier.after in {None, self.before}


def _crc(before: int | None, start: int, data: bytes) -> int:
    head = zlib.crc32((before or 0).to_bytes(4, "big") + start.to_bytes(8, "big"))
    # ISA-L takes a fifth of the time, 0.1 ms a megabyte, but a cold start has to import it.
    library = zlib if len(data) < 4096 else fast_zlib()
    return int(library.crc32(data, head))


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
    """Maps each bit of a CRC-32 to its value after 2 ** `bit` more zero bytes; it is complemented before and
    after."""
    if not bit:
        return tuple(zlib.crc32(b"\0", 1 << index) ^ zlib.crc32(b"\0", 0) for index in range(32))
    half = _zeros(bit - 1)
    return tuple(_mapped(half, column) for column in half)


UNKNOWN_CHECKSUMS: Final = Checksums(None, None)


@dataclass(slots=True, unsafe_hash=True)
class _Written:
    """An entry at the key `start` of a log. `after` is the tail behind it, as far as it is known.
    `append_id` is the write's own mark: a writer that finds it in the table knows that its write landed.

    Never changed once it is made, and yet not frozen: a frozen one takes five times as long to make, and a
    read makes thousands (`benchmarks/reading.py`).
    """

    start: int
    after: Tail
    append_id: str
    time_ms: int
    end: int = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.end = self.after.offset
        self.size = self.end - self.start


@dataclass(slots=True, unsafe_hash=True)
class Batch(_Written):
    """The data that one write added to the log, from `start` up to `after.offset`.

    The bytes are in `data`, or, where that is None, in the blob named `blob`. A fork may inherit a part
    of a batch; `blob_bytes` is then how long the whole blob is.
    `appends` counts the messages of each append, where the batch holds several appends.
    `mailed` names the appends in it, in order, where they were combined (`log/combining.py`).
    A batch that was read from a pack has `times`: when each of those in it was written, the last of them
    at `time_ms`. If that pack is compacted, `gaps` are the bytes that are gone before each message.
    """

    data: bytes | None = b""
    blob: str | None = None
    lengths: tuple[int, ...] = ()
    appends: tuple[int, ...] = ()
    mailed: tuple[Mailed, ...] = ()
    blob_bytes: int | None = None
    times: BatchTimes | None = field(default=None, compare=False)
    checksums: Checksums = field(default=UNKNOWN_CHECKSUMS, compare=False)
    gaps: array[int] | None = field(default=None, compare=False)

    @property
    def data_bytes(self) -> int:
        """The bytes of its data: of its size, those that compaction has left."""
        return self.size if self.gaps is None else sum(self.lengths)

    def each_message_end(self) -> Iterator[int]:
        return message_ends(self.start, self.lengths, self.gaps)

    def message_ends(self) -> list[int]:
        """The offset behind each message."""
        return list(self.each_message_end())

    def messages_before(self, offset: int) -> int | None:
        """How many messages end before the offset or at it; None if it lies inside of one."""
        ends = self.message_ends()
        count = bisect_right(ends, offset)
        is_inside = count < len(ends) and ends[count] - self.lengths[count] < offset
        return None if is_inside else count

    def message_starts(self) -> list[int]:
        """The offset of each message."""
        return list(map(sub, self.each_message_end(), self.lengths))


@dataclass(slots=True, unsafe_hash=True)
class Pack(_Written):
    """One entry in place of many batches: its bytes are in the blocks of the object `blob` (None where it was
    not read), of which `index` says where they lie (`log/packs.py`). It is never the last of a log, so it
    knows no state of writers. `append_id` is that of its first batch, `time_ms` that of its last one.
    None of its messages is superseded by another one below `compacted`; 0 means that no pass has seen it."""

    blob: str | None
    index: PackIndex
    checksums: Checksums = field(default=UNKNOWN_CHECKSUMS, compare=False)
    compacted: int = 0


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


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """`streams` counts those that have an item, and changed last at `counted_ms`; `creation_id` is the
    creation's own mark. `retention` is that of the streams which are created without one of their own; it
    does not change while the bucket exists. `compaction` is the same for streams of JSON."""

    bucket: str
    created_ms: int
    creation_id: str
    streams: int = 0
    counted_ms: int = 0
    retention: Retention = FOREVER
    compaction: Compaction | None = None


@dataclass(frozen=True, slots=True)
class EndMark:
    """Replaces the item of a bucket or a stream that has ended. A creation overwrites it only if it was made
    after `ended_ms`, so that a late retry of a creation brings nothing back.

    `ended_id` names what ended: a stream's incarnation, or the deletion of a bucket. `expired`: the stream
    was not deleted, it expired.
    """

    ended_ms: int
    ended_id: str
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The visible snapshot of a stream: the messages before `offset`, folded, in a blob."""

    offset: int
    blob: str
    content_type: ContentType
    size: int
    published_ms: int
    crc: int | None = None  # CRC-32 of the blob; None if it is not known, as of a large upload in S3
    etag: str | None = None  # S3's, of an upload
    bootstrap_crc: int | None = None  # of the bootstrap response, where the embedded engine has composed it


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of another stream's log that a fork inherits: up to `end`, from where the
    segment before it ends."""

    key: StreamKey
    incarnation: str
    end: int


@dataclass(frozen=True, slots=True)
class Fork:
    """The source that this stream was forked from, and the fork point as requested."""

    point: ForkPoint
    incarnation: str
    generation: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that exists. A re-created one has another incarnation, and so another log.

    `touched_ms` is the last recorded read; appends are recorded by their batches, and a published
    snapshot by its own time.
    `retained` is the earliest offset that may be read; `retention` says what moves it without being asked.
    `lineage` is flat: whatever a fork of a fork inherits, in order of offsets.
    `packed` is where the last pack of the stream's own log ends (`docs/internals/packs.md`), `packs_made`
    how many were made until now.
    Below `compacted`, messages may be missing that a later one below it has superseded; `horizon` says which
    of those that delete their key may go.
    `references` counts the forks made of this very stream; `deleted` says that only they
    keep it.
    """

    key: StreamKey
    incarnation: str
    content_type: ContentType
    expiry: Expiry
    created_ms: int
    touched_ms: int
    lineage: tuple[Segment, ...] = ()
    fork: Fork | None = None
    references: int = 0
    deleted: bool = False
    snapshot: Snapshot | None = None
    retained: int = 0
    packed: int = 0
    packs_made: int = 0
    retention: Retention = FOREVER
    compaction: Compaction | None = None
    compacted: int = 0
    horizon: Horizon = NOT_YET

    @property
    def used_ms(self) -> int:
        """When the stream was last used, as far as its item knows."""
        return max(self.touched_ms, self.snapshot.published_ms if self.snapshot else 0)

    @property
    def base(self) -> int:
        """The offset at which the stream's own log begins."""
        return self.lineage[-1].end if self.lineage else 0

    def owns(self, blob: str) -> bool:
        """Whether a snapshot's blob is the stream's own, and not one that a fork inherited."""
        return f"/{self.incarnation}/" in blob

    def shows(self, blob: str) -> bool:
        """Whether the blob is that of the visible snapshot."""
        return self.snapshot is not None and self.snapshot.blob == blob

    def inherited(self, end: int) -> tuple[Segment, ...]:
        """The lineage of a fork at `end`."""
        segments = [*self.lineage, Segment(self.key, self.incarnation, end)]
        cut, begin = [], 0
        for segment in segments:
            if begin < end and segment.end > begin:
                cut.append(replace(segment, end=min(segment.end, end)))
            begin = segment.end
        return tuple(cut)


class DueKind(Enum):
    """The janitor's task when an entry falls due."""

    EXPIRE = "expire"
    RECLAIM = "reclaim"
    #: Remove the batches below `offset`, and the blob of the snapshot before.
    TRIM = "trim"
    #: Trim a stream to its retention limits.
    RETAIN = "retain"
    #: Remove an upload that nobody has published.
    UPLOAD = "upload"
    #: Remove what was put into S3 for a stream that never came to be.
    ORPHAN = "orphan"
    #: Remove a deleted stream if its last fork is gone.
    RELEASE = "release"
    #: Pack what is old enough below `offset`.
    PACK = "pack"
    #: Remove the batches that the pack at the offset in `mark` has replaced; it ends at `offset`. `blob` is
    #: the object of the pack that was there before, if there was one.
    PACKED = "packed"
    #: Remove the object of the pack that was at the offset in `mark` before a larger one took it in.
    REPLACED = "replaced"
    #: The janitor has claimed an upload or an orphan, and removes it: it can no longer be used.
    REMOVE = "remove"
    #: The upload was published, or the stream created. The entry stays until it is due, so that the
    #: write that made it cannot make it again.
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Due:
    """An entry in the janitor's queue: do `kind` to this incarnation, not before `due_ms`.

    `mark` keeps apart the entries of kinds that a stream may have several of.
    """

    kind: DueKind
    key: StreamKey
    incarnation: str
    due_ms: int
    mark: str = ""
    offset: int = 0
    blob: str | None = None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A receiver that is told, until `until_ms`, when a stream grows: a process with readers at its tail, by
    the queue with the URL `address`; or the connection `address` of the WebSocket API, whose client calls the
    stream `name` and asked at `asked_ms`, by API Gateway's clock. With `content_type`, the stream's, it takes
    data. Earlier releases gave each name a waiter, which `mark` tells apart."""

    incarnation: str
    address: str
    until_ms: int
    name: str | None = None
    asked_ms: int = 0
    mark: str = ""
    content_type: ContentType | None = None

    @property
    def is_socket(self) -> bool:
        return self.name is not None
