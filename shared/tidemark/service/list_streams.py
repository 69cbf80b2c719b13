"""Listing the streams of a bucket (extensions §1.4) or of the plain surface, with their committed tails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.log.buckets import list_records, load_bucket
from tidemark.log.read import load_last
from tidemark.log.records import StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.tails import StreamHead
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.listing import ListingRequest
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.load import head_from
from tidemark.service.stores import Stores

#: Decoding this many items takes a few milliseconds, for which an event loop may be held.
AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of streams in the order of their ids' bytes in UTF-8."""

    streams: list[StreamHead]
    has_more: bool

    @property
    def next_cursor(self) -> str | None:
        return self.streams[-1].record.key.stream_id if self.has_more else None


def list_streams(stores: Stores, bucket: str, request: ListingRequest) -> Listing:
    """Raises BucketNotFound; the plain surface is always there. Streams that have expired are not listed.

    A stream's place is its id alone, so what is created or ended meanwhile moves no other one.
    """
    if bucket != PLAIN_BUCKET:
        load_bucket(stores.table, bucket)
    found: list[StreamHead] = []
    after, more = request.after, True
    while more:
        left = min(request.limit - len(found), AT_ONCE)
        # One more than are wanted, to see whether there is one.
        records, more = list_records(stores.table, bucket, request.prefix, after, left + 1)
        wanted, beyond = records[:left], records[left:]
        found += _load_live(stores, wanted)
        if len(found) < request.limit:
            more, beyond = more or bool(beyond), []
        elif any(_exists(stores, record) for record in beyond):
            return Listing(found, has_more=True)
        after = max([after, *(record.key.stream_id for record in (*wanted, *beyond))])
    return Listing(found, has_more=False)


def _load_live(stores: Stores, records: list[StreamRecord]) -> list[StreamHead]:
    """The streams that exist, with their current tails."""
    now_ms = stores.clock_ms()

    def load(record: StreamRecord) -> StreamHead | None:
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        head = head_from(record, last, now_ms)
        has_ended = record.deleted or (last is not None and last.tombstone)
        return None if has_ended or head.is_expired(now_ms) else head

    return [head for head in stores.concurrency.each(load, records) if head is not None]


def _exists(stores: Stores, record: StreamRecord) -> bool:
    """The item alone says so, unless a write may have renewed it."""
    if record.deleted:
        return False
    if not is_expired(record.expiry, record.used_ms, stores.clock_ms()):
        return True
    return record.expiry.ttl_seconds is not None and bool(_load_live(stores, [record]))
