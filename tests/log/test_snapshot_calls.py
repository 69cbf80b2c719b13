"""Storage calls of buckets and snapshots: they are the bill and the latency."""

from __future__ import annotations

import pytest

from tests.buckets import key_in_new_bucket, new_bucket, publish
from tests.support import BYTES, JSON, Process, World
from tidemark.protocol.bucket import ListingRequest
from tidemark.protocol.errors import RetentionGone
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES
from tidemark.service.bootstrap import bootstrap
from tidemark.service.buckets import create_bucket, delete_bucket, describe_bucket
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.snapshots import begin_upload, latest_snapshot, read_snapshot


@pytest.fixture
def stream(world: World) -> tuple[Process, StreamKey]:
    """Twenty batches, and a process that knows none of them."""
    writer = world.process()
    key = key_in_new_bucket(writer)
    writer.create(key)
    for _ in range(20):
        writer.append(key, b"0123456789")
    process = world.process()
    process.calls.taken()
    return process, key


@pytest.mark.parametrize("warm", [False, True])
def test_a_publish_costs_three_calls_and_the_blob(stream: tuple[Process, StreamKey], warm: bool) -> None:
    """Also if there is a snapshot already, and however old the offset is."""
    process, key = stream
    if warm:
        process.read_all(key)
        process.calls.taken()
    for offset in (0, 70, 70, 200):
        publish(process, key, offset)
        taken = process.calls.taken()
        assert taken == {"GetItem": 1, "Query": 1, "PutObject": 1, "TransactWriteItems": 1}


def test_reading_a_snapshot_costs_two_calls_and_the_blob(stream: tuple[Process, StreamKey]) -> None:
    process, key = stream
    publish(process, key, 100)
    process.calls.taken()
    read_snapshot(process.stores, key, 100)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "GetObject": 1}
    latest_snapshot(process.stores, key)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}


def test_bootstrap_costs_the_streams_item_the_blob_and_the_pages(stream: tuple[Process, StreamKey]) -> None:
    """First the stream's item; then the blob and the pages at the same time."""
    process, key = stream
    bootstrap(process.stores, key)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}
    publish(process, key, 100)
    process.calls.taken()
    bootstrap(process.stores, key)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "GetObject": 1}


def test_bootstrap_costs_one_call_more_for_each_body_in_s3(world: World) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    for _ in range(3):
        process.append(key, bytes(INLINE_BYTES + 1))
    reader = world.process()
    reader.calls.taken()
    assert len(bootstrap(reader.stores, key).parts) == 4
    assert reader.calls.taken() == {"GetItem": 1, "Query": 1, "GetObject": 3}


@pytest.mark.parametrize("streams", [3, 30])
@pytest.mark.parametrize("content_type", [BYTES, JSON], ids=["bytes", "JSON"])
def test_a_listing_costs_a_page_and_each_listed_tail(
    world: World, streams: int, content_type: object
) -> None:
    """The bucket, a page of items, and the tail of each listed stream. The stream that only shows that there
    is more costs nothing."""
    process = world.process()
    bucket = new_bucket(process)
    for index in range(streams):
        process.create(
            StreamKey(bucket, str(index)), content_type=content_type, expiry=Expiry(ttl_seconds=60)
        )
    process.calls.taken()
    assert len(list_streams(process.stores, bucket, ListingRequest()).streams) == streams
    assert process.calls.taken() == {"GetItem": 1, "Query": streams + 1}
    assert list_streams(process.stores, bucket, ListingRequest(limit=2)).has_more
    assert process.calls.taken() == {"GetItem": 1, "Query": 3}


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


def test_appends_and_reads_in_a_bucket_cost_as_on_the_plain_surface(
    stream: tuple[Process, StreamKey],
) -> None:
    process, key = stream
    process.append(key, b"x")
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "PutItem": 1}
    process.append(key, b"x")
    assert process.calls.taken() == {"PutItem": 1}
    publish(process, key, 100)
    process.append(key, b"x")
    process.calls.taken()
    with pytest.raises(RetentionGone):
        read(process.stores, key, 50)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1}, "at once, as the process knows the stream"


def test_presigning_an_upload_costs_no_call(stream: tuple[Process, StreamKey]) -> None:
    process, key = stream
    begin_upload(process.stores, key, 100)
    assert process.calls.taken() == {"GetItem": 1, "Query": 1, "PutItem": 1}
