"""The port of a reader: the calls of the data source to a transport, and their records and errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidemark.protocol.offset import parse_token
from tidemark.spark.options.read import DEFAULT_COLUMNS

# Every query and every batch of a streaming one starts processes that import this module.
if TYPE_CHECKING:
    from tidemark.log.chain import Span

#: How frequent content types are kept; none is without a slash.
_SHORT_TYPES: Final = {"application/json": "json", "application/octet-stream": "bytes", "text/plain": "text"}
_LONG_TYPES: Final = {short: long for long, short in _SHORT_TYPES.items()}

#: The first offset of any stream on any server (§8).
BEGINNING: Final = "-1"
#: How many streams a reader asks for at the same time.
ASKED_AT_ONCE: Final = 16


class MissingStream(Exception):
    """The stream does not exist: it was never created, or was deleted, or has expired."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tidemark: stream {name} does not exist")
        self.name = name


class BadOffset(ValueError):
    """The offset is not in the stream, or is not the end of a message."""


class NoTimes(ValueError):
    """The server does not tell when messages were appended (see includeTimestamps)."""


class DataLoss(Exception):
    """The stream no longer has data that was asked for (see failOnDataLoss)."""

    def __init__(self, name: str, what: str) -> None:
        way_on = "set failOnDataLoss to false to go on without what is lost"
        super().__init__(f"tidemark: stream {name}: {what}; {way_on}")


@dataclass(frozen=True)
class Position:
    """An offset in one incarnation of a stream. A later reader can tell from it whether the stream was
    deleted and created again. `incarnation` is empty where the transport cannot tell."""

    offset: str
    incarnation: str = ""
    content_type: str = ""
    #: When a query first found that the stream has ended, in seconds since 1970; 0 while it may go on.
    ended_since: int = 0
    #: Whether the stream was closed at this offset, so that nothing follows it.
    closed: bool = False

    def encode(self) -> list[str | int]:
        """Short, because every batch of a query keeps one for each stream; the last members are left out
        where they say nothing."""
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
        """Another offset of the same incarnation, where it may go on."""
        return self if offset == self.offset else Position(offset, self.incarnation, self.content_type)

    def is_at(self, tail: Position) -> bool:
        """Whether nothing lies between this and the stream's tail."""
        return self.offset == tail.offset and not self.is_of_another(tail)

    def is_of_another(self, later: Position) -> bool:
        """Whether the two are known to be of different incarnations. A closed stream does not go on."""
        if self.incarnation and later.incarnation:
            return self.incarnation != later.incarnation
        return self.closed and self.offset != later.offset


def is_past(offset: str, other: str) -> bool:
    """Whether `offset` comes after `other`. Offsets sort as text (§8), except `-1`, the beginning."""
    if BEGINNING in (offset, other):
        return offset != BEGINNING and other == BEGINNING
    return offset > other


def place_of(offset: str) -> int | None:
    """How many bytes come before it; None if the server's offsets are opaque."""
    return 0 if offset == BEGINNING else parse_token(offset)


def bytes_between(start: str, end: str) -> int | None:
    low, high = place_of(start), place_of(end)
    return None if low is None or high is None else high - low


@dataclass(frozen=True)
class Head:
    """A stream's first and last position when its head was loaded, and whether it was closed there."""

    name: str
    earliest: Position
    tail: Position
    #: In ms since 1970; 0 if the transport does not tell.
    created_ms: int = 0
    #: Below it there may be places between messages. 0 over HTTP, where a row tells of its page.
    compacted: int = 0


@dataclass(frozen=True)
class StreamPartition:
    """The messages of a stream that begin in [start, end).

    Over DynamoDB they are all in one `span` of the stream's chain. Over HTTP there is no span, but
    the `incarnation`, where the server tells it.
    """

    name: str
    content_type: str
    start: str
    end: str
    span: Span | None = None
    incarnation: str = ""
    fail_on_data_loss: bool = True
    #: Over HTTP: whether `timestamp` is wanted, which takes requests of its own.
    with_times: bool = False
    #: About how much there is to read, in bytes; where the transport cannot tell, 0.
    size: int = 0
    #: Whether it is known to be one batch of few bytes: many of them are read together.
    is_small_batch: bool = field(default=False, compare=False)


class Reader(Protocol):
    """One of the two transports, connected. `beginning` is the offset of every stream's first byte."""

    beginning: str

    def now_ms(self) -> int:
        """The time by the clock of the server, or of storage, or a little earlier, in ms since 1970.
        It is known once something was asked; 0 if it is not."""

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """Streams whose whole name matches, sorted; none if there is no bucket. The next call of `head` or
        `heads` reuses the listing."""

    def has_bucket(self) -> bool: ...

    def heads(self, names: Sequence[str]) -> dict[str, Head]:
        """The heads of the streams that exist, by name. Asks for many with one call, if the transport can."""

    def earliest(self, names: Sequence[str]) -> dict[str, Position]:
        """The current first position of each stream that exists."""

    def check_offset(self, head: Head, offset: str) -> None:
        """Raises BadOffset if no reader may begin or end there."""

    def position_at(self, head: Head, at_ms: int) -> Position:
        """The start of the first message that was written then or later; the tail if there is none. Raises
        BadOffset if the transport cannot find it."""

    def check_times(self, head: Head) -> None:
        """Raises NoTimes if the transport cannot tell when messages were appended."""

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        """The end of the last message within `limit_bytes` of `start`; at least one message is taken."""

    def backlog(self, start: Position, end: Position) -> int:
        """The number of bytes between the two. If offsets are opaque: 0, or more than any limit."""

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        """The messages between the two positions, in partitions of about that size. Reads none of them."""

    def read(self, partition: StreamPartition, columns: Sequence[str] = DEFAULT_COLUMNS) -> Iterator[Any]:
        """Arrow batches of bounded size. Raises DataLoss."""

    def read_all(self, partitions: Sequence[StreamPartition], columns: Sequence[str]) -> Iterator[Any]:
        """The same of many; a batch may have rows of several streams, each of them in order."""
