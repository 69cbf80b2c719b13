"""The port: what the data source asks of a place where streams are, and what it is told."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.sql.datasource import InputPartition

from tidemark.log.chain import Span

#: Of any stream on any server (§8).
BEGINNING: Final = "-1"


class MissingStream(Exception):
    """There is no such stream: never created, deleted, or expired."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tidemark: stream {name} does not exist")
        self.name = name


class BadOffset(ValueError):
    """An offset that is not in the stream, or not the end of a message."""


class DataLoss(Exception):
    """Data that was asked for is not there any more (see failOnDataLoss)."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"tidemark: stream {name}: {what}; set failOnDataLoss to false to go on without what is lost"
        )


@dataclass(frozen=True)
class Position:
    """A place in one incarnation of a stream: all that a later reader needs, whatever became
    of the stream in between. `incarnation` is empty where the transport cannot tell."""

    offset: str
    incarnation: str = ""
    content_type: str = ""

    def encode(self) -> dict[str, str]:
        return {"offset": self.offset, "incarnation": self.incarnation, "type": self.content_type}

    @classmethod
    def decode(cls, value: Mapping[str, str]) -> Position:
        return cls(value["offset"], value.get("incarnation", ""), value.get("type", ""))

    def is_of_another(self, other: Position) -> bool:
        """Whether the two are known to be of different incarnations."""
        return bool(self.incarnation and other.incarnation) and self.incarnation != other.incarnation


def is_past(offset: str, other: str) -> bool:
    """Offsets sort as text does (§8), but for the one that is a word: `-1`, the beginning."""
    if BEGINNING in (offset, other):
        return offset != BEGINNING and other == BEGINNING
    return offset > other


@dataclass(frozen=True)
class Head:
    """A stream as it stood when it was looked at."""

    name: str
    earliest: Position
    tail: Position


@dataclass(frozen=True)
class StreamPartition(InputPartition):
    """What one task reads: the messages of a stream that begin in [start, end).

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


class Reader(Protocol):
    """One of the two transports, connected. `beginning` is the offset of every stream's first byte."""

    beginning: str

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """Streams whose whole name matches, sorted."""

    def head(self, name: str) -> Head:
        """Raises MissingStream."""

    def check_offset(self, head: Head, offset: str) -> None:
        """Raises BadOffset where no reader may begin or end there."""

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        """The end of the last message within `limit_bytes` of `start`, and of one at least."""

    def backlog(self, start: Position, end: Position) -> int:
        """How many bytes lie between."""

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        """What lies between, in partitions of about that size. Makes no call: what is to be read
        was pinned when the end was."""

    def read(self, partition: StreamPartition) -> Iterator[Any]:
        """Arrow batches of bounded size. Raises DataLoss."""
