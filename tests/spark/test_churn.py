"""Many small streams that come and go: neither the checkpoint nor the number of tasks grows with them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.spark.bucket import MESSAGE_BYTES, Bucket, Stream
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import ReadOptions, parse_read_options
from tidemark.spark.progress import Look, Progress, decode_offset, encode_offset, everything_until, not_before
from tidemark.spark.queries import Driver, pack, plan_partitions
from tidemark.spark.readers.port import DataLoss, Head, Position

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def options_of(**given: str) -> ReadOptions:
    return parse_read_options({"bucket": "agents"} | given, streaming=True, environment={})


@pytest.mark.parametrize("way", ["deleted", "closed", "closed, over HTTP"])
def test_many_sessions_pass_through_a_checkpoint_of_bounded_size(way: str) -> None:
    """A thousand at a time are created, written and ended; an hour after that they are forgotten. Those that
    are closed stay in the bucket, and are found by each look."""
    options = options_of(subscribePattern=".*", failOnDataLoss="false")
    bucket, start = Bucket(over_http="HTTP" in way), Progress({})
    sizes, read = [], 0
    for batch in range(10):
        now_ms = NOW_MS + 1_200_000 * batch
        if way == "deleted":
            bucket.streams.clear()
        for index in range(1_000):
            name, is_closed = f"session-{batch:03}-{index:04}", way != "deleted"
            bucket.streams[name] = Stream(f"i-{name}", now_ms, 1, is_closed)
        looked = Look({name: bucket.head(name) for name in bucket.streams}, now_ms)
        ends = everything_until(options, start, looked)
        planned = plan_partitions(options, bucket, start.positions, ends.positions)
        read += sum(part.size for part in planned) // MESSAGE_BYTES
        assert len(pack(planned, options.bytes_per_partition)) <= 4
        written = json.dumps(encode_offset(ends), separators=(",", ":"))
        sizes.append(len(written))
        start = decode_offset(json.loads(written))
        assert start == ends
    assert read == 10_000
    # Of the last hour. That a stream is gone is seen by the batch after the one that has read it.
    assert len(start.positions) == (4_000 if way == "deleted" else 3_000)
    assert sizes[-1] == sizes[4]
    assert sizes[-1] / len(start.positions) < 90, "bytes for each stream, its name of 16 characters included"


def test_a_query_in_which_nothing_happens_has_no_batch_for_what_it_may_forget() -> None:
    options = options_of(subscribePattern=".*", failOnDataLoss="false")
    tail = Position("0000000000000100", "i", closed=True)
    looked = Look({"a": Head("a", tail.at("0"), tail, NOW_MS)}, NOW_MS)
    start = Progress({"a": tail, "gone": tail})
    for later in (0, HOUR_MS, 9 * HOUR_MS):
        assert everything_until(options, start, replace(looked, at_ms=NOW_MS + later)) is start


def look(at_ms: int, **streams: tuple[Position, int]) -> Look:
    """Of each stream its tail, and when it was created."""
    heads = {name: Head(name, tail.at("0" * 16), tail, made_ms) for name, (tail, made_ms) in streams.items()}
    return Look(heads, at_ms)


def at(place: int, incarnation: str = "", since_ms: int = 0, **more: Any) -> Position:
    return Position(f"{place:016}", incarnation, ended_since=since_ms // 1000, **more)


def test_a_stream_that_comes_back_within_the_hour_is_told_apart() -> None:
    options = options_of(subscribePattern=".*", failOnDataLoss="false")
    before = Progress({"a": at(100, "old"), "b": at(100, "old", NOW_MS - HOUR_MS)})
    news = (at(10, "n"), NOW_MS)
    gone = everything_until(options, before, look(NOW_MS, new=news))
    assert gone.positions == {"a": at(100, "old", NOW_MS), "new": news[0]}, "b was gone for an hour"
    back = everything_until(options, before, look(NOW_MS, a=(at(100, "new"), NOW_MS)))
    assert back.positions == {"a": at(100, "new")}
    [part] = plan_partitions(options, Bucket(), before.positions, back.positions)
    assert part.start == f"{0:016}"


def test_a_stream_that_ended_loses_nothing_when_it_is_deleted_or_created_again() -> None:
    """One that was closed, and read up to there. Of any other, the query stops."""
    options = options_of(subscribePattern=".*")
    closed, open_ = at(100, "i", closed=True), at(100, "i")
    bucket = Bucket()
    assert everything_until(options, Progress({"a": closed}), look(NOW_MS)).positions == {"a": closed}
    with pytest.raises(DataLoss, match="stream a: it does not exist any more"):
        everything_until(options, Progress({"a": open_}), look(NOW_MS))
    with pytest.raises(InvalidOptions, match="streams that are not subscribed any more: a; begin"):
        everything_until(options_of(subscribePattern="b"), Progress({"a": open_}), look(NOW_MS))
    again = {"a": at(300, "j")}
    [part] = plan_partitions(options, bucket, {"a": closed}, again)
    assert (part.start, part.end) == (bucket.beginning, again["a"].offset)
    with pytest.raises(DataLoss, match="deleted and created again"):
        plan_partitions(options, bucket, {"a": open_}, again)
    # A closed stream does not go on: without incarnations, that tells it from a new one.
    [part] = plan_partitions(options, bucket, {"a": at(100, closed=True)}, {"a": at(300)})
    assert part.start == bucket.beginning


def test_a_stream_that_was_read_and_then_closed_may_be_deleted() -> None:
    """The closing has no message, so a batch is made for it alone; and none after that."""
    options, tail = options_of(subscribePattern=".*"), Position("0000000000000100", "i")
    start = Progress({"a": tail})
    closed = Look({"a": Head("a", tail.at("0"), replace(tail, closed=True), NOW_MS)}, NOW_MS)
    told = everything_until(options, start, closed)
    assert told is not start
    assert everything_until(options, told, closed) is told
    assert everything_until(options, told, Look({}, NOW_MS)) is told


def test_what_was_forgotten_is_told_from_what_is_new() -> None:
    """By its creation, its closure, its bucket and the pattern that it was read under."""
    until, closed = NOW_MS - HOUR_MS, at(10, "i", closed=True)
    options = options_of(subscribePattern="a.*|b")
    start = Progress({}, {"agents/a.*": until})
    found = look(
        NOW_MS,
        a1=(closed, until),
        a2=(closed, until + 1),
        a3=(at(10, "i"), until - HOUR_MS),
        a4=(closed, 0),
        b=(closed, until),
    )
    ends = everything_until(options, start, found)
    assert sorted(ends.positions) == ["a2", "a3", "a4", "b"]
    assert ends.forgotten == {"agents/a.*": until, "agents/a.*|b": until}
    assert start.taken("agents", found.heads["a1"]) == closed
    assert start.taken("agents", found.heads["a2"]) is None
    elsewhere = options_of(subscribePattern="a.*|b", bucket="others")
    assert sorted(everything_until(elsewhere, start, found).positions) == ["a1", "a2", "a3", "a4", "b"]


def test_names_that_were_given_one_by_one_are_kept() -> None:
    options = options_of(subscribe="a,b", failOnDataLoss="false")
    closed = at(10, "i", NOW_MS - 9 * HOUR_MS, closed=True)
    found = look(NOW_MS, a=(closed, NOW_MS - 10 * HOUR_MS), b=(at(5, "k"), NOW_MS))
    ends = everything_until(options, Progress({"a": closed}), found)
    assert ends == Progress({"a": closed, "b": at(5, "k")})


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    foreign = {"a": Position("o7x", "", "text/x; a=b"), "b": Position("-1")}
    assert encode_offset(Progress(foreign)) == {"a": ["o7x", "", "text/x; a=b"], "b": ["-1"]}
    assert decode_offset(encode_offset(Progress(foreign))) == Progress(foreign)
    gone = {"a": ["0000000000000100", "i", "json", 1_800_000_000]}
    assert encode_offset(decode_offset(gone)) == gone
    # Closed streams of these are forgotten like all others, an hour after the next batch with anything in it.
    options = options_of(subscribePattern=".*", failOnDataLoss="false")
    progress, tail = Progress({"a": at(100, "i")}), at(100, "i", closed=True)
    for hour, name in enumerate(["b", "c"]):
        heads = {"a": (tail, NOW_MS - 9 * HOUR_MS), name: (at(1, name), NOW_MS)}
        looked = look(NOW_MS + hour * HOUR_MS, **heads)
        progress = everything_until(options, progress, looked)
        assert ("a" in progress.positions) is (hour < 1)
    assert options.forget_seconds == 3600


def test_a_stream_that_is_created_while_a_query_of_what_is_there_begins_is_not_taken_for_lost() -> None:
    options = options_of(subscribePattern=".*")
    driver, bucket = Driver(options), Bucket()
    driver.reader = bucket
    bucket.streams["a"] = Stream("i-a", NOW_MS, 1)
    target = driver.look(fresh=True)
    bucket.streams["b"] = Stream("i-b", NOW_MS, 1)
    start = driver.initial(target)
    assert everything_until(options, start, not_before(start, target)).positions.keys() == {"a"}
