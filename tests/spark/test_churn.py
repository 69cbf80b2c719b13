"""Many small streams that come and go: neither the checkpoint nor the number of tasks grows with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tidemark.spark.options.read import parse_read_options
from tidemark.spark.queries.plan import pack, plan_partitions
from tidemark.spark.queries.streaming import Driver, decode_offset, encode_offset
from tidemark.spark.readers.port import DataLoss, Head, MissingStream, Position, StreamPartition

MESSAGE_BYTES = 100


class Sessions:
    """A reader of streams that have one message each; `live` are those that there are now."""

    beginning = "0" * 16

    def __init__(self) -> None:
        self.live: set[str] = set()

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        return sorted(name for name in self.live if pattern.fullmatch(name))

    def has_bucket(self) -> bool:
        return True

    def head(self, name: str) -> Head:
        if name not in self.live:
            raise MissingStream(name)
        begin, end = (
            Position(f"{place:016}", f"i-{name}", "application/json") for place in (0, MESSAGE_BYTES)
        )
        return Head(name, begin, end)

    def check_offset(self, head: Head, offset: str) -> None:
        raise NotImplementedError

    def position_at(self, head: Head, at_ms: int) -> Position:
        raise NotImplementedError

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        raise NotImplementedError

    def limit_messages(self, name: str, start: Position, end: Position, limit: int) -> Position:
        raise NotImplementedError

    def backlog(self, start: Position, end: Position) -> int:
        return int(end.offset) - int(start.offset)

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        return [StreamPartition(name, "", start.offset, end.offset, size=int(end.offset) - int(start.offset))]

    def read(self, partition: StreamPartition, columns: Sequence[str] = ()) -> Iterator[Any]:
        raise NotImplementedError


def test_a_hundred_thousand_sessions_pass_through_a_checkpoint_of_bounded_size() -> None:
    """A thousand at a time are created, read and gone; an hour after that they are forgotten."""
    options = parse_read_options(
        {"subscribePattern": ".*", "failOnDataLoss": "false"}, streaming=True, environment={}
    )
    now = [1_800_000_000.0]
    driver = Driver(options, date=lambda: now[0])
    sessions = driver._connected = Sessions()
    start: dict[str, Position] = {}
    sizes, tasks, read = [], [], 0
    for batch in range(100):
        sessions.live = {f"session-{batch:03}-{index:04}" for index in range(1000)}
        now[0] += 600
        ends = driver.with_gone(start, driver.tails(fresh=True))
        planned = plan_partitions(options, sessions, start, ends)
        read += sum(part.size for part in planned) // MESSAGE_BYTES
        tasks.append(len(pack(planned, options.bytes_per_partition)))
        written = json.dumps(encode_offset(ends), separators=(",", ":"))
        sizes.append(len(written))
        start = decode_offset(json.loads(written))
        assert start == ends
    assert read == 100_000
    assert max(tasks) <= 4
    # Six batches of gone ones are remembered at most, and the one that is there.
    assert len(start) == 7_000
    assert sizes[-1] == sizes[10]
    assert sizes[-1] / len(start) < 90, "bytes for each stream, its name of 16 characters included"


def test_a_stream_that_comes_back_within_the_hour_is_told_apart() -> None:
    options = parse_read_options(
        {"subscribePattern": ".*", "failOnDataLoss": "false"}, streaming=True, environment={}
    )
    driver = Driver(options, date=lambda: 5000.0)
    driver._connected = Sessions()
    before = {"a": Position("0000000000000100", "old"), "b": Position("0000000000000100", "old", "", 1000)}
    assert driver.with_gone(before, {}) == {"a": Position("0000000000000100", "old", "", 5000)}
    back = Position("0000000000000100", "new")
    assert driver.with_gone(before, {"a": back})["a"] == back
    strict = parse_read_options({"subscribePattern": ".*"}, streaming=True, environment={})
    with pytest.raises(DataLoss, match="a, b: it does not exist any more"):
        Driver(strict).with_gone(before, {})


def test_a_checkpoint_of_version_0_1_is_read() -> None:
    written = {"a": {"offset": "0000000000000100", "incarnation": "i", "type": "text/plain"}}
    assert decode_offset(written) == {"a": Position("0000000000000100", "i", "text/plain")}
    assert encode_offset(decode_offset(written)) == {"a": ["0000000000000100", "i", "text"]}
    foreign = {"a": Position("o7x", "", "text/x; a=b"), "b": Position("-1")}
    assert encode_offset(foreign) == {"a": ["o7x", "", "text/x; a=b"], "b": ["-1"]}
    assert decode_offset(encode_offset(foreign)) == foreign


def test_a_batch_waits_for_its_least_size_or_for_the_longest_delay() -> None:
    given = {"subscribePattern": ".*", "minBytesPerTrigger": "250", "maxTriggerDelay": "15m"}
    now = [0.0]
    options = parse_read_options(given, streaming=True, environment={})
    driver = Driver(options, clock=lambda: now[0])
    sessions = driver._connected = Sessions()
    steps = [
        (0, set("a"), False, "the first batch does not wait"),
        (1, set("ab"), True, "too little is new"),
        (2, set("abcd"), False, "three messages are enough"),
        (3, set("abcd"), True, "nothing is new"),
        (800, set("abcde"), True, "too little is new"),
        (903, set("abcde"), False, "the last batch is fifteen minutes ago"),
        (904, set("abcdef"), True, "and now it is not"),
    ]
    starts: dict[str, Position] = {}
    for at, live, waits, why in steps:
        now[0], sessions.live = at, live
        ends = driver.tails(fresh=True)
        assert driver.waits(starts, ends) is waits, why
        starts = starts if waits else ends
