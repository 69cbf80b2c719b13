"""The catalog: listings of streams (extensions §1.4) and forks, a stream's statistics, and when messages were
appended.

The catalog serves people and monitors, never a writer. No function here reads a whole log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from tidemark.log.buckets import list_records, load_bucket
from tidemark.log.read import Page, load_last, logs_written_at
from tidemark.log.records import Batch, Pack, StreamRecord, Tombstone
from tidemark.log.schema import BOUNDARY_ATTRIBUTES, decode_entry, decode_producer, log_pk, producer_pk
from tidemark.log.tails import StreamHead
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.offset import PageStart, render_offset
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import PLAIN_BUCKET, ListingRequest, StreamKey
from tidemark.service.load import head_from, last_used_ms, load_head
from tidemark.service.read import forgotten, load_page
from tidemark.service.start_point import batches_back
from tidemark.service.stores import Stores

#: Items that are decoded at once: a few milliseconds, for which an event loop may block.
_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of streams in the order of their ids' bytes in UTF-8."""

    streams: list[StreamHead]
    has_more: bool

    @property
    def next_cursor(self) -> str | None:
        return self.streams[-1].record.key.stream_id if self.has_more else None


def list_streams(stores: Stores, bucket: str, request: ListingRequest) -> Listing:
    """List streams, without expired ones. Raises BucketNotFound, never for the plain surface.

    The id alone is a stream's place, so streams that are created or ended meanwhile do not move others.
    """
    if bucket != PLAIN_BUCKET:
        load_bucket(stores.table, bucket)
    found: list[StreamHead] = []
    after, more, limit = request.after, True, min(request.limit, stores.listed_at_once)
    while more:
        left = min(limit - len(found), _AT_ONCE)
        # An additional stream shows whether there are more.
        records, more = list_records(stores.table, bucket, request.prefix, after, left + 1)
        wanted, beyond = records[:left], records[left:]
        found += _load_live(stores, wanted)
        if len(found) < limit:
            more, beyond = more or bool(beyond), []
        elif any(_exists(stores, record) for record in beyond):
            return Listing(found, has_more=True)
        after = max([after, *(record.key.stream_id for record in (*wanted, *beyond))])
    return Listing(found, has_more=False)


def _load_live(stores: Stores, records: list[StreamRecord]) -> list[StreamHead]:
    """The streams that exist, with their current tails."""
    now_ms = stores.clock_ms()
    confirmed = _confirm_tails(stores, records, now_ms)

    def load(record: StreamRecord) -> StreamHead | None:
        last = None if record.deleted else load_last(stores.table, log_pk(record.key, record.incarnation))
        if record.deleted or isinstance(last, Tombstone):
            return None
        head = head_from(record, last, now_ms)
        # A listing of very many streams must not push the writers' tails out of the cache.
        stores.tails.learn_if_it_fits(head)
        return head

    others = [record for record in records if record.key not in confirmed]
    loaded = [head for head in stores.concurrency.each(load, others) if head is not None]
    heads = confirmed | {head.record.key: head for head in loaded}
    found = (heads.get(record.key) for record in records)
    return [head for head in found if head is not None and not head.is_expired(now_ms)]


def _confirm_tails(stores: Stores, records: list[StreamRecord], now_ms: int) -> dict[StreamKey, StreamHead]:
    """The remembered tails that are still current. Their age stays: appends must not rely on them longer."""
    known: dict[StreamKey, StreamHead] = {}
    for record in records:
        head = stores.tails.get(record.key, now_ms)
        if head is None or record.deleted or head.record.incarnation != record.incarnation:
            continue
        # A pack may have removed the batch at an older tail.
        if record.packed <= head.tail.offset:
            known[record.key] = replace(head, record=record)
    # No batch follows a closure.
    open_heads = (head for head in known.values() if not head.tail.closed)
    keys = {log_pk(head.record.key, head.record.incarnation): head.record.key for head in open_heads}
    places = {pk: known[key].tail.offset for pk, key in keys.items()}
    for pk in logs_written_at(stores.table, places, stores.concurrency.each):
        del known[keys[pk]]
    return known


def _exists(stores: Stores, record: StreamRecord) -> bool:
    """Whether the stream exists. The item alone decides, unless a write may have renewed the expiry."""
    if record.deleted:
        return False
    if not is_expired(record.expiry, record.used_ms, stores.clock_ms()):
        return True
    return record.expiry.ttl_seconds is not None and bool(_load_live(stores, [record]))


#: Latest batches in which messages are counted. If there are more batches, the count is an estimate.
_COUNTED_BATCHES: Final = 500
#: Most calls for counting: the batches of a fork lie in several logs, and packed ones in S3.
_COUNTING_CALLS: Final = 4
#: Most producers with an item of their own that are listed after the recent ones.
_MAX_PRODUCERS: Final = 100


@dataclass(frozen=True, slots=True)
class StreamStats:
    """`messages` is exact, or estimated from the latest batches by the number of bytes."""

    head: StreamHead
    messages: int
    messages_exact: bool
    producers: tuple[ProducerState, ...]
    producers_complete: bool


def load_stats(stores: Stores, key: StreamKey) -> StreamStats:
    """Load the stream's item, its last batch, the latest batches in a query or a few, and the producers that
    were pushed out of the last batch in one query. Raises StreamNotFound, SoftDeleted."""
    head = load_head(stores, key)
    messages, messages_exact = _count_messages(stores, head)
    producers, producers_complete = _load_producers(stores, head)
    return StreamStats(head, messages, messages_exact, producers, producers_complete)


def _count_messages(stores: Stores, head: StreamHead) -> tuple[int, bool]:
    record, tail = head.record, head.tail.offset
    counted, counted_bytes, reached = 0, 0, tail
    batches = batches_back(stores, head, _COUNTED_BATCHES)
    for calls, batch in islice(batches, _COUNTED_BATCHES):
        if calls > _COUNTING_CALLS:
            break
        counted += sum(start >= record.retained for start in batch.message_starts())
        counted_bytes += batch.data_bytes
        reached = batch.start
    if reached <= record.retained:
        return counted, True
    whole = counted_bytes + _bytes_left(stores, record, reached)
    return round(whole * counted / max(counted_bytes, 1)), False


def _bytes_left(stores: Stores, record: StreamRecord, high: int) -> int:
    """The bytes from the retained offset to `high`. In a compacted range, an estimate from one query."""
    low = max(record.retained, record.base)
    if low >= min(record.compacted, high):
        return high - record.retained
    items, _ = stores.table.query(
        log_pk(record.key, record.incarnation),
        at_least=render_offset(low),
        at_most=render_offset(high - 1),
        attributes=BOUNDARY_ATTRIBUTES,
    )
    left, reached = 0, low
    for entry in map(decode_entry, items):
        if entry.start >= reached:  # Skips batches that are being removed.
            left += entry.index.data_bytes if isinstance(entry, Pack) else entry.size
            reached = entry.end
    return low - record.retained + left * (high - low) // max(reached - low, 1)


def _load_producers(stores: Stores, head: StreamHead) -> tuple[tuple[ProducerState, ...], bool]:
    recent = head.tail.producers
    if not head.tail.overflowed:
        return recent, True
    # Ids are printable ASCII (§5.2.1).
    items, more = stores.table.query(
        producer_pk(head.record.incarnation), at_least="!", at_most="\x7f", limit=_MAX_PRODUCERS
    )
    known = {state.producer_id for state in recent}
    older = (decode_producer(item) for item in items)
    return (*recent, *(state for state in older if state.producer_id not in known)), not more


@dataclass(slots=True)
class AppendTimes:
    """The writes of [start, end) in order: the time of each, and its messages and bytes in that range. A
    write is an append, or several that were committed together. `message_ends` is set if the sizes do
    not show the messages: a compaction has removed some, or a write has several appends of bytes."""

    incarnation: str
    start: int
    end: int
    crc: int | None
    times_ms: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    message_ends: list[int] | None = None


def load_times(stores: Stores, key: StreamKey, start: PageStart) -> AppendTimes:
    """The times of the page that a read at `start` returns. Raises as `read`.

    Makes the calls of the read, for the same items without their bytes. Bodies in S3 are not fetched, but
    blocks of packs are, because they hold the times. Does not renew a sliding expiry.
    """
    now_ms = stores.clock_ms()
    record, page = load_page(stores, key, start, now_ms, {"attributes": BOUNDARY_ATTRIBUTES})
    last_used_ms(stores, record, page.written_ms)
    if page.ended:
        raise forgotten(stores, record)
    return times_of(record, page)


def times_of(record: StreamRecord, page: Page) -> AppendTimes:
    """The times of the page's messages."""
    found = AppendTimes(record.incarnation, page.start, page.end, page.crc)
    for time_ms, messages, size in _writes_of(page):
        found.times_ms.append(time_ms)
        found.messages.append(messages)
        found.sizes.append(size)
    is_combined = not record.content_type.is_json and max(found.messages, default=1) > 1
    if is_combined or sum(found.sizes) < page.end - page.start:
        ends = chain.from_iterable(batch.each_message_end() for batch in page.batches)
        found.message_ends = [end for end in ends if end > page.start]
    return found


def _writes_of(page: Page) -> Iterator[tuple[int, int, int]]:
    """Time, messages and bytes of each write, without the part before the page, and without a closure."""
    skip = page.skip
    for batch in page.batches:
        for time_ms, lengths in _lengths_of(batch):
            size = sum(lengths)
            if size > skip:
                left = len(lengths)
                for length in lengths:
                    if length > skip:
                        break
                    left, skip, size = left - 1, skip - length, size - length
                yield time_ms, left, size - skip
                skip = 0
            else:
                skip -= size


def _lengths_of(batch: Batch) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Time and message lengths of each write in the batch. A fork may own a part of the batch."""
    if batch.times is None:
        yield batch.time_ms, batch.lengths
        return
    lengths = iter(batch.lengths)
    for count, time_ms in zip(batch.times.messages, batch.times.times_ms, strict=True):
        yield time_ms, tuple(islice(lengths, count))
