"""What the table holds, as records: free of DynamoDB's own types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidemark.protocol.content_type import ContentType
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that exists. A re-created one has another incarnation, and so another log.

    `touched_ms` is the last recorded read; writes are recorded by their batches.
    """

    key: StreamKey
    incarnation: str
    content_type: ContentType
    expiry: Expiry
    created_ms: int
    touched_ms: int


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


@dataclass(frozen=True, slots=True)
class Due:
    """An entry in the janitor's queue: do `kind` to this incarnation, not before `due_ms`."""

    kind: DueKind
    key: StreamKey
    incarnation: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class Waiter:
    """A process with readers at the tail of a stream: rung through its queue until `until_ms`."""

    incarnation: str
    queue_url: str
    until_ms: int
