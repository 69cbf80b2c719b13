"""Buckets: counts that are always right, and listings that neither repeat nor skip."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product

import pytest

from tests.buckets import new_bucket
from tests.support import HOUR_MS, Faults, Process, World, a_key
from tidemark.janitor.sweep import sweep
from tidemark.log.buckets import list_buckets, list_records, load_bucket
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import StreamRecord
from tidemark.log.schema import bucket_key
from tidemark.protocol.bucket import ListingRequest
from tidemark.protocol.errors import BucketExists, BucketNotEmpty, BucketNotFound, StreamNotFound
from tidemark.protocol.expiry import Expiry, parse_expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete
from tidemark.service.load import load_head

TTL = Expiry(ttl_seconds=100)


def ids(process: Process, bucket: str, **asked: object) -> list[str]:
    listing = list_streams(process.stores, bucket, ListingRequest(**asked))  # type: ignore[arg-type]
    return [known.record.key.stream_id for known in listing.streams]


def pages(process: Process, bucket: str, limit: int, prefix: str = "") -> list[list[str]]:
    found, after = [], ""
    while True:
        listing = list_streams(process.stores, bucket, ListingRequest(prefix, after, limit))
        found.append([known.record.key.stream_id for known in listing.streams])
        if listing.next_cursor is None:
            assert not listing.has_more
            return found
        assert listing.has_more
        assert listing.next_cursor == found[-1][-1]
        after = listing.next_cursor


# --- the bucket itself --------------------------------------------------------------


def test_a_bucket_is_created_once(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    with pytest.raises(BucketExists):
        create_bucket(world.process().stores, bucket)
    assert describe_bucket(process.stores, bucket).streams == 0


def test_a_bucket_is_created_even_if_the_reply_was_lost(world: World) -> None:
    injected = 0
    for seed in range(8):
        process = world.process()
        faults = Faults(process.dynamodb, seed=seed, lost=0.3)
        assert describe_bucket(process.stores, new_bucket(process)).streams == 0
        injected += faults.injected["lost"]
    assert injected > 0


def test_a_missing_bucket_raises_bucket_not_found(world: World) -> None:
    stores = world.process().stores
    for use in (describe_bucket, delete_bucket):
        with pytest.raises(BucketNotFound):
            use(stores, "missing")
    with pytest.raises(BucketNotFound):
        list_streams(stores, "missing", ListingRequest())


@pytest.mark.parametrize("asked", [{}, {"body": b"x"}, {"expiry": TTL}, {"closed": True}])
def test_creating_a_stream_does_not_create_its_bucket(world: World, asked: dict[str, object]) -> None:
    process, key = world.process(), StreamKey("missing", "a")
    with pytest.raises(BucketNotFound):
        process.create(key, **asked)
    with pytest.raises(StreamNotFound):
        load_head(process.stores, key)
    assert process.stores.table.get(bucket_key("missing")) is None


def test_the_plain_surface_has_no_bucket_item_and_no_count(world: World) -> None:
    process, key = world.process(), a_key()
    process.calls.taken()
    process.create(key)
    assert process.calls.taken() == {"PutItem": 1}
    delete(process.stores, key)
    assert process.stores.table.get(bucket_key("v1")) is None


# --- counts -------------------------------------------------------------------------


def test_the_count_changes_with_every_creation_deletion_and_expiry(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    key = StreamKey(bucket, "a")

    def count() -> int:
        return load_bucket(process.stores.table, bucket).streams

    process.create(key)
    assert count() == 1
    assert not process.create(key).is_new
    assert count() == 1, "an idempotent PUT makes nothing"
    process.create(StreamKey(bucket, "b"), body=b"x", expiry=TTL, closed=True)
    assert count() == 2
    delete(process.stores, key)
    assert count() == 1
    world.clock.advance(HOUR_MS)
    assert process.create(StreamKey(bucket, "b"), body=b"y", expiry=TTL).is_new
    assert count() == 1, "the new stream takes the expired one's place"
    world.clock.advance(HOUR_MS)
    sweep(process.stores)
    assert count() == 0, "the janitor counts as well"


@pytest.mark.parametrize("lost", [0.15, 0.3])
def test_a_creation_or_deletion_whose_reply_was_lost_counts_once(world: World, lost: float) -> None:
    process = world.process()
    bucket = new_bucket(process)
    faults = Faults(process.dynamodb, seed=5, lost=lost)
    for index in range(12):
        process.create(StreamKey(bucket, str(index)), body=b"x")
    for index in range(0, 12, 2):
        delete(process.stores, StreamKey(bucket, str(index)))
    assert faults.injected["lost"] >= 2
    assert load_bucket(world.process().stores.table, bucket).streams == 6


@pytest.mark.parametrize(
    "expiry", [TTL, parse_expiry(None, "2027-01-15T08:01:40Z")], ids=["sliding", "fixed"]
)
def test_expired_streams_are_neither_counted_nor_listed(world: World, expiry: Expiry) -> None:
    """Long before the janitor removes them; nor do they keep their bucket from being deleted."""
    process = world.process()
    bucket, other = new_bucket(process), new_bucket(process)
    process.create(StreamKey(bucket, "stays"))
    process.create(StreamKey(other, "goes"), expiry=expiry)
    for index in range(5):
        process.create(StreamKey(bucket, f"goes-{index}"), expiry=expiry)
    assert describe_bucket(process.stores, bucket).streams == 6
    world.clock.advance(105_000)
    assert describe_bucket(process.stores, bucket).streams == 1
    assert ids(process, bucket) == ["stays"]
    assert pages(process, bucket, 1) == [["stays"]]
    with pytest.raises(BucketNotEmpty):
        delete_bucket(process.stores, bucket)
    delete(process.stores, StreamKey(bucket, "stays"))
    delete_bucket(process.stores, bucket)
    with pytest.raises(BucketNotFound):
        describe_bucket(process.stores, bucket)
    assert describe_bucket(process.stores, other).streams == 0
    sweep(process.stores)
    assert load_bucket(process.stores.table, other).streams == 0


def test_a_stream_renewed_by_a_write_is_counted_and_listed(world: World) -> None:
    """Its entry is overdue and its item looks idle: only its log shows that it is alive."""
    process = world.process()
    bucket = new_bucket(process)
    for name in ("a", "b"):
        process.create(StreamKey(bucket, name), expiry=TTL)
    world.clock.advance(90_000)
    process.append(StreamKey(bucket, "b"), b"x")
    world.clock.advance(90_000)
    assert describe_bucket(process.stores, bucket).streams == 1
    assert ids(process, bucket) == ["b"]
    process.create(StreamKey(bucket, "0"))
    assert pages(process, bucket, 1) == [["0"], ["b"]]


def test_a_sweep_while_a_bucket_is_counted_does_not_change_the_count(world: World) -> None:
    """A stream that the janitor ends between the two reads is not subtracted twice."""
    process = world.process()
    bucket = new_bucket(process)
    process.create(StreamKey(bucket, "stays"))
    for index in range(3):
        process.create(StreamKey(bucket, f"goes-{index}"), expiry=TTL)
    world.clock.advance(HOUR_MS)
    reads = 0
    send = process.dynamodb.send

    def sweeping(operation: str, body: bytes) -> tuple[int, bytes]:
        nonlocal reads
        reads += operation == "GetItem"
        if operation == "GetItem" and reads == 5:  # the bucket, three streams; now the bucket again
            sweep(world.process().stores)
        return send(operation, body)

    process.dynamodb.send = sweeping
    assert describe_bucket(process.stores, bucket).streams == 1
    assert reads > 5, "it looked again"


# --- delete-bucket against create-stream --------------------------------------------


def race(*actions: Callable[[], object]) -> list[BaseException | None]:
    barrier = threading.Barrier(len(actions))
    outcomes: list[BaseException | None] = [None] * len(actions)

    def run(index: int, action: Callable[[], object]) -> None:
        barrier.wait()
        try:
            action()
        except Exception as failure:  # noqa: BLE001 - the outcome is what is looked at
            outcomes[index] = failure

    threads = [threading.Thread(target=run, args=each) for each in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def lagging(seconds: float, action: Callable[[], object]) -> Callable[[], object]:
    def late() -> object:
        time.sleep(seconds)
        return action()

    return late


def is_there(process: Process, bucket: str) -> bool:
    try:
        load_bucket(process.stores.table, bucket)
    except BucketNotFound:
        return False
    return True


def test_a_stream_is_never_left_in_a_missing_bucket(world: World) -> None:
    """Raced for real, forty times and with one side ahead or the other: of the two, exactly one succeeds.

    How far ahead makes no difference to what must hold. It grows until each side has won, because
    on a slow machine the same one may win every race that begins at once.
    """
    creators, deleter = [world.process() for _ in range(2)], world.process()
    won = {"created": 0, "deleted": 0}
    ahead_seconds = 0.0
    while sum(won.values()) < 40 or min(won.values()) == 0:
        bucket = new_bucket(deleter)
        keys = [StreamKey(bucket, "a"), StreamKey(bucket, "b")]
        outcomes = race(
            lagging(ahead_seconds * (won["deleted"] == 0), partial(creators[0].create, keys[0], body=b"x")),
            lagging(ahead_seconds * (won["created"] == 0), partial(delete_bucket, deleter.stores, bucket)),
            lagging(ahead_seconds * (won["deleted"] == 0), partial(creators[1].create, keys[1])),
        )
        there = is_there(deleter, bucket)
        streams = [load_stream(deleter.stores.table, key) is not None for key in keys]
        created = [outcomes[0] is None, outcomes[2] is None]
        assert streams == created
        assert all(isinstance(outcome, BucketNotFound | BucketNotEmpty | None) for outcome in outcomes)
        assert (outcomes[1] is None) == (not there)
        if there:
            assert load_bucket(deleter.stores.table, bucket).streams == sum(created) > 0
        assert not (any(streams) and not there)
        won["deleted" if outcomes[1] is None else "created"] += 1
        ahead_seconds += 0.001


def test_the_count_is_right_after_many_concurrent_creations_and_deletions(world: World) -> None:
    bucket = new_bucket(world.process())
    names = [str(index) for index in range(6)]

    def churn(seed: int) -> Callable[[], None]:
        process, chance = world.process(), random.Random(seed)

        def act() -> None:
            for _ in range(15):
                key = StreamKey(bucket, chance.choice(names))
                try:
                    process.create(key) if chance.random() < 0.5 else delete(process.stores, key)
                except StreamNotFound:
                    continue

        return act

    assert race(*(churn(seed) for seed in range(4))) == [None] * 4
    process = world.process()
    found = ids(process, bucket)
    assert describe_bucket(process.stores, bucket).streams == len(found)


# --- listings -----------------------------------------------------------------------

UNSORTED = [
    "user-10",
    "user-2",
    "User",
    "é",
    "z",
    "\uffff",
    "\U0001f30a",
    "a b",
    "user-",
    "user-\U0010ffff",
    "~",
    "0",
]


def test_a_listing_is_in_the_order_of_utf8_bytes(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    for name in UNSORTED:
        process.create(StreamKey(bucket, name))
    expected = sorted(UNSORTED, key=lambda name: name.encode())
    assert ids(process, bucket) == expected
    assert ids(process, bucket, prefix="user-") == ["user-", "user-10", "user-2", "user-\U0010ffff"]
    assert ids(process, bucket, prefix="user-", after="user-10") == ["user-2", "user-\U0010ffff"]
    assert ids(process, bucket, prefix="user-", after="zz") == []
    assert ids(process, bucket, prefix="user-", after="a") == ids(process, bucket, prefix="user-")
    assert ids(process, bucket, prefix="nobody") == []
    assert ids(process, bucket, after="user-1") == [name for name in expected if name.encode() > b"user-1"]
    for limit in (1, 2, 3, len(expected) - 1, len(expected), 1000):
        found = pages(process, bucket, limit)
        assert [name for page in found for name in page] == expected
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit


def test_a_listing_shows_committed_tails(world: World) -> None:
    """Whichever process appended, and however long ago this one read the tail."""
    process, rival = world.process(), world.process()
    bucket = new_bucket(process)
    key = StreamKey(bucket, "a")
    process.create(key, body=b"abc")
    created = world.clock()
    world.clock.advance(1000)
    rival.append(key, b"de", close=True)
    [known] = list_streams(process.stores, bucket, ListingRequest()).streams
    assert (known.tail.offset, known.tail.closed) == (5, True)
    assert (known.record.created_ms, known.written_ms) == (created, created + 1000)


def test_streams_of_other_buckets_are_not_listed(world: World) -> None:
    """Not even those of a bucket whose name begins with this one's."""
    process = world.process()
    bucket = new_bucket(process)
    create_bucket(process.stores, f"{bucket}-x")
    process.create(StreamKey(f"{bucket}-x", "a"))
    assert ids(process, bucket) == []


def test_pages_are_the_ids_with_the_prefix_behind_the_cursor(world: World) -> None:
    """Of buckets and of streams alike, wherever the cursor lies: before the prefix, within it, or behind."""
    process = world.process()
    table, bucket = process.stores.table, new_bucket(process)
    ids = [bucket + end for end in ("-a", "-a1", "-b")]
    for each in ids:
        create_bucket(process.stores, each)
        process.create(StreamKey(bucket, each))
    listings: list[Callable[..., tuple[list[str], bool]]] = [
        partial(list_buckets, table),
        lambda *asked: _stream_ids(list_records(table, bucket, *asked)),
    ]
    cursors = [bucket + end for end in ("-", "-a", "-a1", "-az", "-b", "-z")]
    for prefix, after, limit in product(("-", "-a", "-b", "-c"), ("", *cursors), (1, 9)):
        wanted = [each for each in ids if each.startswith(bucket + prefix) and each > after]
        for listing in listings:
            found, more = listing(bucket + prefix, after, limit)
            assert found == wanted[:limit], (prefix, after)
            assert more or found == wanted, "a page that is not the last one says so"
            assert found or not more, "an empty page is the last one"


def _stream_ids(page: tuple[list[StreamRecord], bool]) -> tuple[list[str], bool]:
    return [record.key.stream_id for record in page[0]], page[1]


def test_a_listing_by_pages_shows_every_stream_that_exists_throughout(world: World) -> None:
    """Each of them once, whatever happens between the pages."""
    process, chance = world.process(), random.Random(1)
    bucket = new_bucket(process)
    lasting = [f"s{index:02d}" for index in range(0, 40, 2)]
    for name in lasting:
        process.create(StreamKey(bucket, name))
    found, after, more = [], "", True
    while more:
        listing = list_streams(process.stores, bucket, ListingRequest(after=after, limit=3))
        found += [known.record.key.stream_id for known in listing.streams]
        after, more = listing.next_cursor or "", listing.has_more
        for _ in range(4):
            key = StreamKey(bucket, f"s{chance.randrange(1, 40, 2):02d}")
            if process.create(key).is_new is False:
                delete(process.stores, key)
        if after:
            process.create(StreamKey(bucket, after + "x"))
            if after not in lasting:  # The cursor itself goes: a place, not a stream.
                with suppress(StreamNotFound):
                    delete(process.stores, StreamKey(bucket, after))
    assert [name for name in found if name in lasting] == lasting
    assert len(found) == len(set(found))
