"""Reading the log: from an offset to the tail, a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from tidemark.log.recent import RecentBatches
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import STATE_ATTRIBUTES, Item, decode_batch, just_behind, log_pk
from tidemark.log.table import Table
from tidemark.protocol.errors import Malformed
from tidemark.protocol.offset import render_offset
from tidemark.protocol.tail import Tail

#: A page ends at a batch end, before this size: base64 must fit a Lambda answer of 6 MB.
PAGE_BYTES: Final = 4 * 1024 * 1024
#: A query returns 1 MB of items. Of tiny batches that is little data in many items, and a
#: page must not take longer to gather than its reader is willing to wait.
PAGE_QUERIES: Final = 4


@dataclass(frozen=True, slots=True)
class Page:
    """Batches from `start` on, without a gap.

    `up_to_date` says that the tail was reached, `closed` that the stream ends there for
    good. `batches[0]` may begin before `start`: `skip` of its bytes are left out.
    """

    start: int
    batches: tuple[Batch, ...]
    up_to_date: bool
    closed: bool = False
    skip: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    @property
    def last(self) -> Batch | None:
        return self.batches[-1] if self.batches else None

    @property
    def deleted(self) -> bool:
        return self.last is not None and self.last.tombstone

    @property
    def has_data(self) -> bool:
        return self.end > self.start

    @property
    def data(self) -> bytes:
        """The bytes from `start` on, once those that lie in S3 are filled in."""
        pieces = [batch.data or b"" for batch in self.batches]
        if self.skip:
            pieces[0] = pieces[0][self.skip :]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one log that a stream consists of; `end` None is the stream's own log,
    which goes on. A plain stream is one span, a fork has one more for each generation."""

    pk: str
    incarnation: str
    begin: int
    end: int | None


def spans_of(record: StreamRecord) -> list[Span]:
    spans, begin = [], 0
    for segment in record.lineage:
        pk = log_pk(segment.key, segment.incarnation)
        spans.append(Span(pk, segment.incarnation, begin, segment.end))
        begin = segment.end
    spans.append(Span(log_pk(record.key, record.incarnation), record.incarnation, begin, None))
    return spans


def load_last(table: Table, pk: str) -> Batch | None:
    """The last batch without its bytes; None for a log that nothing was written to."""
    items, _ = table.query(pk, attributes=STATE_ATTRIBUTES, limit=1, backward=True)
    return decode_batch(items[0]) if items else None


def read_page(
    table: Table,
    record: StreamRecord,
    start: int,
    *,
    known_tail: Tail | None = None,
    recent: RecentBatches | None = None,
    limit_bytes: int = PAGE_BYTES,
    ahead_bytes: int = 0,
) -> Page:
    """One query for data at a batch's start, or for what follows `known_tail`; one more
    where `start` lies elsewhere, and one for each boundary of a fork's lineage crossed.

    Batches in `recent` are not asked for: the query goes on behind them, or is not made at
    all where they fill the page. What a query brings beyond a small page, up to `ahead_bytes`, is
    kept there for the next one. Raises Malformed for an offset that is not in the stream;
    a JSON stream is read from message ends only.
    """
    spans = [span for span in spans_of(record) if span.end is None or span.end > start]
    page = _read_forward(table, spans, start, recent, limit_bytes=limit_bytes, ahead_bytes=ahead_bytes)
    if start == spans[0].begin or (page.batches and page.batches[0].start == start):
        return page
    if known_tail is not None and known_tail.offset == start:
        return replace(page, closed=known_tail.closed)
    before = _batch_before(table, spans[0].pk, start)
    if before is None or before.end < start:
        raise Malformed(f"Offset {render_offset(start)} lies beyond the end of the stream")
    if before.end == start:
        return replace(page, closed=before.after.closed)
    skip = start - before.start
    if record.content_type.is_json and skip not in accumulate(before.lengths):
        raise Malformed(f"Offset {render_offset(start)} is not the end of a message")
    rest = [cut_batch(before, spans[0].end), *page.batches]
    return _page(start, rest, limit_bytes, reached_tail=page.up_to_date, skip=skip)


def _batch_before(table: Table, pk: str, start: int) -> Batch | None:
    """The batch that begins before `start`: one that begins there may have come since."""
    items, _ = table.query(pk, at_most=render_offset(start - 1), limit=1, backward=True)
    return decode_batch(items[0]) if items else None


def _read_forward(
    table: Table,
    spans: Sequence[Span],
    start: int,
    recent: RecentBatches | None,
    *,
    limit_bytes: int,
    ahead_bytes: int,
) -> Page:
    """From `start` through the spans, until the limit or the tail."""
    batches: list[Batch] = []
    complete = True
    for span in spans:
        begin = max(start, span.begin)
        left_bytes = start + limit_bytes - begin
        found = _chain(recent, span, begin, left_bytes)
        known = len(found)
        complete = _fill(table, span, begin, found, limit_bytes=left_bytes, ahead_bytes=ahead_bytes)
        if recent is not None and ahead_bytes:
            recent.keep(span.incarnation, *found[known:])
        batches.extend(cut_batch(batch, span.end) for batch in found)
        if not complete or (batches and batches[-1].end - start > limit_bytes):
            break
    return _page(start, batches, limit_bytes, reached_tail=complete and span.end is None)


def _chain(recent: RecentBatches | None, span: Span, begin: int, limit_bytes: int) -> list[Batch]:
    """What is known of the span; its log may be known beyond the span's end."""
    chain = recent.chain(span.incarnation, begin, limit_bytes) if recent else []
    return [batch for batch in chain if span.end is None or batch.start < span.end]


def _fill(
    table: Table, span: Span, begin: int, batches: list[Batch], *, limit_bytes: int, ahead_bytes: int
) -> bool:
    """Query for what follows `batches` in the span. Whether nothing is left there."""
    at_most = "~" if span.end is None else render_offset(span.end - 1)
    more, queries = True, 0
    while more and queries < PAGE_QUERIES and not _is_enough(span, begin, batches, limit_bytes):
        at_least = just_behind(batches[-1]) if batches else render_offset(begin)
        items, more = table.query(span.pk, at_least=at_least, at_most=at_most)
        more |= _decode_enough(span, begin, items, batches, max(limit_bytes, ahead_bytes))
        queries += 1
    return not more or (span.end is not None and bool(batches) and batches[-1].end >= span.end)


def _decode_enough(
    span: Span, begin: int, items: Sequence[Item], batches: list[Batch], limit_bytes: int
) -> bool:
    """Add the items that the page has room for: deflated, a query's megabyte may hold many
    pages, and no more than one is to be in memory. Whether items are left."""
    for item in items:
        if _is_enough(span, begin, batches, limit_bytes):
            return True
        batches.append(decode_batch(item))
    return False


def _is_enough(span: Span, begin: int, batches: Sequence[Batch], limit_bytes: int) -> bool:
    if not batches:
        return False
    end = batches[-1].end
    return end - begin > limit_bytes or (span.end is not None and end >= span.end)


def cut_batch(batch: Batch, end: int | None) -> Batch:
    """What a fork inherits of a batch: it may leave its source in the middle, and it never
    inherits what the source's writers were up to, nor that the source was closed."""
    if end is None:
        return batch
    cut_end = min(batch.end, end)
    size = cut_end - batch.start
    return replace(
        batch,
        after=Tail(cut_end),
        data=None if batch.data is None else batch.data[:size],
        blob_bytes=batch.size,
        lengths=cut_lengths(batch.lengths, size),
    )


def cut_lengths(lengths: Sequence[int], size: int) -> tuple[int, ...]:
    """The lengths of the messages in the first `size` bytes; the last may be a part."""
    kept, left = [], size
    for length in lengths:
        if left <= 0:
            break
        kept.append(min(length, left))
        left -= length
    return tuple(kept)


def _page(
    start: int, batches: Sequence[Batch], limit_bytes: int, *, reached_tail: bool, skip: int = 0
) -> Page:
    """The batches that fit the limit, and always the first."""
    fitting = max(1, bisect_right(batches, start + limit_bytes, key=lambda batch: batch.end))
    up_to_date = reached_tail and fitting >= len(batches)
    closed = up_to_date and bool(batches) and batches[-1].after.closed
    return Page(start, tuple(batches[:fitting]), up_to_date, closed, skip)
