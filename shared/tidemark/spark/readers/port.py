"""The port of a transport: the calls of the data source, with their records and errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidemark.protocol.errors import PicklableError
from tidemark.protocol.offset import parse_token
from tidemark.spark.options.read import DEFAULT_COLUMNS

# Every query, and every batch of a streaming query, starts processes that import this module.
if TYPE_CHECKING:
    from tidemark.log.chain import Span

#: Short names of frequent content types in a checkpoint. No content type is without a slash.
_SHORT_TYPES: Final = {"application/json": "json", "application/octet-stream": "bytes", "text/plain": "text"}
_LONG_TYPES: Final = {short: long for long, short in _SHORT_TYPES.items()}

#: The first offset of any stream on any server (§8).
BEGINNING: Final = "-1"
#: Concurrent requests of a reader.
ASKED_AT_ONCE: Final = 16


class MissingStream(PicklableError):
    """The stream does not exist: never created, deleted or expired."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tidemark: stream {name} does not exist")
        self.name = name


class BadOffset(ValueError):
    """The offset is not in the stream, or is not the end of a message."""


class NoTimes(ValueError):
    """The server has no times of appends (see includeTimestamps)."""


class DataLoss(PicklableError):
    """The stream no longer has data that the read should return (see failOnDataLoss)."""

    def __init__(self, name: str, what: str) -> None:
        way_on = "set failOnDataLoss to false to go on without what is lost"
        super().__init__(f"tidemark: stream {name}: {what}; {way_on}")


@dataclass(frozen=True)
class Position:
    """An offset in one incarnation of a stream. The incarnation shows a later reader whether the stream was
    deleted and created again; empty if the transport does not know it."""

    offset: str
    incarnation: str = ""
    content_type: str = ""
    #: When a query first found that the stream has ended, in seconds since 1970; 0 before that.
    ended_since: int = 0
    #: Whether the stream was closed at this offset, so that no message follows.
    closed: bool = False

    def encode(self) -> list[str | int]:
        """Encode without trailing empty members. Short, because a checkpoint has a position for each stream
        in each batch."""
        kind = _SHORT_TYPES.get(self.content_type, self.content_type)
        value: list[str | int] = [self.offset, self.incarnation, kind, self.ended_since, int(self.closed)]
        while not value[-1]:
            value.pop()
        return value

    @classmethod
    def decode(cls, value: Sequence[str | int]) -> Position:
        offset, incarnation, kind, since, closed = (*value, *("", "", "", 0, 0)[len(value) :])
        kind = _LONG_TYPES.get(str(kind), str(kind))
        return cls(str(offset), str(incarnation), kind, int(since), bool(closed))

    def at(self, offset: str) -> Position:
        """Return another offset of the same incarnation, not marked as closed or ended."""
        return self if offset == self.offset else Position(offset, self.incarnation, self.content_type)

    def is_at(self, tail: Position) -> bool:
        """Whether no message lies between this position and the stream's tail."""
        return self.offset == tail.offset and not self.is_of_another(tail)

    def is_of_another(self, later: Position) -> bool:
        """Whether the two positions are known to have different incarnations. Without incarnations, a closed
        stream with another tail was created again."""
        if self.incarnation and later.incarnation:
            return self.incarnation != later.incarnation
        return self.closed and self.offset != later.offset


def is_past(offset: str, other: str) -> bool:
    """Whether `offset` comes after `other`. Offsets sort as text (§8), except `-1`, the beginning."""
    if BEGINNING in (offset, other):
        return offset != BEGINNING and other == BEGINNING
    return offset > other


def place_of(offset: str) -> int | None:
    """Return the bytes before the offset; None if the server's offsets are opaque."""
    return 0 if offset == BEGINNING else parse_token(offset)


def bytes_between(start: str, end: str) -> int | None:
    low, high = place_of(start), place_of(end)
    return None if low is None or high is None else high - low


@dataclass(frozen=True)
class Head:
    """A stream's first retained position and its tail when the head was loaded."""

    name: str
    earliest: Position
    tail: Position
    #: In ms since 1970; 0 if unknown.
    created_ms: int = 0


@dataclass(frozen=True)
class StreamPartition:
    """The messages of a stream that begin in [start, end).

    Over DynamoDB the messages lie in one `span` of the stream's chain. Over HTTP `span` is None, and
    `incarnation` is empty if the server does not send it.
    """

    name: str
    content_type: str
    start: str
    end: str
    span: Span | None = None
    incarnation: str = ""
    fail_on_data_loss: bool = True
    #: Over HTTP: whether to load `timestamp`, which takes extra requests.
    with_times: bool = False
    #: Approximate size in bytes; 0 if unknown.
    size: int = 0
    #: Whether this is known to be one small batch. Small batches are read together.
    is_small_batch: bool = field(default=False, compare=False)


class Reader(Protocol):
    """A connected transport. `beginning` is the offset of every stream's first byte. `lost` has the bytes
    that reads without failOnDataLoss have passed over, by stream and incarnation; 0 if offsets are opaque."""

    beginning: str
    lost: Counter[tuple[str, str]]

    def now_ms(self) -> int:
        """Return the time by the clock of the server or of storage, or a little earlier, in ms since 1970; 0
        before the first answer."""

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """List the streams whose whole name matches, sorted; empty if the bucket does not exist. The next
        call of `head` or `heads` reuses the listing."""

    def has_bucket(self) -> bool: ...

    def heads(self, names: Sequence[str]) -> dict[str, Head]:
        """Return the heads of the streams that exist, by name. Uses batch requests if the transport has
        them."""

    def earliest(self, names: Sequence[str]) -> dict[str, Position]:
        """Return the current first position of each stream that exists."""

    def check_offset(self, head: Head, offset: str) -> None:
        """Raise BadOffset if a read cannot begin or end at the offset."""

    def position_at(self, head: Head, at_ms: int) -> Position:
        """Return the start of the first message written at this time or later; the tail if there is none.
        Raises BadOffset if the transport cannot search by time."""

    def check_times(self, head: Head) -> None:
        """Raise NoTimes if the transport has no times of appends."""

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        """Return the end of the last message within `limit_bytes` of `start`, or of the first message if that
        is larger."""

    def backlog(self, start: Position, end: Position) -> int:
        """Return the bytes between the two positions. If offsets are opaque: 0, or more than any limit."""

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        """Split the messages between the two positions into partitions of about `partition_bytes`, without
        reading messages."""

    def read(self, partition: StreamPartition, columns: Sequence[str] = DEFAULT_COLUMNS) -> Iterator[Any]:
        """Yield the rows in Arrow batches of bounded size. Raises DataLoss."""

    def read_all(self, partitions: Sequence[StreamPartition], columns: Sequence[str]) -> Iterator[Any]:
        """Read several partitions. A batch may have rows of several streams, each stream in order."""
