"""No reader gets messages below a snapshot, and a fork begins with its source's snapshot."""

from __future__ import annotations

import pytest

from tests.buckets import accepted, batch_starts, key_in_new_bucket, publish, snapshot_objects
from tests.support import BYTES, HOUR_MS, JSON, World
from tidemark.janitor.sweep import sweep
from tidemark.protocol.errors import HistoryGone, RetentionGone, SnapshotNotFound
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.bootstrap import bootstrap
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import latest_snapshot


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("content_type", [BYTES, JSON], ids=["bytes", "JSON"])
def test_every_offset_below_the_snapshot_is_gone(world: World, warm: bool, content_type: object) -> None:
    """Also for a process that has all of it in memory, before and after a trim."""
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, content_type=content_type)
    for number in (b"11", b"22", b"33"):
        process.append(key, number, content_type=content_type)
    size = load_head(process.stores, key).tail.offset // 3
    assert process.read_all(key)
    publish(rival, key, 2 * size)
    for _ in range(2):
        reader = process if warm else world.process()
        for offset in range(2 * size):
            with pytest.raises(RetentionGone) as gone:
                read(reader.stores, key, offset)
            assert gone.value.headers == {"Stream-Next-Offset": f"{2 * size:016d}"}
        assert read(reader.stores, key, 2 * size).data.startswith(b"33")
        assert read(reader.stores, key, 3 * size).page.up_to_date
        with pytest.raises(HistoryGone):
            read(reader.stores, key, 3 * size + 1)
        world.clock.advance(2 * HOUR_MS)
        sweep(rival.stores)
    assert batch_starts(process, key) == [2 * size]


def test_a_re_created_stream_retains_all_its_messages(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    publish(process, key, 5)
    delete(process.stores, key)
    process.create(key, body=b"new")
    assert process.read_all(key) == b"new"
    with pytest.raises(SnapshotNotFound):
        latest_snapshot(process.stores, key)


def test_a_fork_begins_with_its_sources_snapshot(world: World) -> None:
    process = world.process()
    source = key_in_new_bucket(process)
    fork = StreamKey(source.bucket, "fork")
    process.create(source, body=b"1")
    for body in (b"2", b"3", b"4"):
        process.append(source, body)
    publish(process, source, 2, b"two")
    with pytest.raises(RetentionGone):
        process.fork(fork, source, 1)
    process.fork(fork, source, 3)
    process.append(fork, b"f")
    publish(process, source, 4, b"four")
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    made = bootstrap(world.process().stores, fork)
    assert [part.body for part in made.parts] == [b"two", b"3", b"f"]
    assert accepted(process, fork) == [2, 3, 4]
    with pytest.raises(RetentionGone):
        read(process.stores, fork, 1)
    publish(process, fork, 3, b"of the fork")
    assert [part.body for part in bootstrap(process.stores, fork).parts] == [b"of the fork", b"f"]
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert len(snapshot_objects(process, world, source)) == 2, "a fork removes nothing of its source's"
    delete(process.stores, fork)
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert len(snapshot_objects(process, world, source)) == 1, "what waited for the fork goes"
    assert batch_starts(process, source) == [3]
