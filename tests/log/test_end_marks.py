"""End marks: what stays under the key of a stream or a bucket that has ended, and who reads it."""

from __future__ import annotations

from tests.buckets import new_bucket
from tests.support import Process, World, a_key
from tidemark.log.buckets import list_records
from tidemark.log.lifecycle import load_stream
from tidemark.log.records import EndMark
from tidemark.log.schema import decode_end_mark, stream_key
from tidemark.protocol.bucket import ListingRequest
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.catalog import list_streams
from tidemark.service.delete import delete


def test_an_ended_stream_is_404_and_its_end_mark_names_the_incarnation(world: World) -> None:
    process, key = world.process(), a_key()
    incarnation = process.create(key).head.record.incarnation
    delete(process.stores, key)
    assert load_stream(process.stores.table, key) is None
    item = process.stores.table.get(stream_key(key))
    assert item is not None
    assert decode_end_mark(item) == EndMark(world.clock(), incarnation)


def bucket_of(process: Process, count: int, deleted: range) -> str:
    bucket = new_bucket(process)
    for number in range(count):
        process.create(StreamKey(bucket, f"{number:04d}"))
    for number in deleted:
        delete(process.stores, StreamKey(bucket, f"{number:04d}"))
    return bucket


def test_a_listing_skips_ended_streams(world: World) -> None:
    """However many lie between two live ones: a page is full, and the next one begins after it."""
    process = world.process()
    bucket = bucket_of(process, 40, range(3, 37))
    listed: list[str] = []
    after, more = "", True
    while more:
        listing = list_streams(process.stores, bucket, ListingRequest(limit=2, after=after))
        listed += [known.record.key.stream_id for known in listing.streams]
        assert len(listing.streams) == 2
        after, more = listing.next_cursor or "", listing.has_more
    assert listed == ["0000", "0001", "0002", "0037", "0038", "0039"]


def test_a_bucket_with_only_ended_streams_lists_none(world: World) -> None:
    process = world.process()
    bucket = bucket_of(process, 7, range(7))
    assert list_records(process.stores.table, bucket, "", "", 2) == ([], False)


def test_a_name_is_created_again_with_one_call_a_millisecond_after_its_end(world: World) -> None:
    process, key = world.process(), a_key()
    process.create(key)
    delete(process.stores, key)
    world.clock.advance(1)
    process.calls.taken()
    assert process.create(key).is_new
    assert process.calls.taken() == {"PutItem": 1}
