"""Publishing a snapshot: one write changes the pointer and the retained offset, the highest offset wins,
appends go on."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from tests.buckets import insert_before_commit, key_in_new_bucket, publish, record_of, snapshot_objects
from tests.support import HOUR_MS, Faults, Process, World, before
from tidemark.janitor.sweep import sweep
from tidemark.log import retention
from tidemark.log.records import StreamRecord
from tidemark.log.table import Write
from tidemark.protocol.errors import (
    ProtocolError,
    RetentionGone,
    SnapshotNeeded,
    SnapshotNotFound,
    StreamNotFound,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.service.bootstrap import bootstrap
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import delete_snapshot, latest_snapshot, read_snapshot


def test_a_snapshot_is_read_back(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    with pytest.raises(SnapshotNotFound):
        latest_snapshot(process.stores, key)
    content_type = parse_content_type('Text/X; charset="utf-8"')
    publish(process, key, 5, b"\0\xff", content_type=content_type)
    for reader in (process, world.process()):
        reading = read_snapshot(reader.stores, key, 5)
        assert (reading.data, reading.snapshot.content_type) == (b"\0\xff", content_type)
        assert latest_snapshot(reader.stores, key).offset == 5
        assert load_head(reader.stores, key).record.snapshot == reading.snapshot
        with pytest.raises(SnapshotNotFound):
            read_snapshot(reader.stores, key, 0)


def test_a_second_publish_at_the_same_offset_replaces_the_blob(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    publish(process, key, 5, b"one")
    publish(world.process(), key, 5, b"two")
    assert read_snapshot(process.stores, key, 5).data == b"two"


def test_the_latest_snapshot_cannot_be_deleted(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    publish(process, key, 5)
    publish(process, key, 6)
    with pytest.raises(SnapshotNeeded):
        delete_snapshot(process.stores, key, 6)
    for offset in (0, 5, 7):
        with pytest.raises(SnapshotNotFound):
            delete_snapshot(process.stores, key, offset)
    assert read_snapshot(process.stores, key, 6).data == b"snapshot"


def test_of_two_concurrent_publishes_the_higher_offset_wins(world: World) -> None:
    """The lower one has written its blob and not its pointer when the higher one lands."""
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    insert_before_commit(process, partial(publish, rival, key, 6, b"higher"))
    with pytest.raises(RetentionGone) as refused:
        publish(process, key, 5, b"lower")
    assert refused.value.headers == {"Stream-Next-Offset": "0000000000000006"}
    assert read_snapshot(process.stores, key, 6).data == b"higher"
    insert_before_commit(process, partial(publish, rival, key, 6, b"again"))
    publish(process, key, 6, b"later")
    assert read_snapshot(rival.stores, key, 6).data == b"later"
    assert len(snapshot_objects(process, world, key)) == 4, "none is removed while a reader may be on it"
    world.clock.advance(2 * HOUR_MS)
    sweep(process.stores)
    assert len(snapshot_objects(process, world, key)) == 1, "one for the pointer, and none left over"
    assert read_snapshot(rival.stores, key, 6).data == b"later"


def test_many_concurrent_publishes_leave_the_highest_offset(world: World) -> None:
    processes = [world.process() for _ in range(4)]
    key = key_in_new_bucket(processes[0])
    processes[0].create(key)
    for _ in range(4):
        processes[0].append(key, b"x")
    refused: list[ProtocolError] = []

    def run(process: Process, offset: int) -> None:
        try:
            publish(process, key, offset, str(offset).encode())
        except RetentionGone as gone:
            refused.append(gone)

    threads = [threading.Thread(target=run, args=(process, n)) for n, process in enumerate(processes, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_snapshot(world.process().stores, key, 4).data == b"4"
    assert record_of(processes[0], key).retained == 4


def test_a_crash_between_blob_and_pointer_leaves_the_old_snapshot_intact(world: World) -> None:
    process, crashing = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    publish(process, key, 5, b"old")

    def crash() -> None:
        raise KeyboardInterrupt

    insert_before_commit(crashing, crash)
    with pytest.raises(KeyboardInterrupt):
        publish(crashing, key, 6, b"new")
    assert len(snapshot_objects(process, world, key)) == 2
    assert read_snapshot(process.stores, key, 5).data == b"old"
    assert bootstrap(process.stores, key).parts[1].body == b"6"
    assert read(process.stores, key, 5).data == b"6"


def test_a_publish_whose_reply_was_lost_is_published(world: World) -> None:
    injected = 0
    for seed in range(6):
        process = world.process()
        key = key_in_new_bucket(process)
        process.create(key, body=b"12345")
        faults = Faults(process.dynamodb, seed=seed, lost=0.3)
        publish(process, key, 5, b"one")
        publish(process, key, 5, b"two")
        injected += faults.injected["lost"]
        assert read_snapshot(world.process().stores, key, 5).data == b"two"
    assert injected > 3


def test_a_publish_does_not_change_a_stream_that_was_re_created_meanwhile(world: World) -> None:
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")

    def re_create() -> None:
        delete(rival.stores, key)
        rival.create(key, body=b"other")

    insert_before_commit(process, re_create)
    with pytest.raises(StreamNotFound):
        publish(process, key, 5)
    record = record_of(rival, key)
    assert (record.snapshot, record.retained) == (None, 0)
    assert rival.read_all(key) == b"other"


def test_publishing_renews_a_sliding_expiry(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"x", expiry=Expiry(ttl_seconds=10))
    for use in (
        partial(publish, process, key, 1),
        partial(read_snapshot, process.stores, key, 1),
        partial(bootstrap, process.stores, key),
        partial(publish, process, key, 1),
    ):
        world.clock.advance(9_000)
        use()
    world.clock.advance(9_000)
    assert load_head(process.stores, key).tail.offset == 1


def test_without_the_pointers_condition_a_lower_snapshot_would_win(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `test_of_two_concurrent_publishes_the_higher_offset_wins`, without the rule."""
    move = retention._move_pointer

    def unconditional(record: StreamRecord, snapshot: object) -> Write:
        return Write(update=move(record, snapshot).update)  # type: ignore[arg-type]

    monkeypatch.setattr(retention, "_move_pointer", unconditional)
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    insert_before_commit(process, partial(publish, rival, key, 6, b"higher"))
    publish(process, key, 5, b"lower")
    assert record_of(process, key).retained == 5


def test_a_publish_of_ten_megabytes_delays_no_append(world: World) -> None:
    """Appends go on during the upload: here it ends only after ten of them have landed."""
    publisher, writer = world.process(), world.process()
    key = key_in_new_bucket(publisher)
    publisher.create(key, body=b"0")
    landed, uploading = threading.Semaphore(0), threading.Event()

    def wait_for_appends(operation: str) -> None:
        assert operation == "PutObject"
        uploading.set()
        for _ in range(10):
            assert landed.acquire(timeout=60), "appends wait for the publish"

    before(publisher.objects, wait_for_appends)
    body = bytes(10 * 1024 * 1024)
    thread = threading.Thread(target=publish, args=(publisher, key, 1, body))
    thread.start()
    assert uploading.wait(60)
    for index in range(10):
        assert writer.append(key, b"x").next_offset == 2 + index
        landed.release()
    thread.join()
    assert read(writer.stores, key, 1).data == b"x" * 10
    snapshot = latest_snapshot(writer.stores, key)
    assert (snapshot.offset, snapshot.size) == (1, len(body))
