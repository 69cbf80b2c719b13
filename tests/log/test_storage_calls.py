"""Storage calls per operation: they are the bill and the latency.

Every number here is stated in `docs/costs.md`. A change that makes one larger is a change
of price.
"""

from __future__ import annotations

import pytest

from tests.support import JSON, Process, World, a_key, make_world, table_of
from tidemark.local.engines import LocalServices
from tidemark.log.append import batch_item
from tidemark.log.read import PAGE_QUERIES
from tidemark.log.records import Batch
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.retention import FOREVER, Retention
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import create_bucket
from tidemark.service.catalog import load_times
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on

SHORT, LONG = 10, 100_000
MESSAGE = b"0123456789"


LENGTHS = [
    pytest.param(SHORT, id="10 batches"),
    pytest.param(LONG, id="100,000 batches", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=LENGTHS)
def grown(request: pytest.FixtureRequest, services: LocalServices) -> tuple[World, StreamKey]:
    """A stream of ten batches or of a hundred thousand, in a table of its own."""
    world = make_world(services)
    return world, _grow(world, request.param)


def _grow(world: World, length: int) -> StreamKey:
    """Batches as appends would leave them, written without the service for speed."""
    process, key = world.process(), a_key(f"{length}-batches")
    record = process.create(key).head.record
    for first in range(0, length, 25):
        items = []
        for index in range(first, min(first + 25, length)):
            start = index * len(MESSAGE)
            after = Tail(start + len(MESSAGE))
            batch = Batch(start, after, f"a{index}", world.clock(), MESSAGE, lengths=(len(MESSAGE),))
            items.append({"PutRequest": {"Item": batch_item(record, batch)}})
        process.dynamodb.call("BatchWriteItem", {"RequestItems": {world.table_name: items}})
    return key


@pytest.fixture
def history(grown: tuple[World, StreamKey]) -> tuple[Process, StreamKey]:
    """The stream, and a process that knows nothing of it yet."""
    world, key = grown
    return world.process(), key


def test_a_cold_append_reads_the_item_and_the_tail_and_writes_once(
    history: tuple[Process, StreamKey],
) -> None:
    process, key = history
    process.append(key, b"x")
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "PutItem": 1}


def test_a_warm_append_costs_one_call(history: tuple[Process, StreamKey]) -> None:
    process, key = history
    process.append(key, b"x")
    process.calls.taken()
    process.append(key, b"x")
    process.append(key, b"x", claim=("p", 0, 0))
    process.append(key, b"x", claim=("p", 0, 1), seq="a")
    assert process.calls.taken() == {"PutItem": 3}


@pytest.mark.parametrize("asked", [{"body": b"x"}, {}], ids=["append and close", "close"])
def test_a_close_is_one_write(world: World, asked: dict[str, bytes]) -> None:
    process, key = world.process(), a_key()
    process.create(key)
    process.calls.taken()
    process.append(key, **asked, close=True, claim=("p", 0, 0))
    assert process.calls.taken() == {"PutItem": 1}


def test_a_close_of_a_stream_that_may_be_worth_a_pack_also_asks_for_it(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, body=bytes(process.stores.packing.min_batches))
    process.calls.taken()
    process.append(key, close=True)
    assert process.calls.taken() == {"PutItem": 2}


def test_a_cold_catch_up_page_costs_the_item_and_at_most_two_queries(
    history: tuple[Process, StreamKey],
) -> None:
    process, key = history
    tail = _tail(process, key)
    assert read(process.stores, key, tail - len(MESSAGE)).page.up_to_date
    calls = process.calls.taken()
    assert calls.pop("GetItem") == 1
    # One more where the offset lies inside a batch: appends of other tests are shorter.
    assert calls.pop("Query") <= 2
    assert not calls


def test_a_catch_up_page_from_the_start_of_a_batch_costs_the_item_and_its_queries(
    history: tuple[Process, StreamKey],
) -> None:
    process, key = history
    reading = read(process.stores, key, 5 * len(MESSAGE))
    # A query returns at most 1 MB: a page of many tiny batches takes several.
    queries = 1 if reading.page.up_to_date else PAGE_QUERIES
    assert process.calls.taken() == {"GetItem": 1, "Query": queries}


def test_the_times_of_a_page_cost_the_calls_of_the_page(history: tuple[Process, StreamKey]) -> None:
    """DynamoDB reads a megabyte of items for a query, whether their bytes are asked for or not."""
    process, key = history
    found = load_times(process.stores, key, 5 * len(MESSAGE))
    queries = 1 if found.end == _tail(process, key) else PAGE_QUERIES
    assert process.calls.taken() == {"GetItem": 1, "Query": queries}
    assert sum(found.sizes) == found.end - found.start > 0


def test_a_warm_read_at_the_tail_costs_the_item_and_one_query(history: tuple[Process, StreamKey]) -> None:
    process, key = history
    tail = load_head(process.stores, key).tail.offset
    process.calls.taken()
    assert read(process.stores, key, tail).page.up_to_date
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_a_cold_read_at_the_tail_costs_one_query_more(history: tuple[Process, StreamKey]) -> None:
    """No batch begins at the tail, so the batch before it must prove that it is the tail."""
    process, key = history
    tail = _tail(process, key)
    assert read(process.stores, key, tail).page.up_to_date
    assert process.calls.taken() == {"GetItem": 1, "Query": 2}


def test_a_read_from_now_costs_the_item_and_one_query(history: tuple[Process, StreamKey]) -> None:
    process, key = history
    read(process.stores, key, "now")
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_a_poll_of_a_waiting_reader_costs_one_query(history: tuple[Process, StreamKey]) -> None:
    process, key = history
    reading = read(process.stores, key, "now")
    process.calls.taken()
    read_on(process.stores, reading)
    assert process.calls.taken() == {"Query": 1}


@pytest.mark.parametrize("warm", [False, True])
def test_metadata_cost_the_item_and_one_query(history: tuple[Process, StreamKey], warm: bool) -> None:
    process, key = history
    if warm:
        process.append(key, b"x")
        process.calls.taken()
    load_head(process.stores, key)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_a_lost_race_costs_one_call(world: World) -> None:
    process, rival, key = world.process(), world.process(), a_key()
    process.create(key)
    process.append(key, b"x")
    rival.append(key, b"y")
    process.calls.taken()
    process.append(key, b"z")
    assert process.calls.taken() == {"PutItem": 2}


def test_a_race_lost_by_several_batches_costs_one_more_read(world: World) -> None:
    """The first refused write returns the winner's tail, which others have passed; then the tail is read."""
    process, rival, key = world.process(), world.process(), a_key()
    process.create(key)
    process.append(key, b"x")
    for _ in range(3):
        rival.append(key, b"y")
    process.calls.taken()
    process.append(key, b"z")
    assert process.calls.taken() == {"PutItem": 3, "Query": 1}


def test_a_refusal_is_decided_on_fresh_state(world: World) -> None:
    """A duplicate costs the two small reads that prove it, and no write."""
    process, key = world.process(), a_key()
    process.create(key)
    process.append(key, b"x", claim=("p", 0, 0))
    process.calls.taken()
    process.append(key, b"x", claim=("p", 0, 0))
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_a_creation_is_one_write(world: World) -> None:
    process = world.process()
    process.create(a_key())
    assert process.calls.taken() == {"PutItem": 1}
    process.create(a_key(), body=b"x")
    assert process.calls.taken() == {"TransactWriteItems": 1}
    process.create(a_key(), expiry=Expiry(ttl_seconds=60))
    assert process.calls.taken() == {"TransactWriteItems": 1}


def test_a_creation_in_a_bucket_is_one_write_and_two_where_it_gets_the_buckets_limits(world: World) -> None:
    process = world.process()
    for bucket, limits, calls in (("plain", FOREVER, 1), ("limited", Retention(seconds=3600), 2)):
        create_bucket(process.stores, bucket, limits)
        process.calls.taken()
        process.create(StreamKey(bucket, "a"))
        assert process.calls.taken() == {"TransactWriteItems": calls}
        process.create(StreamKey(bucket, "b"), retention=Retention(seconds=60))
        assert process.calls.taken() == {"TransactWriteItems": 1}


def test_a_creation_with_a_large_body_costs_an_entry_the_object_and_the_stream(world: World) -> None:
    """The entry in the janitor's queue removes the object if the stream is never created."""
    process = world.process()
    process.create(a_key(), body=bytes(INLINE_BYTES + 1))
    assert process.calls.taken() == {"PutItem": 1, "PutObject": 1, "TransactWriteItems": 1}


def test_a_repeated_creation_costs_one_refused_write_and_a_read_of_the_tail(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, content_type=JSON)
    process.calls.taken()
    assert not process.create(key, content_type=JSON).is_new
    assert process.calls.taken() == {"PutItem": 1, "Query": 1}


def test_a_deletion_costs_the_item_the_tail_and_one_transaction(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key, body=b"x")
    process.calls.taken()
    delete(process.stores, key)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "TransactWriteItems": 1}


def test_large_bodies_cost_one_call_to_s3_each_way(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key)
    process.calls.taken()
    process.append(key, bytes(INLINE_BYTES))
    assert process.calls.taken() == {"PutItem": 1}
    process.append(key, bytes(INLINE_BYTES + 1))
    assert process.calls.taken() == {"PutObject": 1, "PutItem": 1}
    reader = world.process()
    read(reader.stores, key, INLINE_BYTES)
    assert reader.calls.taken() == {"GetItem": 1, "Query": 1, "GetObject": 1}


def test_a_large_body_that_loses_races_is_uploaded_once(world: World) -> None:
    process, rival, key = world.process(), world.process(), a_key()
    process.create(key)
    for _ in range(3):
        rival.append(key, b"y")
    process.calls.taken()
    process.append(key, bytes(INLINE_BYTES + 1))
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


def _tail(process: Process, key: StreamKey) -> int:
    """The tail as another process reads it, so that this one stays cold."""
    name = table_of(process.stores).name
    other = World(name, name).process(clock=process.stores.clock_ms)
    return load_head(other.stores, key).tail.offset
