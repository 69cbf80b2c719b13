"""The table's items as records, free of DynamoDB's own types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidemark.protocol.create import ForkPoint
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import ContentType
from tidemark.protocol.retention import FOREVER, Retention
from tidemark.protocol.stream_key import StreamKey


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """`streams` counts those that have an item, and changed last at `counted_ms`; `creation_id` is the
    creation's own mark. `retention` is that of the streams which are created without one of their own; it
    does not change while the bucket exists."""

    bucket: str
    created_ms: int
    creation_id: str
    streams: int = 0
    counted_ms: int = 0
    retention: Retention = FOREVER


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
    `packed` is where the last pack of the stream's own log ends (`docs/internals/packs.md`).
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
    retention: Retention = FOREVER

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
    #: Remove the object of the pack that was at the offset in `mark`, until a larger one took it in.
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
    """A process with readers at the tail of a stream. Until `until_ms` it is woken through its queue."""

    incarnation: str
    queue_url: str
    until_ms: int
