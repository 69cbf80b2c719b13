"""Start points: the offset of the last messages, or of what was written from a time on.

Neither is on the way of a read: a client asks once, and reads from the offset that it gets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count as count_up
from typing import Final

from tidemark.log.chain import cut_batch, spans_of
from tidemark.log.packs import Piece, blocks_of
from tidemark.log.read import load_batch_at
from tidemark.log.records import Batch, Entry, Pack, Tombstone, UnreadBlock
from tidemark.log.schema import BOUNDARY_ATTRIBUTES, decode_entry
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import Malformed
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.stores import Stores

MAX_LAST: Final = 10_000
_INSTANT: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LastMessages:
    """The offset before the last `count` messages."""

    count: int


@dataclass(frozen=True, slots=True)
class WrittenFrom:
    """The offset of the first batch that was written at or after the instant."""

    at_ms: int


def parse_start_point(last: int | None, written_from: str | None) -> LastMessages | WrittenFrom:
    """One of the two. Raises Malformed."""
    if (last is None) == (written_from is None):
        raise Malformed("Give last (a number of messages) or from (an RFC 3339 time), and not both")
    if last is not None:
        if not 1 <= last <= MAX_LAST:
            raise Malformed(f"last must be an integer between 1 and {MAX_LAST}, got {last}")
        return LastMessages(last)
    assert written_from is not None, "one of the two is given"
    return WrittenFrom(_parse_instant_ms(written_from))


def _parse_instant_ms(text: str) -> int:
    try:
        if len(text) > 40 or not _INSTANT.fullmatch(text):
            raise ValueError(text)
        return int(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        hint = "; in a URL a + is written %2B" if " " in text else ""
        raise Malformed(
            f"from must be an RFC 3339 time such as 2026-11-21T10:00Z, got {text[:40]!r}{hint}"
        ) from None


#: The most calls for the last messages: a query reads up to 1 MB, a block of a pack holds 128 KB.
MAX_QUERIES: Final = 8


@dataclass(frozen=True, slots=True)
class StartPoint:
    """`messages` says how many messages follow the offset, where they were counted. `complete` is false
    where the count ended early, because the batches are large: then the offset is nearer to the tail."""

    offset: int
    messages: int | None = None
    complete: bool = True


def find_start(stores: Stores, key: StreamKey, asked: LastMessages | WrittenFrom) -> StartPoint:
    """Raises StreamNotFound, SoftDeleted."""
    head = load_head(stores, key)
    if isinstance(asked, LastMessages):
        return count_back(stores, head, asked.count)
    return StartPoint(first_written_from(stores, head, asked.at_ms))


def batches_back(stores: Stores, head: StreamHead, limit: int) -> Iterator[tuple[int, Batch]]:
    """The stream's batches without their bytes, the latest first, through all logs of a fork, each with the
    number of calls so far. A query asks for up to `limit`. Each block of a pack counts as a batch and a call:
    its bytes are in S3. Batches that lie inside a pack, because they are being removed, are left out."""
    reached, calls = head.tail.offset, 0
    for span in reversed(spans_of(head.record)):
        # A batch that only closes the stream begins at the tail.
        before = reached + 1 if span.end is None else span.end
        more = before > span.begin
        while more:
            items, more = stores.table.query(
                span.pk,
                at_most=render_offset(before - 1),
                attributes=BOUNDARY_ATTRIBUTES,
                limit=limit,
                backward=True,
            )
            calls += 1
            for item in items:
                entry = decode_entry(item)
                before = entry.start
                for piece in _pieces_back(entry):
                    if piece.end >= reached and (piece.start < reached or piece.start == piece.end):
                        calls += isinstance(piece, UnreadBlock)
                        yield calls, cut_batch(stores.fill([piece])[0], reached)
                        reached = piece.start
            more = more and before > span.begin


def _pieces_back(entry: Entry) -> Sequence[Piece]:
    match entry:
        case Batch():
            return [entry]
        case Pack():
            return list(blocks_of(entry, entry.start))[::-1]
        case Tombstone():
            return []


def count_back(stores: Stores, head: StreamHead, count: int) -> StartPoint:
    """The offset before the last `count` messages; of those that are retained, if they are fewer."""
    retained, found, reached = head.record.retained, 0, head.tail.offset
    for calls, batch in batches_back(stores, head, count):
        if calls > MAX_QUERIES:
            return StartPoint(reached, found, complete=False)
        for start in reversed(batch.message_starts()):
            if start < retained:
                return StartPoint(retained, found)
            found, reached = found + 1, start
            if found == count:
                return StartPoint(reached, found)
        reached = batch.start
    return StartPoint(retained, found)


def first_written_from(stores: Stores, head: StreamHead, at_ms: int) -> int:
    """The offset of a batch that was written at or after the instant, while the one before it was written
    earlier; the tail where nothing is as late as that. In a pack it is the offset of a block: nothing is
    missed, but some of it may be older.

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
        batch = load_batch_at(stores.table, record, middle, stores.fill)
        if batch is None:
            low = middle + 1  # Nothing is stored there.
        elif batch.time_ms < at_ms:
            low, low_ms = batch.end, batch.time_ms
        else:
            high, high_ms = max(batch.start, low), batch.time_ms
    return high
