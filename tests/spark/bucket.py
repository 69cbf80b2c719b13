"""A bucket in memory, and the reader of it: streams of messages of ten bytes that come and go."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.spark.readers.port import BEGINNING, Head, Position, StreamPartition

MESSAGE_BYTES = 10


@dataclass
class Stream:
    incarnation: str
    created_ms: int
    messages: int = 0
    closed: bool = False

    @property
    def tail(self) -> str:
        return f"{self.messages * MESSAGE_BYTES:016}"


class Bucket:
    """As the table tells of it, or, `over_http`, as a server does that tells no incarnations."""

    def __init__(self, *, over_http: bool = False, clock_ms: Callable[[], int] = lambda: 0) -> None:
        self.lost = Counter[tuple[str, str]]()
        self.streams: dict[str, Stream] = {}
        self._over_http = over_http
        self.beginning = BEGINNING if over_http else f"{0:016}"
        self.asked = 0
        self.now_ms = clock_ms

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        return sorted(name for name in self.streams if pattern.fullmatch(name))

    def has_bucket(self) -> bool:
        return True

    def head(self, name: str) -> Head:
        self.asked += 1
        stream = self.streams[name]
        incarnation = "" if self._over_http else stream.incarnation
        tail = Position(stream.tail, incarnation, "application/json", closed=stream.closed)
        return Head(name, tail.at(self.beginning), tail, stream.created_ms)

    def heads(self, names: Sequence[str]) -> dict[str, Head]:
        return {name: self.head(name) for name in names if name in self.streams}

    def earliest(self, names: Sequence[str]) -> dict[str, Position]:
        return {name: head.earliest for name, head in self.heads(names).items()}

    def check_times(self, head: Head) -> None:
        pass

    def _never(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    check_offset = position_at = read = read_all = _never

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        taken = max(1, limit_bytes // MESSAGE_BYTES) * MESSAGE_BYTES
        return end if taken >= self.backlog(start, end) else end.at(f"{_place(start.offset) + taken:016}")

    def backlog(self, start: Position, end: Position) -> int:
        return _place(end.offset) - _place(start.offset)

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        size = self.backlog(start, end)
        part = StreamPartition(name, "", start.offset, end.offset, incarnation=end.incarnation, size=size)
        return [part] if size else []

    def messages(self, partition: StreamPartition) -> list[tuple[str, int]]:
        """By incarnation and number, those of the partition that are there."""
        stream = self.streams.get(partition.name)
        if stream is None or partition.incarnation not in ("", stream.incarnation):
            return []
        first, last = (_place(offset) // MESSAGE_BYTES for offset in (partition.start, partition.end))
        return [(stream.incarnation, number) for number in range(first, min(last, stream.messages))]


def _place(offset: str) -> int:
    return 0 if offset == BEGINNING else int(offset)
