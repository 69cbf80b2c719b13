"""Start points: the offset of the last messages, or of the first message after a time; and reading backward,
a page of the last messages before an offset at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count as count_up
from math import inf
from typing import Final

from tidemark.log.chain import MOST_BEHIND, cut_batch, spans_of
from tidemark.log.packs import Piece, blocks_of
from tidemark.log.read import PAGE_BYTES, Page, load_batch_at
from tidemark.log.records import Batch, Entry, Pack, UnreadBlock
from tidemark.log.schema import BOUNDARY_ATTRIBUTES, decode_entry
from tidemark.log.tails import StreamHead
from tidemark.protocol.caching import is_of_another
from tidemark.protocol.errors import Damaged, HistoryGone, Malformed, StaleCursor
from tidemark.protocol.offset import NOW, ReadFrom, render_offset
from tidemark.protocol.snapshot import check_retained
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.read import Reading, renew, with_blobs
from tidemark.service.stores import Stores

MAX_LAST: Final = 10_000
_INSTANT: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def parse_start_point(last: int | None, written_from: str | None) -> tuple[int | None, int]:
    """Parse `last`, or `from` into Unix ms: exactly one must be given. Raises Malformed."""
    if (last is None) == (written_from is None):
        raise Malformed("Give last (a number of messages) or from (an RFC 3339 time), and not both")
    if written_from is not None:
        return None, _parse_instant_ms(written_from)
    return parse_last(str(last)), 0


def parse_last(text: str) -> int:
    """Raises Malformed."""
    if not re.fullmatch("[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= MAX_LAST:
        raise Malformed(f"last must be an integer between 1 and {MAX_LAST}, got {text:.40}")
    return int(text)


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


#: Most calls for the last messages: a query reads up to 1 MB, and a block of a pack holds 128 KB.
MAX_QUERIES: Final = 8


@dataclass(frozen=True, slots=True)
class StartPoint:
    """`messages` is the number of messages after the offset, if they were counted. `complete` is false if the
    count ended early because the batches are large: the offset is then nearer to the tail."""

    offset: int
    messages: int | None = None
    complete: bool = True


def find_start(stores: Stores, key: StreamKey, last: int | None, at_ms: int = 0) -> StartPoint:
    """Find the start of the last messages, or of the first batch that was written at or after the instant.
    Raises StreamNotFound, SoftDeleted."""
    head = load_head(stores, key)
    if last is not None:
        return count_back(head, batches_back(stores, head, last), last, head.tail.offset)
    return StartPoint(first_written_from(stores, head, at_ms))


def read_back(
    stores: Stores, key: StreamKey, before: ReadFrom, count: int, cursor: int | None = None
) -> Reading:
    """Read the last `count` messages before an offset, or before the tail, as a page: fewer if they are
    large, none if there are none. Takes the calls for the head and for the page's batches. Renews a sliding
    expiry as a read does. Raises StreamNotFound, StaleCursor, RetentionGone, HistoryGone, and Malformed for
    an offset inside a message."""
    head, now_ms = load_head(stores, key), stores.clock_ms()
    if before not in {NOW, 0} and is_of_another(cursor, head.record.incarnation, now_ms):
        raise StaleCursor(head.record.retained)
    record, tail = renew(stores, head.record, head.touched_ms, now_ms), head.tail
    end = tail.offset if before == NOW else int(before)
    check_retained(end, record.retained)
    if end > tail.offset:
        raise HistoryGone(end, record.retained)
    held = list[Batch]()

    def kept() -> Iterator[tuple[int, Batch]]:
        for calls, batch, reached in batches_backward(stores, head, count, end, ()):
            if record.content_type.is_json and reached == end and batch.messages_before(end) is None:
                raise Malformed(f"Offset {render_offset(end)} is not the end of a message")
            held.insert(0, cut_batch(batch, reached))
            yield calls, held[0]

    start = count_back(head, kept(), count, end, PAGE_BYTES).offset
    batches = [batch for batch in held if batch.end > start]
    if start < (batches[0].start if batches else end):
        check_retained(start, load_head(stores, key).record.retained)  # Trimmed or deleted meanwhile.
        raise Damaged from LookupError(f"batches of {key} are missing behind {start}")
    page = Page(
        start,
        tuple(batches),
        up_to_date=end == tail.offset,
        closed=end == tail.offset and tail.closed,
        skip=sum(batches[0].lengths[: batches[0].messages_before(start)]) if batches else 0,
        compacted=start < record.compacted,
    )
    return Reading(record, with_blobs(stores, page))


def batches_back(stores: Stores, head: StreamHead, limit: int) -> Iterator[tuple[int, Batch]]:
    """`batches_backward` without their bytes, each cut to the part that belongs to the stream."""
    for calls, batch, reached in batches_backward(stores, head, limit, head.tail.offset, BOUNDARY_ATTRIBUTES):
        yield calls, cut_batch(batch, reached)


def batches_backward(
    stores: Stores, head: StreamHead, limit: int, reached: int, attributes: Sequence[str]
) -> Iterator[tuple[int, Batch, int]]:
    """The stream's batches before the offset `reached`, the latest first, through all logs of a fork. Every
    batch comes with the number of calls so far, and the offset at which the batch after it begins. Queries
    load `attributes` (all if empty) of up to `limit` items. A block of a pack counts as a batch and as a
    call, because its bytes are in S3. Batches inside a pack are left out: they are being removed."""
    calls = 0
    for span in reversed(spans_of(head.record)):
        # A batch that only closes the stream begins at the tail.
        before = reached + 1 if span.end is None else min(reached + 1, span.end)
        more = before > span.begin
        while more:
            items, more = stores.table.query(
                span.pk, at_most=render_offset(before - 1), attributes=attributes, limit=limit, backward=True
            )
            calls += 1
            for item in items:
                entry = decode_entry(item)
                before = entry.start
                for piece in _pieces_back(entry):
                    if piece.end >= reached and (piece.start < reached or piece.start == piece.end):
                        calls += isinstance(piece, UnreadBlock)
                        yield calls, stores.fill([piece])[0], reached
                        reached = piece.start
            more = more and before > span.begin
            limit = max(limit, MOST_BEHIND)  # A single query then passes all batches that are being removed.


def _pieces_back(entry: Entry) -> Sequence[Piece]:
    if isinstance(entry, Pack):
        return list(blocks_of(entry, entry.start))[::-1]
    return [entry] if isinstance(entry, Batch) else []


def count_back(
    head: StreamHead, batches: Iterable[tuple[int, Batch]], count: int, reached: int, most_bytes: float = inf
) -> StartPoint:
    """Return the offset before the last `count` messages of the batches, which end at `reached`. The count
    ends earlier at the retained offset, and, after the first message, before `most_bytes` is exceeded."""
    retained, found, size = head.record.retained, 0, 0
    for calls, batch in batches:
        if found and calls > MAX_QUERIES:
            return StartPoint(reached, found, complete=False)
        for start, length in zip(batch.message_starts()[::-1], batch.lengths[::-1], strict=True):
            if start < retained:
                return StartPoint(retained, found)
            size += length
            if found and size > most_bytes:
                return StartPoint(reached, found, complete=False)
            found, reached = found + 1, start
            if found == count:
                return StartPoint(reached, found)
        reached = batch.start
    return StartPoint(retained, found)


def first_written_from(stores: Stores, head: StreamHead, at_ms: int) -> int:
    """The offset of a batch that was written at or after the instant, while the batch before it is older; the
    tail if there is none. In a pack, the offset of a block: no message is missed, but some may be older.

    Batches are keyed by offset and not by time, so this is a search with one query for an item at each step.
    Every second step interpolates between the two ends; the others take the middle, which bounds the number
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
            low = middle + 1  # There is no batch at this offset.
        elif batch.time_ms < at_ms:
            low, low_ms = batch.end, batch.time_ms
        else:
            high, high_ms = max(batch.start, low), batch.time_ms
    return high
