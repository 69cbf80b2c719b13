"""Batches in memory: bounded, complete, and only of the stream's present incarnation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support import World, a_key
from tidemark.log.records import Batch
from tidemark.log.tails import RecentBatches
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.pack import PackWriter, decode_index
from tidemark.protocol.tail import Tail
from tidemark.service.delete import delete
from tidemark.service.read import read


def a_batch(start: int, size: int) -> Batch:
    return Batch(start, Tail(start + size), "id", 0, bytes(size), lengths=(size,))


def test_a_chain_of_recent_batches_ends_at_the_first_gap() -> None:
    recent = RecentBatches(1_000_000)
    recent.keep("one", a_batch(0, 3), a_batch(3, 4), a_batch(8, 1))
    assert [batch.start for batch in recent.chain("one", 0, 100)] == [0, 3]
    assert recent.chain("one", 1, 100) == []
    assert recent.chain("two", 0, 100) == []


def test_a_chain_goes_one_batch_over_the_limit() -> None:
    """So its reader can tell a full page from the end of what is in memory."""
    recent = RecentBatches(1_000_000)
    recent.keep("one", *(a_batch(start, 10) for start in range(0, 100, 10)))
    assert recent.chain("one", 0, 25)[-1].end == 30
    assert recent.chain("one", 0, 30)[-1].end == 40


def a_pack(start: int, *ends: int) -> Batch:
    writer = PackWriter(start, block_bytes=1)
    for one, other in pairwise((start, *ends)):
        writer.add(bytes(other - one), (other - one,), (), 0)
    return Batch(start, Tail(ends[-1]), "id", 0, None, "blob", index=decode_index(writer.finish()[1]))


def test_a_pack_is_part_of_a_chain_only_for_a_reader_that_can_load_its_bytes() -> None:
    recent = RecentBatches(1_000_000)
    recent.keep("one", a_batch(0, 3), a_batch(9, 2))
    recent.keep_pack("one", a_pack(3, 5, 9))
    assert [batch.start for batch in recent.chain("one", 0, 100, with_pack=True)] == [0, 3, 9]
    assert [batch.start for batch in recent.chain("one", 5, 100, with_pack=True)] == [3, 9]
    assert [batch.start for batch in recent.chain("one", 0, 100)] == [0]
    assert recent.chain("two", 3, 100, with_pack=True) == []


def test_a_block_of_a_pack_is_not_confused_with_the_batch_at_its_offset() -> None:
    recent = RecentBatches(1_000_000)
    small, block = a_batch(0, 3), a_batch(0, 9)
    recent.keep("one", small)
    assert recent.keep("one", a_batch(0, 3)) == (small,)
    assert recent.keep("one", block) == (block,)


def test_the_number_of_remembered_packs_is_bounded() -> None:
    recent = RecentBatches(1_000_000)
    for number in range(100):
        recent.keep_pack(str(number), a_pack(0, 5))
    known = [recent.chain(str(number), 0, 1, with_pack=True) != [] for number in range(100)]
    assert known == [False] * 36 + [True] * 64


def test_memory_is_bounded_and_the_least_recently_used_batch_is_dropped_first() -> None:
    recent = RecentBatches(capacity_bytes=10_000)
    for start in range(0, 20_000, 1000):
        recent.keep("one", a_batch(start, 1000))
        assert recent.chain("one", 0, 1) or start > 6000
    assert recent._held_bytes <= 10_000
    assert recent.chain("one", 19_000, 1)


def test_a_batch_without_its_bytes_is_not_kept() -> None:
    recent = RecentBatches(1_000_000)
    recent.keep("one", Batch(0, Tail(5), "id", 0, None, blob="somewhere", lengths=(5,)))
    recent.keep("one", Batch(0, Tail(0, closed=True), "id", 0))
    assert recent.chain("one", 0, 100) == []


def test_a_deleted_stream_is_not_served_from_memory(world: World) -> None:
    process, rival, key = world.process(), world.process(), a_key()
    process.create(key)
    process.append(key, b"x")
    delete(rival.stores, key)
    with pytest.raises(StreamNotFound):
        read(process.stores, key, 0)
    rival.create(key, body=b"new")
    assert read(process.stores, key, 0).data == b"new"
