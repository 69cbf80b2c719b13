"""Reading the log: from an offset to the tail, a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from tidemark.log.records import Batch
from tidemark.log.schema import STATE_ATTRIBUTES, decode_batch, just_behind
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


def load_last(table: Table, pk: str) -> Batch | None:
    """The last batch without its bytes; None for a log that nothing was written to."""
    items, _ = table.query(pk, attributes=STATE_ATTRIBUTES, limit=1, backward=True)
    return decode_batch(items[0]) if items else None


def read_page(
    table: Table,
    pk: str,
    start: int,
    *,
    known_tail: Tail | None = None,
    recent: Sequence[Batch] = (),
    by_message: bool = False,
    limit_bytes: int = PAGE_BYTES,
) -> Page:
    """One query for data at a batch's start, or for what follows `known_tail`; one more
    where `start` lies elsewhere.

    `recent` is what is known of the log from `start` on: the query goes on behind it, or
    is not made at all where it fills the page.
    `by_message` says that a read may begin at the end of a message only.
    Raises Malformed for an offset that is not in the stream.
    """
    page = _read_forward(table, pk, start, list(recent), limit_bytes)
    if page.batches and page.batches[0].start == start:
        return page
    if known_tail is not None and known_tail.offset == start:
        return replace(page, closed=known_tail.closed)
    if start == 0:
        return page
    before = _batch_before(table, pk, start)
    if before is None or before.end < start:
        raise Malformed(f"Offset {render_offset(start)} lies beyond the end of the stream")
    if before.end == start:
        return replace(page, closed=before.after.closed)
    skip = start - before.start
    if by_message and skip not in accumulate(before.lengths):
        raise Malformed(f"Offset {render_offset(start)} is not the end of a message")
    return _page(start, (before, *page.batches), limit_bytes, reached_tail=page.up_to_date, skip=skip)


def _batch_before(table: Table, pk: str, start: int) -> Batch | None:
    items, _ = table.query(pk, at_most=render_offset(start), limit=1, backward=True)
    return decode_batch(items[0]) if items else None


def _read_forward(table: Table, pk: str, start: int, batches: list[Batch], limit_bytes: int) -> Page:
    more, queries = True, 0
    while more and queries < PAGE_QUERIES and not (batches and batches[-1].end - start > limit_bytes):
        items, more = table.query(pk, at_least=_after(batches, start))
        batches.extend(map(decode_batch, items))
        queries += 1
    return _page(start, tuple(batches), limit_bytes, reached_tail=not more)


def _after(batches: Sequence[Batch], start: int) -> str:
    """The key to go on from: just behind the last batch, even one that is empty."""
    return just_behind(batches[-1]) if batches else render_offset(start)


def _page(
    start: int, batches: tuple[Batch, ...], limit_bytes: int, *, reached_tail: bool, skip: int = 0
) -> Page:
    """The batches that fit the limit, and always the first."""
    fitting = max(1, bisect_right(batches, start + limit_bytes, key=lambda batch: batch.end))
    up_to_date = reached_tail and fitting >= len(batches)
    closed = up_to_date and bool(batches) and batches[-1].after.closed
    return Page(start, batches[:fitting], up_to_date, closed, skip)
