"""Snapshots: one write moves the pointer and what is retained, the highest offset wins, appends go on; what
lies below is not read from then on, and is removed later, but never too early and never the tail's batch.

`tests/properties/test_bootstrap.py` plays them in any order, and publishes at any offset; `test_pack.py`
asks where one may be published."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests import buckets
from tests.support import HOUR_MS, MINUTE_MS, Process, World, a_key, append_request, before, filled
from tidemark.blobs import bootstrap_blob_key, compose, log_prefix, snapshot_blob_key, snapshot_prefix
from tidemark.janitor.sweep import sweep
from tidemark.protocol import errors
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import (
    MAX_ANSWER_BYTES,
    begin_upload,
    bootstrap,
    delete_snapshot,
    latest_snapshot,
    read_snapshot,
)

pytestmark = pytest.mark.each_engine


def stream_of(world: World, *bodies: bytes) -> tuple[Process, StreamKey]:
    return filled(world, *bodies, key=buckets.key_in_new_bucket(world.process()))


def sweep_after(world: World, process: Process, ms: int = 2 * HOUR_MS) -> int:
    world.clock.advance(ms)
    return sweep(process.stores).trimmed


@pytest.mark.parametrize("end", ["never", "deleted", "expired"])
def test_a_snapshot_of_a_missing_stream_raises_stream_not_found(world: World, end: str) -> None:
    process = world.process()
    key = buckets.key_in_new_bucket(process)
    if end != "never":
        process.create(key, body=b"x", expiry=Expiry(ttl_seconds=10))
        buckets.publish(process, key, 1)
    if end == "deleted":
        delete(process.stores, key)
    world.clock.advance(HOUR_MS)
    uses: list[Callable[[], object]] = [
        *(partial(buckets.publish, process, key, offset) for offset in (0, 1, 9)),
        partial(latest_snapshot, process.stores, key),
        partial(read_snapshot, process.stores, key, 1),
        partial(delete_snapshot, process.stores, key, 1),
        partial(bootstrap, process.stores, key),
        partial(read, process.stores, key, 0),
    ]
    for use in uses:
        with pytest.raises(errors.StreamNotFound):
            use()


def test_the_latest_snapshot_is_read_back_and_cannot_be_deleted(world: World) -> None:
    process, key = stream_of(world, b"12345")
    with pytest.raises(errors.SnapshotNotFound):
        latest_snapshot(process.stores, key)
    content_type = parse_content_type('Text/X; charset="utf-8"')
    for body in (b"one", b"\0\xff"):
        buckets.publish(process, key, 5, body, content_type=content_type)
    for stores in (process.stores, world.process().stores):
        reading = read_snapshot(stores, key, 5)
        assert (reading.data, reading.snapshot.content_type) == (b"\0\xff", content_type)
        assert load_head(stores, key).record.snapshot == latest_snapshot(stores, key) == reading.snapshot
        with pytest.raises(errors.SnapshotNotFound):
            read_snapshot(stores, key, 0)
        with pytest.raises(errors.SnapshotNotFound):
            delete_snapshot(stores, key, 0)
        with pytest.raises(errors.SnapshotNeeded):
            delete_snapshot(stores, key, 5)


def test_publishing_and_reading_a_snapshot_renew_a_sliding_expiry(world: World) -> None:
    process = world.process()
    key = buckets.key_in_new_bucket(process)
    process.create(key, body=b"x", expiry=Expiry(ttl_seconds=10))
    for use in (
        partial(buckets.publish, process, key, 1),
        partial(read_snapshot, process.stores, key, 1),
        partial(bootstrap, process.stores, key),
        partial(buckets.publish, process, key, 1),
    ):
        world.clock.advance(9_000)
        use()
    world.clock.advance(9_000)
    assert load_head(process.stores, key).tail.offset == 1


# --- at the same time ---------------------------------------------------------------------------


def test_of_two_concurrent_publishes_the_higher_offset_wins(world: World) -> None:
    """The lower one has written its blob and not its pointer when the higher one lands."""
    process, key = stream_of(world, b"12345", b"6")
    rival = world.process()
    buckets.insert_before_commit(process, partial(buckets.publish, rival, key, 6, b"higher"))
    with pytest.raises(errors.RetentionGone) as refused:
        buckets.publish(process, key, 5, b"lower")
    assert refused.value.headers == {"Stream-Next-Offset": "0000000000000006"}
    assert read_snapshot(process.stores, key, 6).data == b"higher"
    buckets.insert_before_commit(process, partial(buckets.publish, rival, key, 6, b"again"))
    buckets.publish(process, key, 6, b"later")
    left = len(buckets.snapshot_objects(process, world, key))
    assert left == 4, "none is removed while a reader may be on it"
    sweep_after(world, process)
    assert len(buckets.snapshot_objects(process, world, key)) == 1, "one for the pointer, and none left over"
    assert read_snapshot(rival.stores, key, 6).data == b"later"


def test_a_crash_between_blob_and_pointer_leaves_the_old_snapshot_intact(world: World) -> None:
    process, key = stream_of(world, b"12345", b"6")
    buckets.publish(process, key, 5, b"old")

    def crash() -> None:
        raise KeyboardInterrupt

    buckets.insert_before_commit(crashing := world.process(), crash)
    with pytest.raises(KeyboardInterrupt):
        buckets.publish(crashing, key, 6, b"new")
    assert len(buckets.snapshot_objects(process, world, key)) == 2
    assert read_snapshot(process.stores, key, 5).data == b"old"
    assert [part.body for part in bootstrap(process.stores, key).parts] == [b"old", b"6"]


def test_an_upload_is_published_though_its_first_publish_dies_and_the_next_one_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap of gigabytes may take longer to compose than a gateway waits: a client repeats the request
    meanwhile. What is published is not composed again."""
    process, key = stream_of(world, b"12345")
    upload = begin_upload(process.stores, key, 5).id
    blob = snapshot_blob_key(buckets.record_of(process, key).incarnation, 5, upload.mark)
    process.stores.blobs.put(blob, bytes(MAX_ANSWER_BYTES + 1))
    begun: list[object] = []

    def die_then_be_overtaken(*arguments: Any) -> None:
        begun.append(arguments)
        if len(begun) == 1:
            raise SystemExit
        if len(begun) == 2:
            buckets.publish(world.process(), key, 5, b"", upload=upload)
        compose(*arguments)

    monkeypatch.setattr("tidemark.blobs.compose", die_then_be_overtaken)
    with pytest.raises(SystemExit):
        buckets.publish(process, key, 5, b"", upload=upload)
    with pytest.raises(errors.SnapshotNotFound):
        latest_snapshot(process.stores, key)
    for _ in range(2):
        assert buckets.publish(process, key, 5, b"", upload=upload) == latest_snapshot(process.stores, key)
    assert len(begun) == 3
    assert bytes(MAX_ANSWER_BYTES + 1) in process.stores.blobs.get(bootstrap_blob_key(blob))
    with pytest.raises(errors.RetentionGone):
        read(process.stores, key, 0)


def test_a_publish_does_not_change_a_stream_that_was_re_created_meanwhile(world: World) -> None:
    process, key = stream_of(world, b"12345")
    rival = world.process()

    def re_create() -> None:
        delete(rival.stores, key)
        rival.create(key, body=b"other")

    buckets.insert_before_commit(process, re_create)
    with pytest.raises(errors.StreamNotFound):
        buckets.publish(process, key, 5)
    record = buckets.record_of(rival, key)
    assert (record.snapshot, record.retained) == (None, 0)
    assert rival.read_all(key) == b"other"


def test_a_reader_that_began_before_two_snapshots_gets_the_blob_it_needs(world: World) -> None:
    """It has read the stream's item; two snapshots follow before it loads the blob."""
    rival, key = stream_of(world, b"1", b"x", b"x", b"x")
    buckets.publish(rival, key, 1, b"first")
    pending = [True]

    def overtake(operation: str) -> None:
        if operation == "GetObject" and pending:
            pending.clear()
            buckets.publish(rival, key, 3, b"second")
            buckets.publish(rival, key, 4, b"third")
            sweep_after(world, rival, 50 * MINUTE_MS)

    reader = world.process()
    before(reader.objects, overtake)
    made = bootstrap(reader.stores, key)
    assert [part.body for part in made.parts] == [b"first", b"x", b"x", b"x"]
    assert (made.snapshot.offset if made.snapshot else None, made.next_offset) == (1, 4)


# --- what lies below it ------------------------------------------------------------------------


def test_a_fork_begins_with_its_sources_snapshot(world: World) -> None:
    process, source = stream_of(world, b"1", b"2", b"3", b"4")
    fork = StreamKey(source.bucket, "fork")
    buckets.publish(process, source, 2, b"two")
    with pytest.raises(errors.RetentionGone):
        process.fork(fork, source, 1)
    process.fork(fork, source, 3)
    process.append(fork, b"f")
    buckets.publish(process, source, 4, b"four")
    sweep_after(world, process)
    assert [part.body for part in bootstrap(world.process().stores, fork).parts] == [b"two", b"3", b"f"]
    assert buckets.record_of(process, fork).retained == 2
    with pytest.raises(errors.RetentionGone):
        read(process.stores, fork, 1)
    buckets.publish(process, fork, 3, b"of the fork")
    assert [part.body for part in bootstrap(process.stores, fork).parts] == [b"of the fork", b"f"]
    sweep_after(world, process)
    left = len(buckets.snapshot_objects(process, world, source))
    assert left == 2, "a fork removes nothing of its source's"
    delete(process.stores, fork)
    sweep_after(world, process)
    assert len(buckets.snapshot_objects(process, world, source)) == 1, "what waited for the fork goes"
    assert buckets.batch_starts(process, source) == [3]


def test_trimming_keeps_retained_batches_and_the_last_one(world: World) -> None:
    large = bytes(INLINE_BYTES + 1)
    process, key = stream_of(world, large)
    append(process.stores, key, [append_request(b"ab"), append_request(b"cd")])
    process.append(key, b"ef", claim=("p", 1, 0), seq="s")
    inside, tail = len(large) + 2, len(large) + 6
    incarnation = buckets.record_of(process, key).incarnation
    buckets.publish(process, key, inside)
    assert sweep_after(world, process, 59 * MINUTE_MS) == 0
    assert buckets.batch_starts(process, key) == [0, len(large), len(large) + 4]
    assert sweep_after(world, process, 2 * MINUTE_MS) == 1
    assert buckets.batch_starts(process, key) == [len(large), len(large) + 4], "the batch around it stays"
    assert buckets.objects(process, world, f"log/{incarnation}/") == [], "and its blob went along"
    assert read(process.stores, key, inside).data == b"cdef"
    buckets.publish(process, key, tail)
    sweep_after(world, process)
    assert buckets.batch_starts(process, key) == [len(large) + 4], "the tail's state lives in the last one"
    fresh = world.process()
    assert load_head(fresh.stores, key).tail.offset == tail
    assert fresh.append(key, b"ef", claim=("p", 1, 0)).next_offset == tail, "still a duplicate"
    with pytest.raises(errors.ProtocolError):
        fresh.append(key, b"gh", seq="a")
    assert fresh.append(key, b"gh", seq="t").next_offset == tail + 2


def test_batches_that_a_fork_lives_on_stay_until_it_has_ended(world: World) -> None:
    process, key = stream_of(world, b"x", b"x", b"x")
    process.fork(fork := a_key(), key, 3)
    buckets.publish(process, key, 2)
    for _ in range(2):
        assert sweep_after(world, process) == 0
        assert world.process().read_all(fork) == b"xxx"
    delete(process.stores, fork)
    assert sweep_after(world, process) == 1
    assert buckets.batch_starts(process, key) == [2]


def test_a_trimmed_stream_that_is_closed_stays_closed(world: World) -> None:
    process, key = stream_of(world, b"12345")
    process.append(key, close=True)
    buckets.publish(process, key, 5)
    sweep_after(world, process)
    assert buckets.batch_starts(process, key) == [5]
    reading, made = read(world.process().stores, key, 5), bootstrap(process.stores, key)
    assert (reading.page.closed, reading.data) == (True, b"")
    assert (made.closed, made.up_to_date, made.next_offset) == (True, True, 5)


def test_each_snapshot_trims_one_hour_after_it_was_published(world: World) -> None:
    process, key = stream_of(world, *[b"x"] * 4)
    buckets.publish(process, key, 1)
    world.clock.advance(59 * MINUTE_MS)
    buckets.publish(process, key, 3)
    sweep_after(world, process, 2 * MINUTE_MS)
    assert buckets.batch_starts(process, key) == [1, 2, 3]
    sweep_after(world, process, HOUR_MS)
    assert buckets.batch_starts(process, key) == [3]


def test_trimming_stops_when_time_is_short_and_goes_on_later(world: World) -> None:
    process, key = stream_of(world, *[b"x"] * 60)
    buckets.publish(process, key, 60)
    world.clock.advance(2 * HOUR_MS)
    answers = iter([True, True, False])
    sweep(process.stores, lambda: next(answers, False))
    assert len(buckets.batch_starts(process, key)) == 35
    assert sweep(process.stores).trimmed == 1
    assert buckets.batch_starts(process, key) == [59]


def test_the_objects_of_an_ended_stream_are_removed_with_it(world: World) -> None:
    process, key = stream_of(world, b"12345", bytes(INLINE_BYTES + 1))
    for _ in range(2):
        buckets.publish(process, key, 5)
    incarnation = buckets.record_of(process, key).incarnation
    prefixes = snapshot_prefix(incarnation), log_prefix(incarnation)
    process.stores.blobs.put(f"{log_prefix(incarnation)}lost", b"of an append that lost a race")
    delete(process.stores, key)
    assert [len(buckets.objects(process, world, prefix)) for prefix in prefixes] == [2, 2]
    sweep_after(world, process)
    assert [buckets.objects(process, world, prefix) for prefix in prefixes] == [[], []]


def append_by_a_sleeper(world: World, minutes: float) -> bool:
    """A writer knows an old tail; others append, publish a snapshot, and the janitor trims. Returns whether
    its append, which is acknowledged, can be read."""
    sleeper, key = stream_of(world, b"x")
    rival = world.process()
    for _ in range(3):
        rival.append(key, b"y")
    buckets.publish(rival, key, 4)
    sweep_after(world, rival, int(minutes * MINUTE_MS))
    sleeper.append(key, b"late")
    return b"late" in read(world.process().stores, key, 4).data


@pytest.mark.parametrize("minutes", [0, 4.9, 5.1, 59, 61, 600])
def test_no_append_lands_at_the_key_of_a_trimmed_batch(world: World, minutes: float) -> None:
    assert append_by_a_sleeper(world, minutes)
