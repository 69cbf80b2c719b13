"""What clients asked, what they were answered, and when: the operations of a history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Claim: TypeAlias = tuple[str, int, int]
"""Producer id, epoch, sequence."""


@dataclass(frozen=True, slots=True)
class Create:
    """PUT of a stream. With `source`, a fork of it at `offset`. With `keep_bytes`, the janitor lets go of
    what is more than that."""

    name: str
    body: bytes = b""
    closed: bool = False
    content_type: str | None = "application/octet-stream"
    ttl_seconds: int | None = None
    source: str | None = None
    offset: int = 0
    keep_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """POST: an append, a close (`body` empty), or both. `creates`: the stream to create if it is missing."""

    name: str
    body: bytes = b""
    close: bool = False
    seq: str | None = None
    claim: Claim | None = None
    content_type: str = "application/octet-stream"
    creates: Create | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


@dataclass(frozen=True, slots=True)
class Read:
    """GET from an offset to the tail; None is `offset=now`."""

    name: str
    offset: int | None = 0


@dataclass(frozen=True, slots=True)
class Head:
    name: str


@dataclass(frozen=True, slots=True)
class Publish:
    """A snapshot at an offset. `upload`: its blob was put into S3 beforehand."""

    name: str
    offset: int
    body: bytes
    upload: str | None = None


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Let go of what lies below an offset."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class CreateBucket:
    bucket: str


@dataclass(frozen=True, slots=True)
class DeleteBucket:
    bucket: str


@dataclass(frozen=True, slots=True)
class CountStreams:
    """GET of a bucket: how many streams it has."""

    bucket: str


Request: TypeAlias = (
    Create
    | Append
    | Delete
    | Read
    | Head
    | Publish
    | ReadSnapshot
    | Trim
    | CreateBucket
    | DeleteBucket
    | CountStreams
)


@dataclass(frozen=True, slots=True)
class Answer:
    """`outcome` is a word for a success and the error's name for a refusal. `offset` is the tail, or the
    number that a refusal names: the retained offset, the expected sequence, the current epoch."""

    outcome: str
    offset: int | None = None
    closed: bool = False
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """`called` and `returned` are places in one order of all events. Without an answer the outcome is
    unknown: the operation may have taken effect at any time after its call, once, or may yet do so, or
    never will.

    `clock_ms` holds every time that the clock showed while the operation was under way.
    """

    client: int
    request: Request
    called: int
    returned: int | None = None
    answer: Answer | None = None
    clock_ms: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        until = "…" if self.returned is None else self.returned
        answer = "outcome unknown" if self.answer is None else self.answer
        return f"[{self.called:>4} {until:>4}] client {self.client}: {self.request} -> {answer}"


History: TypeAlias = Sequence[Operation]


@dataclass(slots=True)
class Recorder:
    """Gives events their places; the caller serializes its calls."""

    operations: list[Operation] = field(default_factory=list)
    events: int = 0

    def event(self) -> int:
        self.events += 1
        return self.events


def bucket_of(name: str) -> str:
    """Of a stream's name as `bucket/stream`; the plain surface's streams are in `v1`."""
    return name.partition("/")[0]


def partition(history: Iterable[Operation]) -> list[list[Operation]]:
    """Operations that may have to do with one another: of one stream, of the streams that forks tie
    together, and of all streams of a bucket that can be deleted. Each part is linearizable on its own, or
    the whole is not."""
    operations = list(history)
    groups: dict[str, set[str]] = {}
    for operation in operations:
        tied = set().union(*(groups.get(name, {name}) for name in _names(operation.request)))
        groups |= dict.fromkeys(tied, tied)
    parts: dict[int, list[Operation]] = {}
    for operation in operations:
        parts.setdefault(id(groups[_names(operation.request)[0]]), []).append(operation)
    return list(parts.values())


def _names(request: Request) -> list[str]:
    if isinstance(request, CreateBucket | DeleteBucket | CountStreams):
        return [request.bucket]
    names = [request.name]
    if isinstance(request, Create) and request.source is not None:
        names.append(request.source)
    return names + [bucket for bucket in map(bucket_of, names) if bucket != "v1"]
