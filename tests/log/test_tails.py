"""What a process remembers of logs: tails and recent batches, how many of each, and which ones go first."""

import gc
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.processes import alone
from tests.support import TEXT, World, filled
from tidemark.log.pack_format import PackWriter, decode_index
from tidemark.log.records import Batch, Pack, Segment, Snapshot, StreamRecord
from tidemark.log.tails import MAX_AGE_MS, RecentBatches, StreamHead, TailCache, held_bytes
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.delete import delete
from tidemark.service.read import read

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


@pytest.mark.parametrize(("streams", "least"), [(900, 0.89), (1100, 0.7), (1500, 0.35), (2000, 0.15)])
def test_a_working_set_larger_than_the_cache_still_hits_in_part(streams: int, least: float) -> None:
    """Least-recently-used would find 100 % of 900 in turn, and none of 1,100. With random eviction,
    exp(-streams/1000 * (1 - hits)) are found: 82 %, 42 % and 20 % here."""
    cache = TailCache(1000 * held_bytes(a_head(0)), random.Random(1))
    assert share_of_hits(cache, [a_head(number) for number in range(streams)], rounds=10) > least


def test_a_full_cache_stays_within_its_bytes() -> None:
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


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        # Two appends may return in another order than they were written.
        (a_head(1, offset=9), a_head(1, offset=5), "first"),
        # A close adds no bytes, so the offset alone does not say which is later.
        (a_head(1, closed=True), a_head(1), "first"),
        (a_head(1), a_head(1, closed=True), "second"),
        # Offsets of different incarnations cannot be compared.
        (a_head(1, offset=9), a_head(1, offset=0, incarnation="B"), "second"),
    ],
)
def test_the_latest_tail_is_kept(first: StreamHead, second: StreamHead, kept: str) -> None:
    cache = TailCache()
    cache.learn(first)
    cache.learn(second)
    assert cache.get(first.record.key, NOW_MS) == {"first": first, "second": second}[kept]


@pytest.mark.parametrize("age_ms", [-1, MAX_AGE_MS])
def test_a_tail_of_the_future_or_of_five_minutes_ago_is_not_used(age_ms: int) -> None:
    """One half of the proof that no write lands at the key of an earlier batch rests on this age."""
    cache = TailCache()
    head = a_head(1)
    cache.learn(head)
    assert cache.get(head.record.key, NOW_MS + age_ms) is None


def test_the_counted_bytes_of_a_head_are_about_those_that_python_uses() -> None:
    """The capacity is given in bytes, so a head must not take several times its count."""
    ratios = alone(_taken_per_counted_byte)
    assert len(ratios) == 4
    assert all(0.5 < ratio < 1.5 for ratio in ratios.values()), ratios


def _taken_per_counted_byte() -> dict[str, float]:
    ratios = {}
    for kind in ("plain", "producers", "fork", "snapshot"):
        cache = TailCache()
        tracemalloc.start()
        for number in range(500):
            cache.learn(_measured(number, kind))
        gc.collect()
        ratios[kind] = tracemalloc.get_traced_memory()[0] / cache._held_bytes
        tracemalloc.stop()
    return ratios


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


# --- recent batches ------------------------------------------------------------------------------


def a_batch(start: int, size: int) -> Batch:
    return Batch(start, Tail(start + size), "id", 0, bytes(size), lengths=(size,))


def test_a_chain_of_recent_batches_ends_at_the_first_gap_or_one_batch_over_the_limit() -> None:
    """So its reader can tell a full page from the end of what is in memory."""
    recent = RecentBatches(1_000_000)
    recent.keep("one", a_batch(0, 3), a_batch(3, 4), a_batch(8, 1))
    assert [batch.start for batch in recent.chain("one", 0, 100)] == [0, 3]
    assert [batch.start for batch in recent.chain("one", 0, 2)] == [0]
    assert [batch.start for batch in recent.chain("one", 0, 3)] == [0, 3]
    assert recent.chain("one", 1, 100) == []
    assert recent.chain("two", 0, 100) == []


def a_pack(start: int, *ends: int) -> Pack:
    writer = PackWriter(start, block_bytes=1)
    for one, other in pairwise((start, *ends)):
        writer.add(bytes(other - one), (other - one,), (), 0)
    return Pack(start, Tail(ends[-1]), "id", 0, "blob", decode_index(writer.finish()[1]))


A_BODY = Batch(11, Tail(16), "id", 0, None, blob="somewhere", lengths=(5,))


def test_a_pack_or_a_body_is_part_of_a_chain_only_for_a_reader_that_can_load_its_bytes() -> None:
    recent = RecentBatches(1_000_000)
    recent.keep("one", a_batch(0, 3), a_batch(9, 2))
    recent.keep_found("one", a_pack(3, 5, 9))
    recent.keep_found("one", A_BODY)
    not_whole = (replace(a_batch(16, 5), data=data) for data in (None, b"", b"123", b"12345678"))
    recent.keep("one", a_batch(16, 0), *not_whole)
    assert [batch.start for batch in recent.chain_with_pack("one", 0, 100)] == [0, 3, 9, 11]
    assert [batch.start for batch in recent.chain_with_pack("one", 5, 100)] == [3, 9, 11]
    assert [batch.start for batch in recent.chain("one", 9, 100)] == [9]
    assert [batch.start for batch in recent.chain("one", 0, 100)] == [0]
    assert recent.chain_with_pack("two", 3, 100) == []


def test_a_block_of_a_pack_is_not_confused_with_the_batch_at_its_offset() -> None:
    recent = RecentBatches(1_000_000)
    small, block = a_batch(0, 3), a_batch(0, 9)
    recent.keep("one", small)
    assert recent.keep("one", a_batch(0, 3)) == (small,)
    assert recent.keep("one", block) == (block,)


@pytest.mark.parametrize(("entry", "most"), [(a_pack(0, 5), 64), (A_BODY, 2048)], ids=["packs", "bodies"])
def test_what_is_remembered_without_its_bytes_is_bounded(entry: Batch | Pack, most: int) -> None:
    recent = RecentBatches(1_000_000)
    for number in range(most + 36):
        recent.keep_found(str(number), entry)
    known = [recent.chain_with_pack(str(number), entry.start, 20) != [] for number in range(most + 36)]
    assert known == [False] * 36 + [True] * most


def test_memory_is_bounded_and_the_least_recently_used_batch_is_dropped_first() -> None:
    recent = RecentBatches(capacity_bytes=10_000)
    for start in range(0, 20_000, 1000):
        recent.keep("one", a_batch(start, 1000))
        assert recent.chain("one", 0, 1) or start > 6000
    assert recent._held_bytes <= 10_000
    assert recent.chain("one", 19_000, 1)


def test_a_deleted_stream_is_not_served_from_memory(world: World) -> None:
    (process, key), rival = filled(world, b"x"), world.process()
    delete(rival.stores, key)
    with pytest.raises(StreamNotFound):
        read(process.stores, key, 0)
    rival.create(key, body=b"new")
    assert read(process.stores, key, 0).data == b"new"
