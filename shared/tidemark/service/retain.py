"""The offset from which a stream with retention limits keeps its data (docs/retention.md)."""

from __future__ import annotations

from itertools import accumulate

from tidemark.log.boundaries import load_batch_at
from tidemark.log.tails import StreamHead
from tidemark.service.start_point import first_written_from
from tidemark.service.stores import Stores


def retained_from(stores: Stores, head: StreamHead, now_ms: int) -> int:
    """The first offset that the stream's retention keeps: the end of a message, and never before the one from
    which it is retained already. If nothing is too old it takes one query, or none."""
    record, tail = head.record, head.tail.offset
    begin = record.retained
    if record.retention.seconds is not None:
        before_ms = now_ms - record.retention.seconds * 1000
        oldest_ms = written_ms_at(stores, head, begin)
        if oldest_ms is not None and oldest_ms < before_ms:
            begin = first_written_from(stores, head, before_ms)
    if record.retention.size is not None and tail - record.retention.size > begin:
        place = tail - record.retention.size
        batch = load_batch_at(stores.table, record, place, stores.fill)
        if batch is not None:
            ends = accumulate(batch.lengths, initial=batch.start)
            begin = max(begin, *(end for end in ends if end <= place))
    return begin


def written_ms_at(stores: Stores, head: StreamHead, offset: int) -> int | None:
    """When the message behind the offset was written; None at the tail. In a pack, that is when the last one
    of its block was."""
    if offset >= head.tail.offset:
        return None
    batch = load_batch_at(stores.table, head.record, offset, stores.fill)
    return None if batch is None else batch.time_ms
