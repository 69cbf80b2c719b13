"""The tails that a process remembers: how many, and which ones a full cache drops."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Sequence

import pytest

from tests.support import TEXT
from tidemark.log.records import Segment, Snapshot, StreamRecord
from tidemark.log.tails import CAPACITY_BYTES, MAX_AGE_MS, StreamHead, TailCache, held_bytes
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

NOW_MS = 1_767_225_600_000


def a_head(number: int, offset: int = 1, incarnation: str = "A", closed: bool = False) -> StreamHead:
    key = StreamKey("v1", f"streams/{number:06}")
    record = StreamRecord(key, incarnation, TEXT, NEVER, NOW_MS, NOW_MS)
    return StreamHead(record, Tail(offset, closed=closed), NOW_MS, NOW_MS)


def share_of_hits(cache: TailCache, streams: Sequence[StreamHead], rounds: int) -> float:
    """Writers append to the streams in turn; each writer remembers the tail that it had to read."""
    hits = 0
    for _ in range(rounds):
        for head in streams:
            found = cache.get(head.record.key, NOW_MS)
            hits += found is not None
            if found is None:
                cache.learn(head)
    return hits / (rounds * len(streams))


FITTING = 1000


@pytest.mark.parametrize(("streams", "least"), [(900, 0.89), (1100, 0.7), (1500, 0.35), (2000, 0.15)])
def test_a_working_set_larger_than_the_cache_still_hits_in_part(streams: int, least: float) -> None:
    """Least-recently-used would find 100 % of 900 in turn, and none of 1,100. With random eviction,
    exp(-streams/fitting * (1 - hits)) are found: 82 %, 42 % and 20 % here."""
    cache = TailCache(FITTING * held_bytes(a_head(0)), random.Random(1))
    assert share_of_hits(cache, [a_head(number) for number in range(streams)], rounds=10) > least


def test_the_default_cache_remembers_fifty_thousand_streams() -> None:
    """Ten thousand were too few for one server, and the memory for them is small."""
    assert CAPACITY_BYTES // held_bytes(a_head(0)) > 50_000


def test_a_full_cache_stays_within_its_bytes() -> None:
    """Whatever is remembered, forgotten, remembered again with more producers, or too old."""
    chance = random.Random(2)
    cache = TailCache(20 * held_bytes(a_head(0)), chance)
    for _ in range(5000):
        head = a_head(chance.randrange(60), offset=chance.randrange(5), incarnation=chance.choice("AB"))
        match chance.randrange(4):
            case 0:
                cache.forget(head.record.key)
            case 1:
                cache.get(head.record.key, NOW_MS + chance.choice([0, MAX_AGE_MS]))
            case _:
                cache.learn(head)
        assert cache._held_bytes == sum(map(held_bytes, cache._heads.values())) <= cache._capacity_bytes
        assert set(cache._keys) == set(cache._heads) == set(cache._places)
        assert len(cache._keys) == len(cache._heads)
        assert all(cache._keys[place] == key for key, place in cache._places.items())


def test_a_later_tail_of_the_same_log_is_kept() -> None:
    """Two appends may return in another order than they were written."""
    cache = TailCache()
    later = a_head(1, offset=9)
    cache.learn(later)
    cache.learn(a_head(1, offset=5))
    assert cache.get(later.record.key, NOW_MS) == later


def test_a_closed_tail_replaces_the_open_one_at_the_same_offset() -> None:
    """A close adds no bytes, so the offset alone does not say which is later."""
    cache = TailCache()
    closed = a_head(1, closed=True)
    cache.learn(closed)
    cache.learn(a_head(1))
    assert cache.get(closed.record.key, NOW_MS) == closed


def test_a_recreated_stream_replaces_the_tail_of_the_old_one() -> None:
    """Offsets of different incarnations cannot be compared."""
    cache = TailCache()
    cache.learn(a_head(1, offset=9))
    recreated = a_head(1, offset=0, incarnation="B")
    cache.learn(recreated)
    assert cache.get(recreated.record.key, NOW_MS) == recreated


@pytest.mark.parametrize("age_ms", [-1, MAX_AGE_MS])
def test_a_tail_of_the_future_or_of_five_minutes_ago_is_not_used(age_ms: int) -> None:
    """One half of the proof that no write lands at the key of an earlier batch rests on this age."""
    cache = TailCache()
    head = a_head(1)
    cache.learn(head)
    assert cache.get(head.record.key, NOW_MS + age_ms) is None


@pytest.mark.parametrize("kind", ["plain", "producers", "fork", "snapshot"])
def test_the_counted_bytes_of_a_head_are_about_those_that_python_uses(kind: str) -> None:
    """The capacity is given in bytes, so a head must not take several times its count."""
    cache = TailCache()
    heads = 500
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(heads):
            cache.learn(_measured(number, kind))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 < taken / cache._held_bytes < 1.5


def _measured(number: int, kind: str) -> StreamHead:
    """All numbers and texts of its own, as if it was read from the table."""
    at = NOW_MS + 10 * number
    key = StreamKey(f"bucket-{number}", f"streams/{number:06}")
    ends = range(at, at + 4)
    lineage = [Segment(StreamKey(f"b-{end}", f"s-{end}"), f"incarnation-{end}", end) for end in ends]
    snapshot = Snapshot(at + 5, f"a blob's name that is rather long {at}", TEXT, at + 6, at + 7)
    record = StreamRecord(
        key,
        f"incarnation-{number}",
        TEXT,
        NEVER,
        at,
        at + 1,
        lineage=tuple(lineage) if kind == "fork" else (),
        snapshot=snapshot if kind == "snapshot" else None,
    )
    states = [ProducerState(f"producer-{at + i}", 1, at + i, at + i) for i in range(8)]
    tail = Tail(at + 2, producers=tuple(states) if kind == "producers" else ())
    return StreamHead(record, tail, at + 3, at + 4)
