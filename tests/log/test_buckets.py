"""Buckets: counts that are always right, and listings that neither repeat nor skip."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product

import pytest

from tests.buckets import insert_before_commit, new_bucket
from tests.support import HOUR_MS, Process, World, a_key
from tidemark.janitor.sweep import sweep
from tidemark.log.buckets import list_bucket_ids, list_records, load_bucket
from tidemark.log.read import load_stream
from tidemark.log.records import EndMark, StreamRecord
from tidemark.log.schema import bucket_key, decode_end_mark, stream_key
from tidemark.log.tails import TailCache
from tidemark.protocol.errors import BucketExists, BucketNotEmpty, BucketNotFound, StreamNotFound
from tidemark.protocol.expiry import Expiry, parse_expiry
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete
from tidemark.service.load import load_head

pytestmark = pytest.mark.each_engine

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


def test_a_bucket_is_created_once_and_is_not_found_before(world: World) -> None:
    process = world.process()
    uses: list[Callable[[], object]] = [
        partial(describe_bucket, process.stores, "missing"),
        partial(delete_bucket, process.stores, "missing"),
        partial(list_streams, process.stores, "missing", ListingRequest()),
    ]
    for use in uses:
        with pytest.raises(BucketNotFound):
            use()
    bucket = new_bucket(process)
    with pytest.raises(BucketExists):
        create_bucket(world.process().stores, bucket)
    assert describe_bucket(process.stores, bucket).streams == 0


@pytest.mark.parametrize("asked", [{}, {"body": b"x"}, {"expiry": TTL}, {"closed": True}])
def test_creating_a_stream_does_not_create_its_bucket(world: World, asked: dict[str, object]) -> None:
    process, key = world.process(), StreamKey("missing", "a")
    with pytest.raises(BucketNotFound):
        process.create(key, **asked)
    with pytest.raises(StreamNotFound):
        load_head(process.stores, key)
    assert process.stores.table.get(bucket_key("missing")) is None


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


@pytest.mark.parametrize("body", [b"", b"x"])
@pytest.mark.parametrize("first", ["creation", "deletion"])
def test_of_a_creation_and_its_buckets_deletion_one_succeeds(world: World, first: str, body: bytes) -> None:
    """Both have found the bucket, and empty; then one commits, and the other behind it."""
    creator, deleter = world.process(), world.process()
    bucket = new_bucket(deleter)
    key = StreamKey(bucket, "a")
    create, remove = partial(creator.create, key, body=body), partial(delete_bucket, deleter.stores, bucket)
    if first == "creation":
        insert_before_commit(deleter, create)
        with pytest.raises(BucketNotEmpty):
            remove()
        assert load_stream(deleter.stores.table, key) is not None
        assert load_bucket(deleter.stores.table, bucket).streams == 1
    else:
        insert_before_commit(creator, remove)
        with pytest.raises(BucketNotFound):
            create()
        assert load_stream(deleter.stores.table, key) is None
        with pytest.raises(BucketNotFound):
            load_bucket(creator.stores.table, bucket)


# --- listings -----------------------------------------------------------------------

UNSORTED = [
    *("user-10", "user-2", "User", "é", "z", "\uffff", "\U0001f30a", "a b", "user-"),
    *("user-\U0010ffff", "~", "0"),
]


def test_a_listing_is_in_the_order_of_utf8_bytes(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    for name in UNSORTED:
        process.create(StreamKey(bucket, name))
    expected = sorted(UNSORTED, key=lambda name: name.encode())
    assert ids(process, bucket) == expected
    assert ids(process, bucket, prefix="user-") == ["user-", "user-10", "user-2", "user-\U0010ffff"]
    assert ids(process, bucket, after="user-1") == [name for name in expected if name.encode() > b"user-1"]
    for limit in (1, 2, 3, len(expected) - 1, len(expected), 1000):
        found = pages(process, bucket, limit)
        assert [name for page in found for name in page] == expected
        assert all(len(page) == limit for page in found[:-1])
        assert 0 < len(found[-1]) <= limit


def test_a_listing_shows_committed_tails(world: World) -> None:
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


def test_a_listing_drops_no_tail_that_a_writer_uses(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    keys = [StreamKey(bucket, str(number)) for number in range(9)]
    for key in keys:
        process.create(key)
    process.stores.tails = TailCache(capacity_bytes=3500)
    for key in keys[:3]:
        process.append(key, b"abc")
    assert len(ids(process, bucket)) == 9
    kept = [key for key in keys if process.stores.tails.get(key, world.clock()) is not None]
    assert kept == keys[:3], "as many as fit"


def test_pages_are_the_ids_with_the_prefix_behind_the_cursor(world: World) -> None:
    """Of buckets and of streams alike, wherever the cursor lies: before the prefix, within it, or behind."""
    process = world.process()
    table, bucket = process.stores.table, new_bucket(process)
    ids = [bucket + end for end in ("-a", "-a1", "-b")]
    for each in ids:
        create_bucket(process.stores, each)
        process.create(StreamKey(bucket, each))
        process.create(StreamKey(each, each + "-of-another"))
    listings: list[Callable[..., tuple[list[str], bool]]] = [
        partial(list_bucket_ids, table),
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


# --- what has ended -----------------------------------------------------------------


def test_an_ended_stream_is_404_and_its_name_is_created_again_with_one_call(world: World) -> None:
    """A millisecond later. What stays under its key meanwhile names the incarnation that has ended."""
    process, key = world.process(), a_key()
    incarnation = process.create(key).head.record.incarnation
    delete(process.stores, key)
    assert load_stream(process.stores.table, key) is None
    item = process.stores.table.get(stream_key(key))
    assert item is not None
    assert decode_end_mark(item) == EndMark(world.clock(), incarnation)
    assert process.stores.table.get(bucket_key("v1")) is None, "the plain surface has no bucket and no count"
    world.clock.advance(1)
    process.calls.taken()
    assert process.create(key).is_new
    assert process.calls.taken() == {"PutItem": 1}


def test_a_listing_skips_ended_streams(world: World) -> None:
    process = world.process()
    bucket = new_bucket(process)
    for number in range(40):
        process.create(StreamKey(bucket, f"{number:04d}"))
    for number in range(3, 37):
        delete(process.stores, StreamKey(bucket, f"{number:04d}"))
    assert pages(process, bucket, 2) == [["0000", "0001"], ["0002", "0037"], ["0038", "0039"]]
    for number in (0, 1, 2, 37, 38, 39):
        delete(process.stores, StreamKey(bucket, f"{number:04d}"))
    assert list_records(process.stores.table, bucket, "", "", 2) == ([], False)
