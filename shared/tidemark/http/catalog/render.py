"""From what the use cases return to the models of the answers."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from tidemark.http.catalog import models
from tidemark.http.requests import STREAM_ROOT
from tidemark.log.records import Snapshot, StreamRecord
from tidemark.log.tails import StreamHead
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.listing import ListingRequest
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.buckets import BucketListing
from tidemark.service.list_streams import Listing
from tidemark.service.start_point import StartPoint
from tidemark.service.stats import StreamStats


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


def stats(found: StreamStats) -> models.Stats:
    head, record, tail = found.head, found.head.record, found.head.tail
    return models.Stats(
        stream=stream_path(record.key),
        bucket_id=record.key.bucket,
        stream_id=record.key.stream_id,
        status=_status(head),
        content_type=record.content_type.served,
        tail_offset=render_offset(tail.offset),
        retained_offset=render_offset(record.retained),
        bytes=found.retained_bytes,
        messages=models.MessageCount(count=found.messages, exact=found.messages_exact),
        created_at_ms=record.created_ms,
        last_write_at_ms=head.written_ms,
        expiry=_expiry(found),
        closed_by=_closed_by(tail.closed_by),
        producers=[_producer(state) for state in found.producers],
        producers_complete=found.producers_complete,
        forked_from=_forked_from(record),
        forks=record.references,
        snapshot=_snapshot(record.snapshot),
    )


def _expiry(found: StreamStats) -> models.ExpiryModel | None:
    expiry = found.head.record.expiry
    if found.ends_ms is None:
        return None
    return models.ExpiryModel(
        ttl_seconds=expiry.ttl_seconds, expires_at=expiry.expires_at, ends_at_ms=found.ends_ms
    )


def _closed_by(claim: Claim | None) -> models.ClosedBy | None:
    if claim is None:
        return None
    return models.ClosedBy(id=claim.producer_id, epoch=claim.epoch, seq=claim.seq)


def _producer(state: ProducerState) -> models.Producer:
    return models.Producer(
        id=state.producer_id, epoch=state.epoch, seq=state.seq, offset=render_offset(state.end)
    )


def _forked_from(record: StreamRecord) -> models.ForkedFrom | None:
    if record.fork is None:
        return None
    source = stream_path(record.fork.point.source)
    return models.ForkedFrom(stream=source, offset=render_offset(record.base))


def _snapshot(snapshot: Snapshot | None) -> models.SnapshotModel | None:
    if snapshot is None:
        return None
    return models.SnapshotModel(
        offset=render_offset(snapshot.offset),
        content_type=snapshot.content_type.value,
        bytes=snapshot.size,
        published_at_ms=snapshot.published_ms,
    )


def start_point(found: StartPoint) -> models.StartPointModel:
    return models.StartPointModel(
        offset=render_offset(found.offset), messages=found.messages, complete=found.complete
    )
