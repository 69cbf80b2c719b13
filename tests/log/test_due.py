"""The janitor's queue: a step for each kind of entry, how much is done in a round, which objects in S3 go."""

import random
from collections.abc import Callable

import pytest

from tests.simulation.world import SimulatedWorld
from tests.support import HOUR_MS, JSON, Process, World, a_key, before, table_of
from tidemark.janitor.sweep import STEPS, sweep
from tidemark.log.due import Packing, schedule
from tidemark.log.records import Due, DueKind
from tidemark.protocol.errors import BucketNotEmpty, Conflict
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import create_bucket, delete_bucket
from tidemark.service.catalog import list_streams


def test_the_janitor_has_a_step_for_every_kind_of_entry() -> None:
    assert set(STEPS) == set(DueKind)


def test_a_round_goes_on_until_nothing_is_due_or_time_is_short() -> None:
    """However many entries lie in one partition; and another partition's do not wait for them."""
    world = SimulatedWorld(random.Random(7), None)
    stores = world.process()[1]
    for number in range(450):
        incarnation = "the-one" if number < 400 else f"another-{number}"
        due = Due(DueKind.SETTLED, StreamKey("v1", "a"), incarnation, world.now_ms, f"m{number % 400}")
        schedule(stores.table, due)
    left = iter(range(300))
    assert sweep(stores, lambda: next(left, None) is not None).cut_short == 1
    first = [item["sk"]["S"] for item in world.table.items()]
    assert 0 < len(first) < 450
    assert not [key for key in first if "another" in key]
    assert sweep(stores).cut_short == 0
    assert list(world.table.items()) == []


PATH, TTL = StreamKey("bucket", "a"), Expiry(ttl_seconds=300)


def delete_a_full_bucket(process: Process) -> BucketNotEmpty:
    with pytest.raises(BucketNotEmpty) as refused:
        delete_bucket(process.stores, "bucket")
    return refused.value


JUDGES: dict[str, Callable[[Process], object]] = {
    "read": lambda process: process.read_all(PATH),
    "append": lambda process: process.append(PATH, b"more"),
    "create again": lambda process: process.create(PATH, expiry=TTL),
    "list": lambda process: list_streams(process.stores, "bucket", ListingRequest("", "", 10)).streams[0],
    "sweep": lambda process: sweep(process.stores),
    "delete the bucket": delete_a_full_bucket,
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_process_whose_clock_is_ahead_ends_no_stream_by_its_first_request(world: World, name: str) -> None:
    """The reply of storage sets its clock right (`aws/clock.py`), and the stream is judged after it."""
    right = world.process()
    create_bucket(right.stores, "bucket")
    right.create(PATH, expiry=TTL)
    right.append(PATH, b"kept")
    replies = list[str]()
    fresh = world.process(clock=lambda: world.clock() + (0 if replies else 600_000))
    before(fresh.dynamodb, replies.append)
    assert JUDGES[name](fresh)
    assert right.read_all(PATH).startswith(b"kept")


# --- objects in S3 -------------------------------------------------------------------------------

BODY = bytes(INLINE_BYTES + 1)


def blobs_of(process: Process) -> int:
    answer = process.s3.list_objects_v2(Bucket=table_of(process.stores).name)
    return int(answer["KeyCount"])


def test_the_body_of_a_refused_creation_is_removed_and_that_of_a_successful_one_stays(world: World) -> None:
    process, refused, made = world.process(), a_key(), a_key()
    process.create(refused, content_type=JSON)
    with pytest.raises(Conflict):
        process.create(refused, body=BODY)
    process.create(made, body=BODY)
    assert blobs_of(process) == 2
    world.clock.advance(2 * HOUR_MS)
    assert sweep(process.stores).orphans == 1
    assert blobs_of(process) == 1
    assert world.process().read_all(made) == BODY


# --- when batches are packed ---------------------------------------------------------------

PACKING = Packing.after_seconds(3600)
KB = 1024


@pytest.mark.parametrize(
    ("start", "end", "due"),
    [
        (0, 100, False),
        (0, 256 * KB - 1, False),
        (256 * KB - 1, 256 * KB, True),
        (256 * KB, 512 * KB - 1, False),
        (10, 10 + 2**30, True),
    ],
)
def test_an_append_that_crosses_a_multiple_of_256_kb_schedules(start: int, end: int, due: bool) -> None:
    assert PACKING.crosses_a_mark(start, Tail(end)) == due


def test_closing_schedules_where_a_pack_can_pay() -> None:
    """A batch has a byte at least, and a pack takes 64 batches."""
    assert PACKING.crosses_a_mark(64, Tail(64, closed=True))
    assert not PACKING.crosses_a_mark(63, Tail(63, closed=True))


@pytest.mark.parametrize(
    ("batches", "data_bytes", "pays"),
    [(1, 2**30, False), (63, 100, False), (64, 100, True), (2, 256 * KB, True), (2, 256 * KB - 1, False)],
)
def test_a_pack_pays_from_64_batches_or_256_kb_on(batches: int, data_bytes: int, pays: bool) -> None:
    assert PACKING.pays(batches, data_bytes) == pays


MB = 1024 * KB


@pytest.mark.parametrize(
    ("new", "before", "taken_in"),
    [
        (MB, 2 * MB, True),
        (MB, 2 * MB + 1, False),
        (4 * MB, 4 * MB - 1, True),
        (4 * MB, 4 * MB, False),
        (8 * MB, 4 * MB - 1, True),
        (9 * MB, 4 * MB - 1, False),
    ],
)
def test_a_pack_takes_in_one_that_is_small_and_not_much_larger(new: int, before: int, taken_in: bool) -> None:
    assert PACKING.takes_in(new, before) == taken_in


def test_the_next_look_is_after_twice_the_time() -> None:
    now_ms, looks = 0, []
    for _ in range(5):
        now_ms = PACKING.next_look_ms(0, now_ms)
        looks.append(now_ms // HOUR_MS)
    assert looks == [1, 2, 4, 8, 16]
    assert [hours for hours in (16, 23, 24, 32) if PACKING.has_waited(0, hours * HOUR_MS)] == [24, 32]


def test_zero_packs_any_two_batches_at_once() -> None:
    packing = Packing.after_seconds(0)
    assert packing.crosses_a_mark(0, Tail(1))
    assert packing.pays(2, 2)
    assert packing.has_waited(7, 7)
