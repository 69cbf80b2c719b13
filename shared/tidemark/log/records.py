"""The table's items as records, without DynamoDB's types. First the entries of a log: batches, the packs that
replace many batches, and the tombstone at the end."""

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
from tidemark.protocol.expiry import FOREVER, Expiry, Retention
from tidemark.protocol.messages import ContentType
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail


@dataclass(frozen=True, slots=True)
class Checksums:
    """`after` is the CRC-32 of `before`, the batch's start and its bytes as sent, so each batch proves its
    own bytes and identifies the batch before. `before` is the `after` of that batch, or None at the start of
    the chain: in an empty log, and after batches of releases without checksums. A pack has the `before` of
    its first batch and the `after` of its last."""

    before: int | None
    after: int | None

    @classmethod
    def of(cls, before: int | None, start: int, data: bytes) -> Checksums:
        return cls(before, _crc(before, start, data))

    @classmethod
    def of_bodies(cls, before: int | None, start: int, bodies: Iterable[tuple[int, int]]) -> Checksums:
        """Compute the same for bytes stored elsewhere, from the CRC-32 and size of each part."""
        crc = _crc(before, start, b"")
        for part, size in bodies:
            crc = crc32_joined(crc, part, size)
        return cls(before, crc)

    def fit(self, start: int, data: bytes) -> bool:
        return self.after is None or self.after == _crc(self.before, start, data)

    def follow(self, earlier: Checksums) -> bool:
        """Whether this batch was written right after `earlier`; an unknown checksum counts as a match."""
        return self.before is None or earlier.after in {None, self.before}


def _crc(before: int | None, start: int, data: bytes) -> int:
    head = zlib.crc32((before or 0).to_bytes(4, "big") + start.to_bytes(8, "big"))
    # ISA-L takes a fifth of the time, 0.1 ms a megabyte, but a cold start has to import the library.
    library = zlib if len(data) < 4096 else fast_zlib()
    return int(library.crc32(data, head))


def crc32_joined(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two joined pieces, given the CRC-32 of each and the size of the second. As in
    zlib's `crc32_combine`, the first is advanced by `size` zero bytes, with a linear map for each power of
    two."""
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
    """Return the linear map of a CRC-32 over 2 ** `bit` more zero bytes: one column for each of its bits."""
    if not bit:
        return tuple(zlib.crc32(b"\0", 1 << index) ^ zlib.crc32(b"\0", 0) for index in range(32))
    half = _zeros(bit - 1)
    return tuple(_mapped(half, column) for column in half)


UNKNOWN_CHECKSUMS: Final = Checksums(None, None)


@dataclass(slots=True, unsafe_hash=True)
class _Written:
    """An entry at the key `start` of a log. `after` is the tail after the entry, as far as known. `append_id`
    is the id of the write: a writer that finds its own id in the table knows that its write succeeded.

    Never changed, but not frozen: a frozen dataclass takes five times as long to create, and a read creates
    thousands (`benchmarks/reading.py`).
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

    The bytes are in `data`, or in the blob named `blob` if `data` is None. If a fork inherits only a part of
    the batch, `blob_bytes` is the size of the whole blob. `appends` counts the messages of each append, if
    there are several. `mailed` lists the combined appends, in order (`log/combining.py`). A batch read from a
    pack has `times`: the time of each original batch; `time_ms` is the time of the last. In a compacted pack,
    `gaps` are the bytes removed before each message.
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
        """The bytes of data left after compaction."""
        return self.size if self.gaps is None else sum(self.lengths)

    def each_message_end(self) -> Iterator[int]:
        return message_ends(self.start, self.lengths, self.gaps)

    def message_ends(self) -> list[int]:
        return list(self.each_message_end())

    def messages_before(self, offset: int) -> int | None:
        """Return the number of messages up to the offset; None if the offset is inside a message."""
        ends = self.message_ends()
        count = bisect_right(ends, offset)
        is_inside = count < len(ends) and ends[count] - self.lengths[count] < offset
        return None if is_inside else count

    def message_starts(self) -> list[int]:
        return list(map(sub, self.each_message_end(), self.lengths))


@dataclass(slots=True, unsafe_hash=True)
class Pack(_Written):
    """One entry in place of many batches. The bytes are in the blocks of the object `blob` (None if the name
    was not read), and `index` has the place of each block (`log/packs.py`). A pack is never the last entry of
    a log, so it has no state of writers. `append_id` is from its first batch, `time_ms` from its last. Below
    the offset `compacted`, no message supersedes one of the pack; 0 means that no pass has read it."""

    blob: str | None
    index: PackIndex
    checksums: Checksums = field(default=UNKNOWN_CHECKSUMS, compare=False)
    compacted: int = 0


@dataclass(slots=True, unsafe_hash=True)
class UnreadBlock:
    """A block of a pack without its bytes; with its bytes it is a `Batch`."""

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
    """Ends the log of a deleted stream: it takes the key of the next write. If the mark of closing has that
    key, no write follows, and the tombstone comes after the mark."""

    behind_closing: bool = False


Entry = Batch | Pack | Tombstone


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """A bucket. `streams` counts the streams that have an item, and last changed at `counted_ms`.
    `creation_id` is the id of the creation. Streams created without a retention of their own get `retention`,
    which never changes; `compaction` is the same for JSON streams."""

    bucket: str
    created_ms: int
    creation_id: str
    streams: int = 0
    counted_ms: int = 0
    retention: Retention = FOREVER
    compaction: Compaction | None = None


@dataclass(frozen=True, slots=True)
class EndMark:
    """Replaces the item of an ended bucket or stream. Only a creation dated after `ended_ms` overwrites the
    mark, so a late retry of an earlier creation does not bring the stream back.

    `ended_id` is the stream's incarnation, or the id of the bucket's deletion. `expired`: it expired and was
    not deleted.
    """

    ended_ms: int
    ended_id: str
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The visible snapshot of a stream: a blob with the folded state of the messages before `offset`."""

    offset: int
    blob: str
    content_type: ContentType
    size: int
    published_ms: int
    crc: int | None = None  # CRC-32 of the blob; None if unknown, as for a large upload to S3
    etag: str | None = None  # from S3, for an upload
    bootstrap_crc: int | None = None  # of the bootstrap response, if the embedded engine has composed one


@dataclass(frozen=True, slots=True)
class Segment:
    """An inherited range of another stream's log, from the end of the previous segment up to `end`."""

    key: StreamKey
    incarnation: str
    end: int


@dataclass(frozen=True, slots=True)
class Fork:
    """The source of this fork, and the fork point as requested."""

    point: ForkPoint
    incarnation: str
    generation: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that exists. A re-created stream has another incarnation, and therefore another log.

    `touched_ms` is the last recorded read; batches record the time of appends, and a snapshot has its own
    time. `retained` is the earliest readable offset; `retention` is the rule that raises it automatically.
    `lineage` lists all inherited segments in order of offsets, also for a fork of a fork. `packed` is the end
    of the last pack in the stream's own log (`docs/internals/packs.md`), and `packs_made` counts packs. Below
    `compacted`, superseded messages may be missing; `horizon` decides which messages that delete their key
    may be removed. `references` counts the forks of this stream; a `deleted` stream exists only for its
    forks.
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
        """The last use of the stream that its item records."""
        return max(self.touched_ms, self.snapshot.published_ms if self.snapshot else 0)

    @property
    def base(self) -> int:
        """The offset at which the stream's own log begins."""
        return self.lineage[-1].end if self.lineage else 0

    def shows(self, blob: str) -> bool:
        return self.snapshot is not None and self.snapshot.blob == blob

    def inherited(self, end: int) -> tuple[Segment, ...]:
        """Return the lineage of a fork at `end`."""
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
    #: Remove the batches below `offset`, and the blob of the previous snapshot.
    TRIM = "trim"
    #: Trim a stream to its retention limits.
    RETAIN = "retain"
    #: Remove an upload that was not published.
    UPLOAD = "upload"
    #: Remove a blob written for a stream that was never created.
    ORPHAN = "orphan"
    #: Remove a deleted stream if its last fork is gone.
    RELEASE = "release"
    #: Pack old batches below `offset`.
    PACK = "pack"
    #: Remove the batches that were replaced by the pack at the offset in `mark`; the pack ends at `offset`.
    #: `blob` is the object of the replaced pack, if any.
    PACKED = "packed"
    #: Remove the object of a pack at the offset in `mark` that was merged into a larger one.
    REPLACED = "replaced"
    #: Remove an upload or an orphan that the janitor has claimed: nothing can use the blob any more.
    REMOVE = "remove"
    #: The upload was published, or the stream created. The entry stays until due: a late copy of its first
    #: write is refused.
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Due:
    """An entry in the janitor's queue: do `kind` to this incarnation, not before `due_ms`.

    `mark` distinguishes entries of the same kind for one stream.
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
    """A receiver that is notified until `until_ms` when a stream grows. `address` is the queue URL of a
    process with readers at the tail, or the id of a WebSocket connection, whose client calls the stream
    `name` and subscribed at `asked_ms`, by API Gateway's clock. If `content_type` is set, to the stream's,
    the receiver accepts data. A process that `polls` the log is not notified."""

    incarnation: str
    address: str
    until_ms: int
    name: str | None = None
    asked_ms: int = 0
    content_type: ContentType | None = None
    polls: bool = False

    @property
    def is_socket(self) -> bool:
        return self.name is not None
