"""Read the log: from an offset to the tail, one page at a time."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

from tidemark.log import schema
from tidemark.log.chain import MOST_BEHIND, ChainWalk, Query, Span, cut_batch, spans_of
from tidemark.log.pack_format import fast_zlib
from tidemark.log.packs import Fill, Piece, blocks_of, cut_front
from tidemark.log.records import Batch, Due, Entry, Pack, StreamRecord, Tombstone, UnreadBlock
from tidemark.log.table import EachHundred, Table, in_hundreds
from tidemark.log.tails import RecentBatches
from tidemark.protocol.errors import Damaged, HistoryGone, Malformed
from tidemark.protocol.offset import render_offset
from tidemark.protocol.socket import News
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail


def load_stream(table: Table, key: StreamKey) -> StreamRecord | None:
    return stream_in(table.get(schema.stream_key(key)))


def stream_in(item: schema.Item | None) -> StreamRecord | None:
    """Return the stream in a stream's item; None without an item, and for an end mark."""
    return None if item is None or schema.is_end_mark(item) else schema.decode_stream(item)


def load_incarnation(table: Table, due: Due) -> StreamRecord | None:
    """Return the stream of a queue entry; None if the stream has ended, even if its name is in use again."""
    record = load_stream(table, due.key)
    return record if record is not None and record.incarnation == due.incarnation else None


def load_streams(table: Table, keys: Sequence[StreamKey], each: EachHundred) -> dict[StreamKey, StreamRecord]:
    """Return the streams that exist. One call reads a hundred."""
    pages = each(table.get_many, in_hundreds(list(map(schema.stream_key, keys))))
    found = (schema.decode_stream(item) for page in pages for item in page if not schema.is_end_mark(item))
    return {record.key: record for record in found}


def logs_written_at(
    table: Table, places: Mapping[str, int], each: EachHundred, attributes: Sequence[str] = ()
) -> dict[str, schema.Item]:
    """Return the logs that have an entry at the given offset, with that entry's `attributes`. `places` maps a
    log's partition to the offset. The next write takes the key at the tail: if the offset was the tail, the
    log has grown. One call reads a hundred."""
    keys = in_hundreds([schema.batch_key(pk, offset) for pk, offset in places.items()])
    pages = each(lambda some: table.get_many(some, (schema.PK, *attributes)), keys)
    return {item[schema.PK]["S"]: item for page in pages for item in page}


def load_batch_at(
    table: Table, record: StreamRecord, offset: int, fill: Fill, *, or_before: bool = False
) -> Batch | Tombstone | None:
    """Return the batch that contains the offset, from the stream's own log or an inherited one; for a pack,
    the block that contains the offset. None if nothing is stored there. With `or_before`, a batch that ends
    at the offset counts too, and for an offset beyond the end the last batch.

    The second query finds a pack with replaced batches after it that are not removed yet.
    """
    span = next(span for span in spans_of(record) if span.end is None or span.end > offset)
    found: Entry | None = None
    for limit in (1, MOST_BEHIND):
        items, _ = table.query(
            span.pk,
            at_most=render_offset(offset),
            attributes=schema.BOUNDARY_ATTRIBUTES,
            limit=limit,
            backward=True,
        )
        entries = [schema.decode_entry(item) for item in items]
        reaching = (each for each in entries if each.end > offset or (or_before and each.end == offset))
        found = next(reaching, entries[0] if or_before and entries else None)
        if not entries or (found is not None and found.end >= offset):
            break
    if isinstance(found, Pack):
        [found] = fill([next(blocks_of(found, offset))])
    return cut_batch(found, span.end) if isinstance(found, Batch) else found


#: The most batches with bytes in one wake-up. Several small messages cost one read unit, as one does.
_NEWS_BATCHES: Final = 8


def load_last(table: Table, pk: str) -> Batch | Tombstone | None:
    """Return the last entry of a log, without its bytes; None for an empty log."""
    items, _ = table.query(pk, attributes=schema.STATE_ATTRIBUTES, limit=1, backward=True)
    return _checked_last(pk, next(map(schema.decode_entry, items), None))


def _checked_last(pk: str, last: Entry | None) -> Batch | Tombstone | None:
    if isinstance(last, Pack):
        raise Damaged from LookupError(f"the batches behind the pack at {last.start} are missing: {pk}")
    return last


def load_news(table: Table, pk: str, start: int) -> tuple[Batch | Tombstone | None, News | None]:
    """Return the last entry and, with the same query, the bytes of the last few batches from `start` on. A
    batch with its bytes in S3, and all before, are left out; None if no bytes remain."""
    items, _ = table.query(pk, limit=_NEWS_BATCHES, backward=True)
    entries = map(schema.decode_entry, items)  # Lazy: only needed entries are inflated.
    last, behind = _checked_last(pk, next(entries, None)), list[Batch]()
    for entry in chain((last,), entries):
        if not isinstance(entry, Batch) or entry.data is None or entry.start < start:
            break
        if behind and entry.end != behind[0].start:
            break
        behind.insert(0, entry)
    if not behind:
        return last, None
    stored, crc = b"".join(batch.data or b"" for batch in behind), behind[-1].checksums.after
    _, incarnation = schema.decode_log_pk(pk)
    return last, News(incarnation, behind[0].start, stored, fast_zlib().crc32(stored) if crc is None else crc)


_log: Final = logging.getLogger("tidemark")

#: A page ends at the end of a batch, before this size: base64 must fit a Lambda response of 6 MB.
PAGE_BYTES: Final = 4 * 1024 * 1024
#: The most queries for a page. A query returns 1 MB of items, which is little data if the batches are tiny,
#: and a page must not take longer than its reader waits.
PAGE_QUERIES: Final = 4
#: The most items in one query for batches with their bytes in S3: small items that make up several pages.
_BODIES_AHEAD: Final = 256
#: The most messages and producers of such a batch in memory: at most 12 KB each, mostly 1 KB.
_LIGHT: Final = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Batches from `start` on, without a gap.

    `up_to_date`: the page reaches the tail. `closed`: nothing will follow. `ended`: the stream was deleted or
    has expired. `skip`: excluded bytes of `batches[0]` before `start`. `compacted`: superseded messages may
    be missing.
    """

    start: int
    batches: tuple[Batch, ...]
    up_to_date: bool
    closed: bool = False
    skip: int = 0
    ended: bool = False
    compacted: bool = False

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    @property
    def written_ms(self) -> int:
        """The time of the last batch; 0 for an empty page."""
        return self.batches[-1].time_ms if self.batches else 0

    @property
    def crc(self) -> int | None:
        """The checksum of the chain up to the page's end, which differs between histories. If it is unknown
        (inside a pack, or without checksums), or the page is compacted: the checksum of the page's bytes.
        None for an empty page."""
        if not self.batches:
            return None
        known = None if self.compacted else self.batches[-1].checksums.after
        return fast_zlib().crc32(self.data) if known is None else known

    @property
    def has_data(self) -> bool:
        return self.end > self.start

    @property
    def pieces(self) -> list[bytes]:
        """The bytes from `start` on, batch by batch, after bytes in S3 were filled in."""
        pieces = [batch.data or b"" for batch in self.batches]
        if self.skip:
            pieces[0] = pieces[0][self.skip :]
        return pieces

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def read_page(
    table: Table,
    record: StreamRecord,
    start: int,
    *,
    known_tail: Tail | None = None,
    recent: RecentBatches | None = None,
    limit_bytes: int = PAGE_BYTES,
    ahead_bytes: int = 0,
    fill: Fill,
    attributes: tuple[str, ...] = (),
) -> Page:
    """Read a page from `start` on. The cost is one query if `start` is the start of a batch or `known_tail`;
    one more for any other start; and one for each boundary between logs of a fork.

    Batches in `recent` need no query: the query starts after these batches, and is skipped if they fill the
    page. Data beyond a small page is kept there for the next page: up to `ahead_bytes` of a query's result,
    and any batches with their bytes in S3. `fill` reads the blocks of packs. `attributes` limits the
    attributes read of each batch; none means all. Raises HistoryGone for an offset beyond the tail, Malformed
    for an offset inside a JSON message, and Damaged if batches are missing.
    """
    is_tail = known_tail is not None and known_tail.offset == start
    if start < record.compacted:
        recent = None  # May have batches from before the compaction.
    query = partial(table.query, attributes=attributes) if attributes else table.query
    walk = _walk(query, record, start, recent, limit_bytes, looks_back=not is_tail)
    # The first retained offset is in the stream even if the batch that ended there was removed.
    is_begin = start in {walk.span.begin, record.retained}
    entries = _unpacked(walk, start, recent, is_whole=not attributes)
    found = _page_of(walk, entries, start, limit_bytes, max(limit_bytes, ahead_bytes))
    if found.parts:
        batches = _load_parts(found.parts, fill, recent if ahead_bytes else None)
        page = _cut_page(record, start, batches, limit_bytes, reached_tail=found.at_tail and not found.is_cut)
        return replace(page, ended=True) if found.has_ended and page.up_to_date else page
    if found.has_ended:
        return Page(start, (), up_to_date=True, ended=True)
    if found.is_cut:
        raise Damaged from LookupError(f"batches are missing: {walk.span.pk} at {start}")
    if not (is_tail or is_begin or found.is_in_stream):
        raise HistoryGone(start, record.retained)
    before = found.before or (known_tail if is_tail else None)
    return Page(start, (), found.at_tail, before is not None and before.closed)


class _Part(NamedTuple):
    """A batch, or a block of a pack, which the page uses from `begin` on."""

    piece: Piece
    span: Span
    begin: int


@dataclass(slots=True)
class _PageParts:
    """The part of the log for one page."""

    parts: list[_Part] = field(default_factory=list)
    data_bytes: int = 0
    #: The tail of the last batch before the page.
    before: Tail | None = None
    #: Whether the page leaves out later entries.
    is_cut: bool = False
    #: Whether an entry contains or touches the page's start, as proof that the start is in the stream.
    is_in_stream: bool = False
    #: Whether the tombstone was found.
    has_ended: bool = False
    #: Whether nothing follows the last entry.
    at_tail: bool = False


def _page_of(
    walk: ChainWalk[Entry],
    entries: Iterator[tuple[Piece | Tombstone, Span]],
    start: int,
    limit_bytes: int,
    most_bytes: int,
) -> _PageParts:
    """Collect batches until the page is full. Beyond the page, up to `most_bytes`, only batches from the last
    query and blocks of the same request are worth decoding."""
    found, reached = _PageParts(), start
    for entry, span in entries:
        found.is_in_stream |= entry.start <= start <= entry.end
        if isinstance(entry, Tombstone):
            found.has_ended, found.is_cut = True, entry.start > reached
            break
        is_block = isinstance(entry, UnreadBlock)
        size = entry.entry.data_bytes if isinstance(entry, UnreadBlock) else entry.size
        if entry.start < start and entry.end <= start:
            found.before = None if isinstance(entry, UnreadBlock) else entry.after
            continue
        wanted_bytes = most_bytes if is_block or walk.items_left > 0 else limit_bytes
        size = min(size, entry.end - reached)
        is_beyond = is_block and found.parts and found.data_bytes + size > wanted_bytes
        if entry.start > reached or is_beyond:
            found.is_cut = True
            break
        if is_block and found.parts and entry.end <= reached:
            continue  # A replaced batch led the walk to this pack.
        found.parts.append(_Part(entry, span, reached if found.parts else entry.start))
        end = entry.end if span.end is None else min(entry.end, span.end)
        found.data_bytes += min(size, end - reached)
        reached = end
        if found.data_bytes > wanted_bytes:
            break
    found.at_tail = walk.at_tail
    with suppress(Damaged):  # A later page reports damage beyond this one.
        for _ in range(min(walk.items_left, _BODIES_AHEAD)):
            if walk.limit is None:
                break
            next(entries, None)
    return found


def _unpacked(
    walk: ChainWalk[Entry], start: int, recent: RecentBatches | None, *, is_whole: bool
) -> Iterator[tuple[Piece | Tombstone, Span]]:
    """Yield the entries of the walk, with the blocks in the span in place of a pack. Entries with their bytes
    in S3 are kept in `recent`; batches only if all their attributes were read."""
    keeps = recent if is_whole else None
    for entry in walk:
        span, walk.limit = walk.span, None
        if isinstance(entry, Pack):
            if recent is not None:
                recent.keep_found(span.incarnation, entry)
            for block in blocks_of(entry, start):
                if span.end is None or block.start < span.end:
                    yield block, span
            continue
        if keeps is not None and isinstance(entry, Batch) and entry.data is None and entry.blob is not None:
            is_light = len(entry.lengths) + len(entry.after.producers) <= _LIGHT
            if is_light:
                keeps.keep_found(span.incarnation, entry)
            walk.limit = _BODIES_AHEAD if is_light else None
        yield entry, span


def _load_parts(parts: Sequence[_Part], fill: Fill, ahead: RecentBatches | None) -> list[Batch]:
    """Return the batches of the page; `ahead` keeps the uncut batches. Raises Damaged if the checksums show
    that a batch was not written after the batch before."""
    for earlier, later in pairwise(parts):
        is_next = later.span is earlier.span and later.piece.start == earlier.piece.end
        if is_next and not later.piece.checksums.follow(earlier.piece.checksums):
            _log.error(
                "a log is damaged: %s at %d does not follow the batch before",
                later.span.pk,
                later.piece.start,
            )
            raise Damaged
    batches = []
    for batch, (_, span, begin) in zip(fill([part.piece for part in parts]), parts, strict=True):
        if ahead is not None:
            ahead.keep(span.incarnation, batch)
        wanted = cut_front(batch, begin) if batch.start < begin else batch
        batches.append(wanted if span.end is None else cut_batch(wanted, span.end))
    return batches


def _walk(
    query: Query,
    record: StreamRecord,
    start: int,
    recent: RecentBatches | None,
    limit_bytes: int,
    *,
    looks_back: bool,
) -> ChainWalk[Entry]:
    """Walk the entries from `start` on. Entries in `recent` cost no query."""
    return ChainWalk(
        query,
        partial(map, schema.decode_entry),
        [span for span in spans_of(record) if span.end is None or span.end > start],
        start,
        known=partial(recent.chain_with_pack, last=start + limit_bytes) if recent else None,
        looks_back=looks_back,
        max_queries=PAGE_QUERIES,
        packed=record.packed,
    )


def _cut_page(
    record: StreamRecord, start: int, batches: list[Batch], limit_bytes: int, *, reached_tail: bool
) -> Page:
    """Return a page of the batches that fit. A single batch may exceed the limit."""
    skip = max(0, start - batches[0].start)
    if skip and record.content_type.is_json:
        messages = batches[0].messages_before(start)
        if messages is None:
            raise Malformed(f"Offset {render_offset(start)} is not the end of a message")
        skip = sum(batches[0].lengths[:messages])
    if batches[-1].end - start > limit_bytes:
        ends = list(accumulate(batch.data_bytes for batch in batches))
        fitting = batches[: max(1, bisect_right(ends, skip + limit_bytes))]
    else:
        fitting = batches
    compacted = start < record.compacted
    if len(fitting) < len(batches):
        return Page(start, tuple(fitting), up_to_date=False, skip=skip, compacted=compacted)
    closed = reached_tail and batches[-1].after.closed
    return Page(start, tuple(batches), reached_tail, closed, skip, compacted=compacted)
