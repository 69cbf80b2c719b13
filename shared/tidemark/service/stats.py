"""A stream's statistics, without reading its log: for people and monitors, never for a writer."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final

from tidemark.log.schema import decode_producer, producer_pk
from tidemark.log.tails import StreamHead
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.start_point import batches_back
from tidemark.service.stores import Stores

#: Messages are counted in this many of the latest batches, and estimated from them where there are more.
_COUNTED_BATCHES: Final = 500
#: A fork's lie in several logs, and packed ones in S3.
_COUNTING_CALLS: Final = 4
#: Producers that have an item of their own, beside the recent ones.
_MAX_PRODUCERS: Final = 100


@dataclass(frozen=True, slots=True)
class StreamStats:
    """`messages` is exact, or estimated from the latest batches by the number of bytes."""

    head: StreamHead
    messages: int
    messages_exact: bool
    producers: tuple[ProducerState, ...]
    producers_complete: bool

    @property
    def retained_bytes(self) -> int:
        return self.head.tail.offset - self.head.record.retained

    @property
    def ends_ms(self) -> int | None:
        """When the stream expires, if nobody uses it until then."""
        return deadline_ms(self.head.record.expiry, self.head.touched_ms)


def load_stats(stores: Stores, key: StreamKey) -> StreamStats:
    """The stream's item, its last batch, a query or a few for the latest batches, and one for the producers
    that the last batch does not carry any more. Raises StreamNotFound, StreamGone."""
    head = load_head(stores, key)
    messages, messages_exact = _count_messages(stores, head)
    producers, producers_complete = _load_producers(stores, head)
    return StreamStats(head, messages, messages_exact, producers, producers_complete)


def _count_messages(stores: Stores, head: StreamHead) -> tuple[int, bool]:
    record, tail = head.record, head.tail.offset
    counted, reached = 0, tail
    batches = batches_back(stores, head, _COUNTED_BATCHES)
    for calls, batch in islice(batches, _COUNTED_BATCHES):
        if calls > _COUNTING_CALLS:
            break
        ends = accumulate(reversed(batch.lengths), operator.sub, initial=batch.end)
        counted += sum(1 for start in islice(ends, 1, None) if start >= record.retained)
        reached = batch.start
    if reached <= record.retained:
        return counted, True
    return round((tail - record.retained) * counted / max(tail - reached, 1)), False


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
