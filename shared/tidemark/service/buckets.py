"""Buckets (extensions §1): create, describe, list, delete."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidemark.log import buckets
from tidemark.log.append import TailMoved
from tidemark.log.buckets import DatedTooEarly
from tidemark.log.due import overdue
from tidemark.log.lifecycle import StreamChanged
from tidemark.log.records import BucketRecord, DueKind, EndMark
from tidemark.log.schema import COMPACTED_EPOCH, DUE_SHARDS
from tidemark.log.tails import StreamHead
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import BucketNotEmpty, BucketNotFound, Busy
from tidemark.protocol.expiry import FOREVER, Retention
from tidemark.protocol.stream_key import ListingRequest
from tidemark.service.delete import end
from tidemark.service.load import load_due_head
from tidemark.service.stores import Stores


def overdue_streams(stores: Stores, bucket: str) -> list[StreamHead]:
    now_ms = stores.clock_ms()
    shards = stores.concurrency.each(partial(overdue, stores.table, now_ms), range(DUE_SHARDS))
    entries = [
        due for shard in shards for due in shard if due.kind is DueKind.EXPIRE and due.key.bucket == bucket
    ]
    found = stores.concurrency.each(partial(load_due_head, stores), entries)
    return [head for head in found if head is not None and head.is_expired(now_ms)]


_MAX_TRIES: Final = 5


def create_bucket(
    stores: Stores, bucket: str, retention: Retention = FOREVER, compaction: Compaction | None = None
) -> BucketRecord:
    """`retention` and `compaction` are the defaults of its streams. Raises BucketExists. An older release may
    have created the bucket without an entry in the list of buckets; the entry is then added."""
    if compaction:
        stores.check_format(COMPACTED_EPOCH)
    created_ms = stores.clock_ms()
    for _ in range(_MAX_TRIES):
        mark = stores.new_id()
        record = BucketRecord(bucket, created_ms, mark, retention=retention, compaction=compaction)
        try:
            buckets.create_bucket(stores.table, record)
        except DatedTooEarly as changed:
            created_ms = changed.changed_ms + 1
        else:
            return record
    raise Busy


def describe_bucket(stores: Stores, bucket: str) -> BucketRecord:
    """The bucket with its count of streams. Raises BucketNotFound.

    The item counts an expired stream until it is ended, so the overdue streams are subtracted here. The count
    is read before and after the search, so that a stream that is ended meanwhile is not subtracted twice.
    """
    record = buckets.load_bucket(stores.table, bucket)
    alive = record.streams
    for _ in range(_MAX_TRIES):
        before = record
        expired = overdue_streams(stores, bucket)
        record = buckets.load_bucket(stores.table, bucket)
        alive = max(0, record.streams - len(expired))
        if not expired or record == before:
            break
    return replace(record, streams=alive)


@dataclass(frozen=True, slots=True)
class BucketListing:
    """A page of buckets in the order of their ids."""

    buckets: list[BucketRecord]
    has_more: bool


def list_buckets(stores: Stores, request: ListingRequest) -> BucketListing:
    """A page of buckets. The counts in their items include expired streams that are not ended yet."""

    def load(bucket: str) -> BucketRecord | None:
        with suppress(BucketNotFound):
            return buckets.load_bucket(stores.table, bucket)
        return None

    found: list[BucketRecord] = []
    after, more, limit = request.after, True, min(request.limit, stores.listed_at_once)
    while more and len(found) <= limit:
        # An additional bucket shows whether there are more.
        wanted = limit + 1 - len(found)
        ids, more = buckets.list_bucket_ids(stores.table, request.prefix, after, wanted)
        found += [record for record in stores.concurrency.each(load, ids) if record is not None]
        after = ids[-1] if ids else after
    return BucketListing(found[:limit], has_more=len(found) > limit)


def delete_bucket(stores: Stores, bucket: str) -> None:
    """Delete an empty bucket. Expired streams that the janitor has not ended yet are ended here. Raises
    BucketNotFound, BucketNotEmpty."""
    try:
        _delete(stores, bucket)
    except BucketNotEmpty:
        expired = overdue_streams(stores, bucket)
        if not expired:
            raise
        for head in expired:
            with suppress(TailMoved, StreamChanged):
                end(stores, head, stores.new_id())
        _delete(stores, bucket)


def _delete(stores: Stores, bucket: str) -> None:
    ended_ms, deletion_id = stores.clock_ms(), stores.new_id()
    for _ in range(_MAX_TRIES):
        try:
            return buckets.end_bucket(stores.table, bucket, EndMark(ended_ms, deletion_id))
        except DatedTooEarly as changed:
            ended_ms = changed.changed_ms + 1
    raise Busy
