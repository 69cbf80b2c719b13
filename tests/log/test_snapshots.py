"""Snapshots: exact boundaries for ever, one move of pointer and retention, nothing removed too early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import pytest

from tests.buckets import key_in_new_bucket, publish
from tests.support import (
    BYTES,
    HOUR_MS,
    JSON,
    MINUTE_MS,
    Faults,
    Process,
    World,
    append_request,
    before,
)
from tidemark.blobs.store import snapshot_prefix
from tidemark.janitor.sweep import sweep
from tidemark.log import snapshots
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.table import Write
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.errors import (
    Malformed,
    OffsetBeyondTail,
    Refused,
    RetentionGone,
    SnapshotNeeded,
    SnapshotNotFound,
    StreamNotFound,
)
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import publish_snapshot as publishing
from tidemark.service.append import INLINE_BYTES, append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.delete import delete
from tidemark.service.load import load_known
from tidemark.service.publish_snapshot import check_snapshot_offset
from tidemark.service.read import read
from tidemark.service.read_snapshot import delete_snapshot, latest_snapshot, read_snapshot


def record_of(process: Process, key: StreamKey) -> StreamRecord:
    record = load_stream(process.stores.table, key)
    assert record is not None
    return record


def accepted(process: Process, key: StreamKey, beyond: int = 3) -> list[int]:
    """Every offset at which a snapshot may be published now."""
    tail = load_known(process.stores, key).tail.offset
    return [offset for offset in range(tail + beyond) if verdict(process, key, offset) is None]


def verdict(process: Process, key: StreamKey, offset: int) -> type[Refused] | None:
    try:
        check_snapshot_offset(process.stores, key, offset)
    except Refused as refusal:
        return type(refusal)
    return None


def batch_starts(process: Process, key: StreamKey) -> list[int]:
    pk = log_pk(key, record_of(process, key).incarnation)
    items, _ = process.stores.table.query(pk, attributes=("sk",))
    return [int(item["sk"]["S"][:16]) for item in items]


def objects(process: Process, world: World, prefix: str) -> list[str]:
    answer = process.s3.list_objects_v2(Bucket=world.bucket_name, Prefix=prefix)
    return [found["Key"] for found in answer.get("Contents", [])]


def snapshot_objects(process: Process, world: World, key: StreamKey) -> list[str]:
    return objects(process, world, snapshot_prefix(record_of(process, key).incarnation))


# --- boundaries ---------------------------------------------------------------------


def test_boundaries_are_the_ends_of_messages(world: World) -> None:
    """Alone, in a group, in one JSON array, in the creation's body, in S3: before and after."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, content_type=JSON, body=b'[1, "ab"]')
    append(process.stores, key, [append_request(b"[10,200]", content_type=JSON) for _ in range(3)])
    process.append(key, b'{"x":1}', content_type=JSON)
    process.append(key, content_type=JSON, close=True)
    sizes = [2, 5, *[3, 4] * 3, 8]
    ends = list(accumulate(sizes, initial=0))
    assert accepted(process, key) == ends
    assert accepted(world.process(), key) == ends
    for offset in (ends[3], ends[4], ends[-1]):
        publish(process, key, offset)
        left = [end for end in ends if end >= offset]
        assert accepted(process, key) == left
        assert [verdict(process, key, end) for end in ends if end < offset] == [RetentionGone] * (
            len(ends) - len(left)
        )
        world.clock.advance(2 * HOUR_MS)
        sweep(process.stores)
        assert accepted(world.process(), key) == left, "trimming forgets no boundary"


def test_boundaries_of_what_lies_in_s3(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    large = b"x" * (INLINE_BYTES - 1)
    process.create(key, content_type=JSON)
    body = b'["' + large + b'","' + large + b'"]'
    process.append(key, body, content_type=JSON)
    message = len(large) + 3
    assert [verdict(process, key, n * message) for n in range(3)] == [None] * 3
    for offset in (1, message - 1, message + 1, 2 * message - 1):
        assert verdict(process, key, offset) is Malformed
    assert verdict(process, key, 2 * message + 1) is OffsetBeyondTail


def test_an_empty_stream_has_one_boundary(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    assert accepted(process, key) == [0]
    publish(process, key, 0, b"nothing yet")
    assert accepted(process, key) == [0]
    assert read(process.stores, key, 0).page.up_to_date, "-1 and 0 are the same place, and it is retained"
    process.append(key, b"abc")
    assert accepted(process, key) == [0, 3]
    assert read(process.stores, key, 0).data == b"abc"
    assert bootstrap(process.stores, key).parts[0].body == b"nothing yet"


@pytest.mark.parametrize(
    ("offset", "expected"), [(4, RetentionGone), (5, RetentionGone), (99, OffsetBeyondTail), (7, Malformed)]
)
def test_the_order_of_refusals(world: World, offset: int, expected: type[Refused]) -> None:
    """5 is a message's end too, but lies below what is retained."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    process.append(key, b"789")
    publish(process, key, 6)
    assert verdict(process, key, offset) is expected


def test_nothing_is_stored_for_a_publish_that_is_refused(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    for offset in (3, 99):
        with pytest.raises(Refused):
            publish(process, key, offset)
    assert snapshot_objects(process, world, key) == []


@pytest.mark.parametrize("end", ["never", "deleted", "expired"])
def test_a_stream_that_is_not_there(world: World, end: str) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    if end != "never":
        process.create(key, body=b"x", expiry=Expiry(ttl_seconds=10))
        publish(process, key, 1)
    if end == "deleted":
        delete(process.stores, key)
    world.clock.advance(HOUR_MS)
    uses: list[Callable[[], object]] = [
        partial(publish, process, key, 1),
        partial(publish, process, key, 0),
        partial(publish, process, key, 9),
        partial(latest_snapshot, process.stores, key),
        partial(read_snapshot, process.stores, key, 1),
        partial(delete_snapshot, process.stores, key, 1),
        partial(bootstrap, process.stores, key),
        partial(read, process.stores, key, 0),
    ]
    for use in uses:
        with pytest.raises(StreamNotFound):
            use()


# --- the pointer --------------------------------------------------------------------


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
        assert load_known(reader.stores, key).record.snapshot == reading.snapshot
        with pytest.raises(SnapshotNotFound):
            read_snapshot(reader.stores, key, 0)


def test_the_same_offset_again_replaces_the_blob(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    publish(process, key, 5, b"one")
    publish(world.process(), key, 5, b"two")
    assert read_snapshot(process.stores, key, 5).data == b"two"


def test_the_latest_snapshot_stays(world: World) -> None:
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


def test_of_two_publishes_at_once_the_higher_stays(world: World) -> None:
    """The lower one is between its blob and its pointer when the higher one lands."""
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


def insert_before_commit(process: Process, action: Callable[[], object]) -> None:
    pending = [action]

    def act(operation: str) -> None:
        if operation == "TransactWriteItems" and pending:
            pending.pop()()

    before(process.dynamodb, act)


def test_racing_publishers_leave_the_highest(world: World) -> None:
    processes = [world.process() for _ in range(4)]
    key = key_in_new_bucket(processes[0])
    processes[0].create(key)
    for _ in range(4):
        processes[0].append(key, b"x")
    refused: list[Refused] = []

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


def test_a_crash_between_blob_and_pointer_leaves_the_old_snapshot_whole(world: World) -> None:
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


def test_a_stream_re_created_under_a_publish_is_another_one(world: World) -> None:
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
    assert load_known(process.stores, key).tail.offset == 1


# --- appends are not in the way -----------------------------------------------------


def test_a_publish_of_ten_megabytes_holds_no_append_up(world: World) -> None:
    """Appends go on while the blob is under way: the upload ends only once ten have landed."""
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


# --- retention ----------------------------------------------------------------------


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("content_type", [BYTES, JSON], ids=["bytes", "JSON"])
def test_every_lower_offset_is_gone(world: World, warm: bool, content_type: object) -> None:
    """For a process that has all of it in memory too, before and after anything is trimmed."""
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, content_type=content_type)
    for number in (b"11", b"22", b"33"):
        process.append(key, number, content_type=content_type)
    size = load_known(process.stores, key).tail.offset // 3
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
        with pytest.raises(Malformed):
            read(reader.stores, key, 3 * size + 1)
        world.clock.advance(2 * HOUR_MS)
        sweep(rival.stores)
    assert batch_starts(process, key) == [2 * size]


def test_a_re_created_stream_retains_all_of_it(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    publish(process, key, 5)
    delete(process.stores, key)
    process.create(key, body=b"new")
    assert process.read_all(key) == b"new"
    with pytest.raises(SnapshotNotFound):
        latest_snapshot(process.stores, key)


# --- trimming -----------------------------------------------------------------------


def test_trimming_keeps_what_is_retained_and_the_last_batch(world: World) -> None:
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
    assert load_known(fresh.stores, key).tail.offset == tail
    assert fresh.append(key, b"ef", claim=("p", 1, 0)).next_offset == tail, "still a duplicate"
    with pytest.raises(Refused):
        fresh.append(key, b"gh", seq="a")
    assert fresh.append(key, b"gh", seq="t").next_offset == tail + 2


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


def test_an_entry_goes_by_its_own_offset(world: World) -> None:
    """What a later snapshot left behind has its own hour."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    for _ in range(4):
        process.append(key, b"x")
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
    key = key_in_new_bucket(process)
    process.create(key)
    for _ in range(60):
        process.append(key, b"x")
    publish(process, key, 60)
    world.clock.advance(2 * HOUR_MS)
    answers = iter([True, True, False])
    sweep(process.stores, lambda: next(answers, False))
    assert len(batch_starts(process, key)) == 35
    assert sweep(process.stores).trimmed == 1
    assert batch_starts(process, key) == [59]


def test_an_ended_stream_takes_its_snapshots_along(world: World) -> None:
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


def test_a_reader_in_flight_reads_to_the_end(world: World) -> None:
    """It has read the stream's item, and two snapshots follow before it comes for the blob."""
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


# --- vacated keys: no write lands where a batch used to be ---------------------------


def append_by_a_sleeper(world: World, minutes: float) -> tuple[bool, bool]:
    """It knows a tail; others append behind it, publish a snapshot, and the janitor comes.
    Whether its append was acknowledged, and whether anybody can read it."""
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
def test_no_append_lands_where_a_batch_was_trimmed(world: World, minutes: float) -> None:
    assert append_by_a_sleeper(world, minutes) == (True, True)


def test_trimmed_at_once_an_append_would_be_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule that this is about, taken out: so we know that the scenario tests it."""
    monkeypatch.setattr(publishing, "RECLAIM_AFTER_MS", 0)
    assert append_by_a_sleeper(world, 4) == (True, False)


def test_without_the_pointers_condition_a_lower_snapshot_would_win(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `test_of_two_publishes_at_once_the_higher_stays`, without the rule."""
    move = snapshots._move_pointer

    def unconditional(record: StreamRecord, snapshot: object) -> Write:
        return Write(update=move(record, snapshot).update)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "_move_pointer", unconditional)
    process, rival = world.process(), world.process()
    key = key_in_new_bucket(process)
    process.create(key, body=b"12345")
    process.append(key, b"6")
    insert_before_commit(process, partial(publish, rival, key, 6, b"higher"))
    publish(process, key, 5, b"lower")
    assert record_of(process, key).retained == 5


# --- forks --------------------------------------------------------------------------


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
