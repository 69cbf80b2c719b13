"""What the table holds, as records: free of DynamoDB's own types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.protocol.content_type import ContentType
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail


@dataclass(frozen=True, slots=True)
class BucketRecord:
    """`streams` counts those that have an item; `creation_id` is the creation's own mark."""

    bucket: str
    created_ms: int
    creation_id: str
    streams: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The visible snapshot of a stream: what lies before `offset`, folded, in a blob."""

    offset: int
    blob: str
    content_type: ContentType
    size: int
    published_ms: int


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that exists. A re-created one has another incarnation, and so another log.

    `touched_ms` is the last recorded read; writes are recorded by their batches.
    `retained` is the earliest offset that may be read.
    """

    key: StreamKey
    incarnation: str
    content_type: ContentType
    expiry: Expiry
    created_ms: int
    touched_ms: int
    snapshot: Snapshot | None = None
    retained: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one write added to the log, from `start` up to `after.offset`.

    The bytes are in `data`, or, where that is None, in the blob named `blob`.
    `append_id` is the write's own mark: who finds it in the table knows that it landed.
    A tombstone ends the log of a deleted stream: it holds the place of the next write. In
    a closed stream that place may be taken by the mark of closing, and no write will come;
    there the tombstone stands behind it.
    """

    start: int
    after: Tail
    append_id: str
    time_ms: int
    data: bytes | None = b""
    blob: str | None = None
    lengths: tuple[int, ...] = ()
    tombstone: bool = False
    behind_closing: bool = False

    @property
    def end(self) -> int:
        return self.after.offset

    @property
    def size(self) -> int:
        return self.after.offset - self.start


class DueKind(Enum):
    """What the janitor does when an entry falls due."""

    EXPIRE = "expire"
    RECLAIM = "reclaim"
    #: Remove the batches below `offset`, and the blob of the snapshot before.
    TRIM = "trim"
    #: Remove an upload that nobody has published.
    UPLOAD = "upload"


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
    """A process with readers at the tail of a stream: rung through its queue until `until_ms`."""

    incarnation: str
    queue_url: str
    until_ms: int
