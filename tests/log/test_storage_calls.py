"""Storage calls per operation: they are the bill and the latency.

Every number here is stated in `docs/costs.md` or in `docs/buckets-and-snapshots.md`. A change that makes one
larger is a change of price.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.buckets import key_in_new_bucket, new_bucket, publish
from tests.stack.engines import LocalServices
from tests.support import BYTES, JSON, Process, World, a_key, make_world, table_of
from tidemark.log.read import PAGE_QUERIES
from tidemark.log.records import Batch
from tidemark.log.schema import encode_batch, log_pk
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import RetentionGone
from tidemark.protocol.expiry import FOREVER, Expiry, Retention
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket, list_buckets
from tidemark.service.catalog import list_streams, load_times
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on
from tidemark.service.snapshots import begin_upload, bootstrap, latest_snapshot, read_snapshot

MESSAGE = b"0123456789"
LARGE = bytes(INLINE_BYTES + 1)
Act = Callable[[Process, StreamKey], Any]
#: What is done first, and not counted; what is done then; and its calls.
Case = tuple[Act, Act, dict[str, int]]


def nothing(_process: Process, _key: StreamKey) -> None:
    """The process knows nothing."""


def append(process: Process, key: StreamKey) -> None:
    process.append(key, b"x")


def check(cases: dict[str, Case], name: str, process: Process, key: StreamKey) -> None:
    first, act, calls = cases[name]
    first(process, key)
    process.calls.taken()
    act(process, key)
    assert process.calls.taken() == calls


# --- of a stream of any length -------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(10, id="10 batches"),
        pytest.param(100_000, id="100,000 batches", marks=pytest.mark.slow),
    ],
)
def grown(request: pytest.FixtureRequest, services: LocalServices) -> tuple[World, StreamKey]:
    """In a table of its own: batches as appends would leave them, written without the service for speed."""
    world, length = make_world(services), request.param
    process, key = world.process(), a_key(f"{length}-batches")
    record = process.create(key).head.record
    pk = log_pk(record.key, record.incarnation)
    for first in range(0, length, 25):
        items = []
        for index in range(first, min(first + 25, length)):
            start = index * len(MESSAGE)
            after = Tail(start + len(MESSAGE))
            batch = Batch(start, after, f"a{index}", world.clock(), MESSAGE, lengths=(len(MESSAGE),))
            items.append({"PutRequest": {"Item": encode_batch(pk, batch)}})
        process.dynamodb.call("BatchWriteItem", {"RequestItems": {world.table_name: items}})
    return world, key


def tail_of(process: Process, key: StreamKey) -> int:
    """As another process reads it, so that this one stays cold."""
    name = table_of(process.stores).name
    return load_head(World(name, name).process(clock=process.stores.clock_ms).stores, key).tail.offset


def append_as_a_producer(process: Process, key: StreamKey) -> None:
    append(process, key)
    process.append(key, b"x", claim=("p", 0, 0))
    process.append(key, b"x", claim=("p", 0, 1), seq="a")


# fmt: off
HISTORY: dict[str, Case] = {
    "a cold append": (nothing, append, {"GetItem": 1, "Query": 1, "PutItem": 1}),
    "warm appends": (append, append_as_a_producer, {"PutItem": 3}),
    "a warm read at the tail": (
        lambda p, key: load_head(p.stores, key),
        lambda p, key: read(p.stores, key, tail_of(p, key)), {"GetItem": 1, "Query": 1}),
    # No batch begins at the tail, so the batch before it must prove that it is the tail.
    "a cold read at the tail": (
        nothing, lambda p, key: read(p.stores, key, tail_of(p, key)), {"GetItem": 1, "Query": 2}),
    "a read from now": (nothing, lambda p, key: read(p.stores, key, "now"), {"GetItem": 1, "Query": 1}),
    "a read from now and a poll of a waiting reader": (
        nothing, lambda p, key: read_on(p.stores, read(p.stores, key, "now")), {"GetItem": 1, "Query": 2}),
    "metadata": (nothing, lambda p, key: load_head(p.stores, key), {"GetItem": 1, "Query": 1}),
    "metadata, of a writer": (append, lambda p, key: load_head(p.stores, key), {"GetItem": 1, "Query": 1}),
}
# fmt: on


@pytest.mark.parametrize("name", HISTORY)
def test_an_operation_costs_the_same_at_any_length(grown: tuple[World, StreamKey], name: str) -> None:
    world, key = grown
    check(HISTORY, name, world.process(), key)


def test_a_cold_catch_up_page_costs_the_item_and_at_most_two_queries(grown: tuple[World, StreamKey]) -> None:
    process, key = grown[0].process(), grown[1]
    assert read(process.stores, key, tail_of(process, key) - len(MESSAGE)).page.up_to_date
    calls = process.calls.taken()
    # One more where the offset lies inside a batch: appends of other tests are shorter.
    assert calls in ({"GetItem": 1, "Query": queries} for queries in (1, 2))


def test_a_page_from_the_start_of_a_batch_and_its_times_cost_the_item_and_its_queries(
    grown: tuple[World, StreamKey],
) -> None:
    """A query returns at most 1 MB, with or without the bytes: a page of tiny batches takes several."""
    for ask in (lambda p, key: read(p.stores, key, 50).page, lambda p, key: load_times(p.stores, key, 50)):
        process, key = grown[0].process(), grown[1]
        found = ask(process, key)
        queries = 1 if found.end == tail_of(process, key) else PAGE_QUERIES
        assert process.calls.taken() == {"GetItem": 1, "Query": queries}
        assert found.end > 50


# --- of a new stream -----------------------------------------------------------------------------


def create(process: Process, key: StreamKey) -> None:
    process.create(key, content_type=BYTES)


def create_and_append(process: Process, key: StreamKey) -> None:
    create(process, key)
    append(process, key)


def overtaken(times: int) -> Act:
    """Another process appends so often after this one."""

    def act(process: Process, key: StreamKey) -> None:
        create_and_append(process, key)
        name = table_of(process.stores).name
        rival = World(name, name).process(clock=process.stores.clock_ms)
        for _ in range(times):
            append(rival, key)

    return act


def create_and_claim(process: Process, key: StreamKey) -> None:
    create(process, key)
    process.append(key, b"x", claim=("p", 0, 0))


# fmt: off
NEW: dict[str, Case] = {
    "a creation": (nothing, lambda p, key: p.create(key), {"PutItem": 1}),
    "a creation with a body": (nothing, lambda p, key: p.create(key, body=b"x"), {"TransactWriteItems": 1}),
    "a creation that expires": (
        nothing, lambda p, key: p.create(key, expiry=Expiry(ttl_seconds=60)), {"TransactWriteItems": 1}),
    # The entry in the janitor's queue removes the object if the stream is never created.
    "a creation with a large body": (
        nothing, lambda p, key: p.create(key, body=LARGE),
        {"PutItem": 1, "PutObject": 1, "TransactWriteItems": 1}),
    # After the append that found no stream, for a GetItem.
    "a creation by an append": (
        nothing, lambda p, key: p.create_by_append(key, b"x", claim=("p", 0, 0)), {"TransactWriteItems": 1}),
    "a creation by an append to an existing stream": (
        create, lambda p, key: p.create_by_append(key, b"x"), {"TransactWriteItems": 1, "Query": 1}),
    "a repeated creation": (create, lambda p, key: p.create(key), {"PutItem": 1, "Query": 1}),
    "a close": (create, lambda p, key: p.append(key, close=True, claim=("p", 0, 0)), {"PutItem": 1}),
    "an append that closes": (
        create, lambda p, key: p.append(key, b"x", close=True, claim=("p", 0, 0)), {"PutItem": 1}),
    "a close of what may be worth a pack, which is asked for": (
        lambda p, key: p.create(key, body=bytes(p.stores.packing.min_batches)),
        lambda p, key: p.append(key, close=True), {"PutItem": 2}),
    "a lost race": (overtaken(1), append, {"PutItem": 2}),
    # The first refused write returns the winner's tail, which others have passed; then the tail is read.
    "a race lost by several batches": (overtaken(3), append, {"PutItem": 3, "Query": 1}),
    # Two small reads prove it, and there is no write.
    "a duplicate": (
        create_and_claim, lambda p, key: p.append(key, b"x", claim=("p", 0, 0)), {"GetItem": 1, "Query": 1}),
    "the largest body in the table": (
        create, lambda p, key: p.append(key, bytes(INLINE_BYTES)), {"PutItem": 1}),
    "a large body": (create, lambda p, key: p.append(key, LARGE), {"PutObject": 1, "PutItem": 1}),
    "a deletion": (
        create_and_append, lambda p, key: delete(p.stores, key),
        {"GetItem": 1, "Query": 1, "TransactWriteItems": 1}),
}
# fmt: on


@pytest.mark.parametrize("name", NEW)
def test_an_operation_on_a_new_stream_costs(world: World, name: str) -> None:
    check(NEW, name, world.process(), a_key())


def test_a_large_body_that_loses_races_is_uploaded_once(world: World) -> None:
    process, key = world.process(), a_key()
    overtaken(3)(process, key)
    process.calls.taken()
    process.append(key, LARGE)
    assert process.calls.taken()["PutObject"] == 1


def test_bytes_that_a_process_has_seen_are_not_read_again(world: World) -> None:
    """A page from memory costs the one read that proves that the stream still exists."""
    process, key = world.process(), a_key()
    process.create(key)
    for _ in range(3):
        process.append(key, bytes(2_000_000))
    process.calls.taken()
    first = read(process.stores, key, 0)
    assert (first.page.end, first.page.up_to_date) == (4_000_000, False)
    assert process.calls.taken() == {"GetItem": 1}
    last = read(process.stores, key, first.page.end)
    assert (len(last.data), last.page.up_to_date) == (2_000_000, True)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_reads_renew_a_sliding_expiry_at_most_once_per_twentieth(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, expiry=Expiry(ttl_seconds=1000), body=b"x")
    process.calls.taken()
    for _ in range(60):
        world.clock.advance(10_000)
        read(process.stores, key, 0)
    assert process.calls.taken()["UpdateItem"] == 12


def test_an_append_renews_a_sliding_expiry_without_another_call(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, expiry=Expiry(ttl_seconds=10))
    process.calls.taken()
    for _ in range(5):
        world.clock.advance(9_000)
        process.append(key, b"x")
    assert process.calls.taken() == {"PutItem": 5}


# --- of snapshots --------------------------------------------------------------------------------


def publishes(offset: int) -> Act:
    return lambda process, key: publish(process, key, offset)


# fmt: off
SNAPSHOTS: dict[str, Case] = {
    # Also if there is a snapshot already, and however old the offset is.
    **{f"a publish at {offset}": (
        first, publishes(offset), {"GetItem": 1, "Query": 1, "PutObject": 1, "TransactWriteItems": 1})
       for offset, first in ((0, nothing), (70, nothing), (100, publishes(100)), (200, Process.read_all))},
    "a read of a snapshot": (
        publishes(100), lambda p, key: read_snapshot(p.stores, key, 100),
        {"GetItem": 1, "Query": 1, "GetObject": 1}),
    "where the latest snapshot is": (
        publishes(100), lambda p, key: latest_snapshot(p.stores, key), {"GetItem": 1, "Query": 1}),
    "bootstrap without a snapshot": (
        nothing, lambda p, key: bootstrap(p.stores, key), {"GetItem": 1, "Query": 1}),
    # First the stream's item; then the blob and the pages at the same time.
    "bootstrap": (
        publishes(100), lambda p, key: bootstrap(p.stores, key), {"GetItem": 1, "Query": 1, "GetObject": 1}),
    "the URL of an upload": (
        nothing, lambda p, key: begin_upload(p.stores, key, 100), {"GetItem": 1, "Query": 1, "PutItem": 1}),
    "a cold append in a bucket": (nothing, append, {"GetItem": 1, "Query": 1, "PutItem": 1}),
    "a warm append in a bucket": (append, append, {"PutItem": 1}),
}
# fmt: on


@pytest.fixture
def stream(world: World) -> tuple[Process, StreamKey]:
    """Twenty batches in a bucket, and a process that knows none of them."""
    writer = world.process()
    key = key_in_new_bucket(writer)
    writer.create(key)
    for _ in range(20):
        writer.append(key, MESSAGE)
    return world.process(), key


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_an_operation_on_a_stream_in_a_bucket_costs(stream: tuple[Process, StreamKey], name: str) -> None:
    check(SNAPSHOTS, name, *stream)


def test_bootstrap_costs_one_call_more_for_each_body_in_s3(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key)
    for _ in range(3):
        process.append(key, LARGE)
    reader = world.process()
    assert len(bootstrap(reader.stores, key).parts) == 4
    assert reader.calls.taken() == {"GetItem": 1, "Query": 1, "GetObject": 3}


def test_a_refused_read_below_a_snapshot_costs_as_a_read(stream: tuple[Process, StreamKey]) -> None:
    process, key = stream
    publish(process, key, 100)
    append(process, key)
    process.calls.taken()
    with pytest.raises(RetentionGone):
        read(process.stores, key, 50)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}, "at once, as the process knows the stream"


# --- of buckets ----------------------------------------------------------------------------------


def test_a_creation_in_a_bucket_is_one_write_and_two_where_it_gets_the_buckets_limits(world: World) -> None:
    process = world.process()
    for bucket, limits, calls in (("plain", FOREVER, 1), ("limited", Retention(seconds=3600), 2)):
        create_bucket(process.stores, bucket, limits)
        process.calls.taken()
        process.create(StreamKey(bucket, "a"))
        assert process.calls.taken() == {"TransactWriteItems": calls}
        process.create(StreamKey(bucket, "b"), retention=Retention(seconds=60))
        assert process.calls.taken() == {"TransactWriteItems": 1}


def test_a_creation_in_a_compacting_bucket_is_two_writes_where_it_gets_the_buckets_compaction(
    world: World,
) -> None:
    process = world.process()
    create_bucket(process.stores, "compacting", compaction=Compaction())
    process.calls.taken()
    for name, content_type, own, calls in (
        ("named", JSON, Compaction(key="/id"), 1),
        ("bytes", BYTES, None, 1),
        ("json", JSON, None, 2),
    ):
        process.create(StreamKey("compacting", name), content_type=content_type, compaction=own)
        assert process.calls.taken() == {"TransactWriteItems": calls}


@pytest.mark.parametrize("streams", [3, 30])
@pytest.mark.parametrize("content_type", [BYTES, JSON], ids=["bytes", "JSON"])
def test_a_listing_costs_a_page_and_each_tail_that_is_not_known_and_still_there(
    world: World, streams: int, content_type: object
) -> None:
    """The bucket, a page of items, and the tail of each listed stream; later one call for a hundred tails.
    The stream that only shows that there is more costs nothing."""
    process, lister = world.process(), world.process()
    bucket, expiry = new_bucket(process), Expiry(ttl_seconds=60)
    for index in range(streams):
        process.create(StreamKey(bucket, str(index)), content_type=content_type, expiry=expiry)
    lister.calls.taken()
    assert list_streams(lister.stores, bucket, ListingRequest(limit=2)).has_more
    assert lister.calls.taken() == {"GetItem": 1, "Query": 3}
    assert len(list_streams(lister.stores, bucket, ListingRequest()).streams) == streams
    assert lister.calls.taken() == {"GetItem": 1, "Query": streams - 1, "BatchGetItem": 1}
    process.append(StreamKey(bucket, "1"), b"[1]", content_type=content_type)
    list_streams(lister.stores, bucket, ListingRequest())
    assert lister.calls.taken() == {"GetItem": 1, "Query": 2, "BatchGetItem": 1}


def test_a_page_of_a_listing_ends_where_its_tails_would_cost_too_much(world: World) -> None:
    """Each tail is a query of DynamoDB. The next page begins behind the last listed stream."""
    process, lister = world.process(), world.process()
    bucket, names = new_bucket(process), [f"{number:03}" for number in range(103)]
    for name in names:
        process.create(StreamKey(bucket, name))
    lister.calls.taken()
    first = list_streams(lister.stores, bucket, ListingRequest(limit=1_000))
    assert lister.calls.taken() == {"GetItem": 1, "Query": 101}
    assert (len(first.streams), first.has_more) == (100, True)
    rest = list_streams(lister.stores, bucket, ListingRequest(after=first.next_cursor or "", limit=1_000))
    assert lister.calls.taken() == {"GetItem": 1, "Query": 4}
    assert [head.record.key.stream_id for head in (*first.streams, *rest.streams)] == names
    assert not rest.has_more


def test_a_page_of_buckets_ends_too(world: World) -> None:
    process = world.process()
    made = sorted(new_bucket(process) for _ in range(102))
    process.calls.taken()
    page = list_buckets(process.stores, ListingRequest(limit=1_000))
    assert process.calls.taken() == {"Query": 1, "GetItem": 101}
    assert ([each.bucket for each in page.buckets], page.has_more) == (made[:100], True)


def test_bucket_operations_cost_the_same_for_any_number_of_streams(world: World) -> None:
    """The item twice, and the overdue entries in eight shards."""
    process = world.process()
    bucket = create_bucket(process.stores, "calls").bucket
    assert process.calls.taken() == {"TransactWriteItems": 1}
    for index in range(5):
        process.create(StreamKey(bucket, str(index)))
    assert process.calls.taken() == {"TransactWriteItems": 5}
    describe_bucket(process.stores, bucket)
    assert process.calls.taken() == {"GetItem": 2, "Query": 8}
    for index in range(5):
        delete(process.stores, StreamKey(bucket, str(index)))
    process.calls.taken()
    world.clock.advance(1)
    delete_bucket(process.stores, bucket)
    assert process.calls.taken() == {"TransactWriteItems": 1}, "end marks take both places"
