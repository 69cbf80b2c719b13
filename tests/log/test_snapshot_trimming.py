"""Trimming below a snapshot: not too early, never the tail's batch, and no append is lost."""

from __future__ import annotations

import pytest

from tests.buckets import batch_starts, key_in_new_bucket, objects, publish, record_of
from tests.support import HOUR_MS, MINUTE_MS, Process, World, a_key, append_request, before
from tidemark.blobs import snapshot_prefix
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import snapshots as publishing
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read


def stream_of_batches(process: Process, count: int) -> StreamKey:
    """So many batches of one byte each."""
    key = key_in_new_bucket(process)
    process.create(key)
    for _ in range(count):
        process.append(key, b"x")
    return key


def test_trimming_keeps_retained_batches_and_the_last_one(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    large = bytes(INLINE_BYTES + 1)
    process.append(key, large)
    append(process.stores, key, [append_request(b"ab"), append_request(b"cd")])
    process.append(key, b"ef", claim=("p", 1, 0), seq="s")
    inside, tail = len(large) + 2, len(large) + 6
    incarnation = record_of(process, key).incarnation
    publish(process, key, inside)
    world.clock.advance(59 * MINUTE_MS)
    assert sweep(process.stores).trimmed == 0
    assert batch_starts(process, key) == [0, len(large), len(large) + 4]
    world.clock.advance(2 * MINUTE_MS)
    assert sweep(process.stores).trimmed == 1
    assert batch_starts(process, key) == [len(large), len(large) + 4], "the batch around it stays"
    assert objects(process, world, f"log/{incarnation}/") == [], "and its blob went along"
    assert read(process.stores, key, inside).data == b"cdef"
    publish(process, key, tail)
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert batch_starts(process, key) == [len(large) + 4], "the tail's state lives in the last one"
    fresh = world.process()
    assert load_head(fresh.stores, key).tail.offset == tail
    assert fresh.append(key, b"ef", claim=("p", 1, 0)).next_offset == tail, "still a duplicate"
    with pytest.raises(ProtocolError):
        fresh.append(key, b"gh", seq="a")
    assert fresh.append(key, b"gh", seq="t").next_offset == tail + 2


def test_batches_that_a_fork_lives_on_stay_until_it_has_ended(world: World) -> None:
    process = world.process()
    key = stream_of_batches(process, 3)
    fork = a_key()
    process.fork(fork, key, 3)
    publish(process, key, 2)
    for _ in range(2):
        world.clock.advance(2 * HOUR_MS)
        assert sweep(process.stores).trimmed == 0
        assert world.process().read_all(fork) == b"xxx"
    delete(process.stores, fork)
    world.clock.advance(2 * HOUR_MS)
    assert sweep(process.stores).trimmed == 1
    assert batch_starts(process, key) == [2]


def test_a_trimmed_stream_that_is_closed_stays_closed(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, close=True)
    publish(process, key, 5)
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert batch_starts(process, key) == [5]
    reading = read(world.process().stores, key, 5)
    assert (reading.page.closed, reading.data) == (True, b"")
    made = bootstrap(process.stores, key)
    assert (made.closed, made.up_to_date, made.next_offset) == (True, True, 5)


def test_each_snapshot_trims_one_hour_after_it_was_published(world: World) -> None:
    """Batches below a later snapshot are kept for an hour after that one."""
    process = world.process()
    key = stream_of_batches(process, 4)
    publish(process, key, 1)
    world.clock.advance(59 * MINUTE_MS)
    publish(process, key, 3)
    world.clock.advance(2 * MINUTE_MS)
    sweep(process.stores)
    assert batch_starts(process, key) == [1, 2, 3]
    world.clock.advance(HOUR_MS)
    sweep(process.stores)
    assert batch_starts(process, key) == [3]


def test_trimming_stops_when_time_is_short_and_goes_on_later(world: World) -> None:
    process = world.process()
    key = stream_of_batches(process, 60)
    publish(process, key, 60)
    world.clock.advance(2 * HOUR_MS)
    answers = iter([True, True, False])
    sweep(process.stores, lambda: next(answers, False))
    assert len(batch_starts(process, key)) == 35
    assert sweep(process.stores).trimmed == 1
    assert batch_starts(process, key) == [59]


def test_the_snapshots_of_an_ended_stream_are_removed_with_it(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    publish(process, key, 5)
    publish(process, key, 5)
    prefix = snapshot_prefix(record_of(process, key).incarnation)
    delete(process.stores, key)
    assert len(objects(process, world, prefix)) == 2
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert objects(process, world, prefix) == []


def test_a_reader_that_began_before_two_snapshots_gets_the_blob_it_needs(world: World) -> None:
    """It has read the stream's item; two snapshots follow before it loads the blob."""
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"1")
    for _ in range(3):
        process.append(key, b"x")
    publish(process, key, 1, b"first")

    pending = [True]

    def overtake(operation: str) -> None:
        if operation != "GetObject" or not pending:
            return
        pending.clear()
        publish(rival, key, 3, b"second")
        publish(rival, key, 4, b"third")
        world.clock.advance(50 * MINUTE_MS)
        sweep(rival.stores)

    reader = world.process()
    before(reader.objects, overtake)
    made = bootstrap(reader.stores, key)
    assert [part.body for part in made.parts] == [b"first", b"x", b"x", b"x"]
    assert (made.snapshot.offset if made.snapshot else None, made.next_offset) == (1, 4)


def append_by_a_sleeper(world: World, minutes: float) -> tuple[bool, bool]:
    """A writer knows an old tail; others append, publish a snapshot, and the janitor trims. Returns whether
    its append was acknowledged, and whether it can be read."""
    sleeper, rival = world.process(), world.process()
    key = key_in_new_bucket(sleeper)
    sleeper.create(key)
    sleeper.append(key, b"x")
    for _ in range(3):
        rival.append(key, b"y")
    publish(rival, key, 4)
    world.clock.advance(int(minutes * MINUTE_MS))
    sweep(rival.stores)
    sleeper.append(key, b"late")
    return True, b"late" in read(world.process().stores, key, 4).data


@pytest.mark.parametrize("minutes", [0, 4.9, 5.1, 59, 61, 600])
def test_no_append_lands_at_the_key_of_a_trimmed_batch(world: World, minutes: float) -> None:
    assert append_by_a_sleeper(world, minutes) == (True, True)


def test_if_batches_were_trimmed_at_once_an_append_would_be_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule the scenario goes wrong, so it tests the rule."""
    monkeypatch.setattr(publishing, "RECLAIM_AFTER_MS", 0)
    assert append_by_a_sleeper(world, 4) == (True, False)
