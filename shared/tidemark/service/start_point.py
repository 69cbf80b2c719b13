"""Start points: the offset of the last messages, or of what was written from a time on.

Neither is on the way of a read: a client asks once, and reads from the offset that it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as count_up
from typing import Final

from tidemark.log.chain import cut_batch, spans_of
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import BOUNDARY_ATTRIBUTES, decode_batch
from tidemark.log.snapshots import load_batch_at
from tidemark.log.table import Table
from tidemark.log.tails import StreamHead
from tidemark.protocol.offset import render_offset
from tidemark.protocol.start_point import LastMessages, WrittenFrom
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.stores import Stores

#: The most queries for the last messages; each reads up to 1 MB.
MAX_QUERIES: Final = 8


@dataclass(frozen=True, slots=True)
class StartPoint:
    """`messages` says how many messages follow the offset, where they were counted. `complete` is false
    where the count ended early, because the batches are large: then the offset is nearer to the tail."""

    offset: int
    messages: int | None = None
    complete: bool = True


def find_start(stores: Stores, key: StreamKey, asked: LastMessages | WrittenFrom) -> StartPoint:
    """Raises StreamNotFound, StreamGone."""
    head = load_head(stores, key)
    if isinstance(asked, LastMessages):
        return count_back(stores.table, head, asked.count)
    return StartPoint(first_written_from(stores.table, head, asked.at_ms))


def pages_back(table: Table, record: StreamRecord, tail: int, limit: int) -> Iterator[list[Batch]]:
    """The stream's batches without their bytes, the latest first: one query for each page of up to
    `limit`, through all logs of a fork."""
    for span in reversed(spans_of(record)):
        # A batch that only closes the stream begins at the tail.
        before = tail + 1 if span.end is None else span.end
        more = before > span.begin
        while more:
            items, more = table.query(
                span.pk,
                at_most=render_offset(before - 1),
                attributes=BOUNDARY_ATTRIBUTES,
                limit=limit,
                backward=True,
            )
            batches = [cut_batch(decode_batch(item), span.end) for item in items]
            yield batches
            if batches:
                before = batches[-1].start
            more = more and before > span.begin


def count_back(table: Table, head: StreamHead, count: int) -> StartPoint:
    """The offset before the last `count` messages; of those that are retained, if they are fewer."""
    record, found, reached = head.record, 0, head.tail.offset
    for page, batches in enumerate(pages_back(table, record, reached, count), start=1):
        for batch in batches:
            reached = batch.end
            for length in reversed(batch.lengths):
                if reached - length < record.retained:
                    return StartPoint(record.retained, found)
                found, reached = found + 1, reached - length
                if found == count:
                    return StartPoint(reached, found)
        if page == MAX_QUERIES:
            return StartPoint(reached, found, complete=False)
    return StartPoint(record.retained, found)


def first_written_from(table: Table, head: StreamHead, at_ms: int) -> int:
    """The offset of a batch that was written at or after the instant, while the one before it was written
    earlier; the tail where nothing is as late as that.

    Batches are keyed by offset, not by time, so this is a search: each step is one query for one item. It
    guesses by the rate between the two ends, and every second time takes the middle, which bounds the number
    of steps by twice the logarithm of the number of bytes.
    """
    record = head.record
    low, high = record.retained, head.tail.offset
    low_ms, high_ms = record.created_ms, head.written_ms
    if at_ms > high_ms:
        return high
    for step in count_up():
        if low >= high:
            break
        middle = (low + high) // 2
        if step % 2 == 0 and low_ms < at_ms <= high_ms:
            middle = low + (high - low) * (at_ms - low_ms) // (high_ms - low_ms + 1)
        batch = load_batch_at(table, record, middle)
        if batch is None or batch.end <= low:
            low = middle + 1  # Nothing is stored there.
        elif batch.time_ms < at_ms:
            low, low_ms = batch.end, batch.time_ms
        else:
            high, high_ms = max(batch.start, low), batch.time_ms
    return high
