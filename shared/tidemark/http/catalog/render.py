"""Turns the results of the use cases into the models of the responses."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

import orjson

from tidemark.http.catalog import models
from tidemark.http.requests import STREAM_ROOT
from tidemark.log.tails import StreamHead
from tidemark.protocol.authorization import Access
from tidemark.protocol.caching import decide_cache_control
from tidemark.protocol.etag import render_etag
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.listing import ListingRequest
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.buckets import BucketListing
from tidemark.service.list_forks import Forks
from tidemark.service.list_streams import Listing
from tidemark.service.start_point import StartPoint
from tidemark.service.stats import StreamStats
from tidemark.service.times import AppendTimes


def stream_path(key: StreamKey) -> str:
    if key.bucket == PLAIN_BUCKET:
        return STREAM_ROOT + quote(key.stream_id)
    return f"/{key.bucket}/{quote(key.stream_id, safe='')}"


def _status(head: StreamHead) -> Literal["Open", "Closed"]:
    return "Closed" if head.tail.closed else "Open"


def streams(request: ListingRequest, found: Listing) -> models.StreamListingModel:
    listed = [
        models.ListedStream(
            stream_id=head.record.key.stream_id,
            status=_status(head),
            content_type=head.record.content_type.served,
            tail_offset=head.tail.offset,
            created_at_ms=head.record.created_ms,
            last_write_at_ms=head.written_ms,
            expires_at_ms=deadline_ms(head.record.expiry, head.touched_ms),
        )
        for head in found.streams
    ]
    return models.StreamListingModel(
        prefix=request.prefix,
        stream_count=len(listed),
        streams=listed,
        next_cursor=found.next_cursor,
        has_more=found.has_more,
    )


def buckets(request: ListingRequest, found: BucketListing) -> models.BucketListingModel:
    listed = [
        models.ListedBucket(bucket_id=record.bucket, streams=record.streams, created_at_ms=record.created_ms)
        for record in found.buckets
    ]
    return models.BucketListingModel(
        prefix=request.prefix,
        bucket_count=len(listed),
        buckets=listed,
        next_cursor=listed[-1].bucket_id if found.has_more else None,
        has_more=found.has_more,
    )


def stats(found: StreamStats, access: Access) -> models.Stats:
    head, record, tail = found.head, found.head.record, found.head.tail
    shown = models.Stats(
        stream=stream_path(record.key),
        bucket_id=record.key.bucket,
        stream_id=record.key.stream_id,
        status=_status(head),
        content_type=record.content_type.served,
        tail_offset=render_offset(tail.offset),
        retained_offset=render_offset(record.retained),
        packed_offset=render_offset(record.packed) if record.packed else None,
        bytes=found.retained_bytes,
        messages=models.MessageCount(count=found.messages, exact=found.messages_exact),
        created_at_ms=record.created_ms,
        last_write_at_ms=head.written_ms,
        producers=[
            models.ListedProducer(
                id=state.producer_id, epoch=state.epoch, seq=state.seq, offset=render_offset(state.end)
            )
            for state in found.producers
        ],
        producers_complete=found.producers_complete,
        forks=record.references,
    )
    if found.ends_ms is not None:
        expiry = record.expiry
        shown.expiry = models.ExpiryModel(
            ttl_seconds=expiry.ttl_seconds, expires_at=expiry.expires_at, ends_at_ms=found.ends_ms
        )
    if tail.closed_by is not None:
        claim = tail.closed_by
        shown.closed_by = models.ClosedBy(id=claim.producer_id, epoch=claim.epoch, seq=claim.seq)
    if record.fork is not None and access.may_read(record.fork.point.source):
        source = stream_path(record.fork.point.source)
        shown.forked_from = models.ForkedFrom(stream=source, offset=render_offset(record.base))
    if record.snapshot is not None:
        snapshot = record.snapshot
        shown.snapshot = models.SnapshotModel(
            offset=render_offset(snapshot.offset),
            content_type=snapshot.content_type.value,
            bytes=snapshot.size,
            published_at_ms=snapshot.published_ms,
        )
    return shown


def forks(found: Forks, access: Access) -> models.ForksModel:
    listed = [
        models.ListedFork(
            stream=stream_path(record.key),
            offset=render_offset(record.base),
            deleted=record.deleted,
            forks=record.references,
            created_at_ms=record.created_ms,
        )
        for record in found.found
        if access.may_read(record.key)
    ]
    return models.ForksModel(
        stream=stream_path(found.source.key),
        fork_count=found.source.references,
        forks=listed,
        complete=found.complete and len(listed) == len(found.found),
    )


def start_point(found: StartPoint) -> models.StartPointModel:
    return models.StartPointModel(
        offset=render_offset(found.offset), messages=found.messages, complete=found.complete
    )


def times(found: AppendTimes) -> bytes:
    """`TimesModel` as JSON. It may have tens of thousands of numbers, too many for a model to look at."""
    shown = {
        "offset": render_offset(found.start),
        "end_offset": render_offset(found.end),
        "times_ms": found.times_ms,
        "messages": found.messages,
        "bytes": found.sizes,
    }
    return orjson.dumps(shown)


def times_headers(found: AppendTimes) -> dict[str, str]:
    """The times between two offsets of one incarnation never change, so a cache may keep them like the page
    itself."""
    has_data = found.end > found.start
    return {
        "Cache-Control": decide_cache_control(
            has_data=has_data, closed=False, from_now=False, is_bound=False
        ),
        "ETag": render_etag(found.incarnation, found.start, found.end, closed=False, crc=found.crc),
    }
