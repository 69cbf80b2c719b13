"""Read (§5.6): a page from an offset, or the tail's offset."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tidemark.log.read import PAGE_BYTES, Page, load_stream, load_streams, read_page
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import TOUCHED_MS, stream_key
from tidemark.log.table import ConditionFailed
from tidemark.protocol import errors
from tidemark.protocol.caching import is_of_another
from tidemark.protocol.expiry import needs_renewal, renew_waiting_at_ms
from tidemark.protocol.offset import EARLIEST, NOW, PageStart, ReadFrom
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.protocol.where import MessageFilter
from tidemark.service.load import ended_error, head_from, last_used_ms, load_head, require_live
from tidemark.service.stores import Stores

#: Page size for a reader that gets data in pieces and may stop at any time.
SMALL_PAGE_BYTES: Final = 32 * 1024
#: Bytes of a query's result that are kept for the reader's next small pages.
AHEAD_BYTES: Final = 1024 * 1024
SMALL: Final[dict[str, Any]] = {"limit_bytes": SMALL_PAGE_BYTES, "ahead_bytes": AHEAD_BYTES}

_log = logging.getLogger("tidemark")


@dataclass(frozen=True, slots=True)
class Reading:
    """A page of a stream, with all its bytes."""

    record: StreamRecord
    page: Page

    @property
    def data(self) -> bytes:
        return self.page.data

    @property
    def is_news(self) -> bool:
        """Whether a waiting reader gets this page."""
        return self.page.has_data or self.page.closed or not self.page.up_to_date

    @property
    def is_match(self) -> bool:
        """Whether a reader that waits for certain messages gets this page of them."""
        return bool(self.page.data) or self.page.closed

    def without_bytes(self) -> Reading:
        """The position after the page, without the page's bytes: a reader may wait there for long. The page's
        batches count as uses for a sliding expiry."""
        record = self.record
        if record.expiry.ttl_seconds is not None:
            record = replace(record, touched_ms=max(record.touched_ms, self.page.written_ms))
        return Reading(record, Page(self.page.end, (), up_to_date=True))


def read(
    stores: Stores, key: StreamKey, read_from: ReadFrom, cursor: int | None = None, *, small: bool = False
) -> Reading:
    """Read a page, or a small one. Raises StreamNotFound, StaleCursor for the cursor of an earlier stream of
    this name, RetentionGone for an offset below the retained offset, HistoryGone for an offset beyond the
    tail, or Malformed for an offset inside a message.

    A read renews a sliding expiry (§5.1), whether it finds data or not.
    """
    now_ms = stores.clock_ms()
    if read_from == NOW:
        head = load_head(stores, key)
        record = renew(stores, head.record, head.touched_ms, now_ms)
        tail = head.tail
        return Reading(record, Page(tail.offset, (), up_to_date=True, closed=tail.closed))
    record, page = load_page(stores, key, read_from, now_ms, SMALL if small else {}, cursor=cursor)
    return _finish(stores, _keep_alive(stores, record, page), page, now_ms)


def read_record(
    stores: Stores, record: StreamRecord, start: int, limit_bytes: int = PAGE_BYTES, ahead_bytes: int = 0
) -> Reading:
    """Read a page of a stream whose item was read just now. Raises as `read`."""
    now_ms = stores.clock_ms()
    head = stores.tails.get(record.key, now_ms)
    # A read at the tail takes one query if the tail is known.
    known = head.tail if head and head.record.incarnation == record.incarnation else None
    asked = {"limit_bytes": limit_bytes, "ahead_bytes": ahead_bytes}
    page = _query_page(stores, record, start, known, asked)
    return _finish(stores, _keep_alive(stores, record, page), page, now_ms)


def read_each(
    stores: Stores, asked: Sequence[tuple[StreamKey, PageStart]], limit_bytes: int
) -> list[Reading | errors.ProtocolError]:
    """Read a page of several streams: one call for their items, and one query for each. Returns a page for
    each stream, or the error that `read` would raise. All pages are in memory at once."""
    records = load_streams(stores.table, [key for key, _ in asked], stores.concurrency.each)

    def read_one(each: tuple[StreamKey, PageStart]) -> Reading | errors.ProtocolError:
        try:
            record = require_live(records.get(each[0]))
            start = _begin(record, each[1])
            if start < record.retained:
                last_used_ms(stores, record, 0)
                raise errors.RetentionGone(record.retained)
            return read_record(stores, record, start, limit_bytes)
        except errors.ProtocolError as error:
            return error.without_frames()

    return stores.concurrency.each(read_one, asked)


def read_on(stores: Stores, reading: Reading, *, small: bool = False) -> Reading:
    """Read the data after a page that reached the tail: one query, without the stream's item, because a
    deletion shows in the log. Raises StreamNotFound."""
    record, start = reading.record, reading.page.end
    now_ms = stores.clock_ms()
    page = _query_page(stores, record, start, Tail(start), SMALL if small else {})
    return _finish(stores, record, page, now_ms)


def select(reading: Reading, where: MessageFilter) -> Reading:
    """Leave out the messages that do not match, as if they were compacted: the page's end and the offsets of
    the other messages stay. Takes CPU time for each message. Raises Malformed unless the stream is JSON."""
    record, page = reading.record, reading.page
    if not record.content_type.is_json:
        raise errors.Malformed(
            f"where selects messages of application/json; this stream is {record.content_type.essence}"
        )
    if not page.batches:
        return reading
    matches, kept, reached = where.make_rule(), list[bytes](), page.start
    lengths, gaps = list[int](), array("Q")
    for batch in page.batches:
        data, at = batch.data or b"", 0
        for length, end in zip(batch.lengths, batch.each_message_end(), strict=True):
            if end > page.start and matches(data[at : at + length - 1]):
                kept.append(data[at : at + length])
                lengths.append(length)
                gaps.append(end - length - reached)
                reached = end
            at += length
    last = page.batches[-1]
    selected = Batch(
        page.start, last.after, last.append_id, last.time_ms, b"".join(kept), None, tuple(lengths), gaps=gaps
    )
    return Reading(record, replace(page, batches=(selected,), skip=0, compacted=True))


def load_page(
    stores: Stores,
    key: StreamKey,
    asked_from: PageStart,
    now_ms: int,
    asked: Mapping[str, Any],
    *,
    cursor: int | None = None,
) -> tuple[StreamRecord, Page]:
    """Load the stream and the page: concurrently if the incarnation is remembered, else in turn. `asked` are
    further arguments of `read_page`. Raises as `read`.

    An invalid offset or missing data is an error only after a look at the stream's item: the stream may have
    been replaced, may have expired, or may have been trimmed.
    """
    remembered = stores.tails.get(key, now_ms)
    page: Page | errors.ProtocolError | None = None
    if remembered is None:
        record = require_live(load_stream(stores.table, key))
    else:
        guess = _begin(remembered.record, asked_from)
        found, page = stores.concurrency.pair(
            partial(load_stream, stores.table, key),
            partial(_try_page, stores, remembered.record, guess, remembered.tail, asked),
        )
        record = require_live(found)
        if guess != _begin(record, asked_from) or record.compacted != remembered.record.compacted:
            page = None
    start = _begin(record, asked_from)
    # A read from the beginning ignores the cursor.
    if asked_from not in {EARLIEST, 0} and is_of_another(cursor, record.incarnation, now_ms):
        last_used_ms(stores, record, 0)  # Raises StreamNotFound if the stream has expired; so below.
        raise errors.StaleCursor(record.retained)
    if start < record.retained:
        last_used_ms(stores, record, 0)
        raise errors.RetentionGone(record.retained)
    if remembered is not None and record.incarnation != remembered.record.incarnation:
        stores.tails.forget(key)
        page = None
    if page is None:
        page = _try_page(stores, record, start, None, asked)
    if not isinstance(page, Page):
        last_used_ms(stores, record, 0)
        if page.__cause__ is not None:
            _log.error("the log of %s is damaged: %s", key, page.__cause__)
        raise page
    return record, page


def _begin(record: StreamRecord, asked_from: PageStart) -> int:
    """The offset at which a read begins; for "-1" the retained offset. If the stream has a snapshot, the
    messages alone are not the whole stream: "-1" becomes 0, and the read is refused with the way on
    (extensions §2.2)."""
    if asked_from != EARLIEST:
        return asked_from
    return record.retained if record.snapshot is None else 0


def _try_page(
    stores: Stores, record: StreamRecord, start: int, known_tail: Tail | None, asked: Mapping[str, Any]
) -> Page | errors.ProtocolError:
    try:
        page = _query_page(stores, record, start, known_tail, asked)
        if known_tail is None or not page.up_to_date or page.end >= known_tail.offset:
            return page
    except errors.HistoryGone as fault:
        if known_tail is None or start > known_tail.offset:
            return fault
    except (errors.Malformed, errors.Damaged) as fault:
        return fault
    # The missing data lie before a tail that this process has seen.
    damaged = errors.Damaged()
    damaged.__cause__ = LookupError(f"its last batches are missing: its tail was at {known_tail.offset}")
    return damaged


def _query_page(
    stores: Stores, record: StreamRecord, start: int, known_tail: Tail | None, asked: Mapping[str, Any]
) -> Page:
    return read_page(
        stores.table, record, start, known_tail=known_tail, recent=stores.recent, fill=stores.fill, **asked
    )


def _keep_alive(stores: Stores, record: StreamRecord, page: Page) -> StreamRecord:
    """Check the expiry, and renew a sliding one. Raises StreamNotFound or SoftDeleted."""
    touched_ms = last_used_ms(stores, record, page.written_ms)
    return renew(stores, record, touched_ms, stores.clock_ms())


def renew_while_waiting(stores: Stores, record: StreamRecord) -> StreamRecord:
    """Renew a sliding expiry for a waiting reader when it is nearly over, unless another process has renewed
    it meanwhile. Raises StreamNotFound or SoftDeleted."""
    now_ms = stores.clock_ms()
    due_ms = renew_waiting_at_ms(record.expiry, record.used_ms)
    if due_ms is None or now_ms < due_ms:
        return record
    head = load_head(stores, record.key)
    if head.record.incarnation != record.incarnation:
        raise errors.StreamNotFound
    record = replace(record, touched_ms=head.touched_ms)
    due_ms = renew_waiting_at_ms(record.expiry, record.used_ms)
    return record if due_ms is None or now_ms < due_ms else renew(stores, record, record.used_ms, now_ms)


def renew(stores: Stores, record: StreamRecord, touched_ms: int, now_ms: int) -> StreamRecord:
    """Record a use of the stream that wrote no batch. Raises StreamNotFound if the stream just ended."""
    if not needs_renewal(record.expiry, touched_ms, now_ms):
        return record
    try:
        stores.table.raise_number(stream_key(record.key), TOUCHED_MS, now_ms, record.incarnation)
    except ConditionFailed:
        raise errors.StreamNotFound from None
    return replace(record, touched_ms=now_ms)


def _finish(stores: Stores, record: StreamRecord, page: Page, now_ms: int) -> Reading:
    """Fill the page with its bytes, and remember its batches and tail. Raises StreamNotFound or Damaged."""
    if page.ended:
        raise forgotten(stores, record)
    page = with_blobs(stores, page)
    own = [batch for batch in page.batches if batch.start >= record.base]
    shared = stores.recent.keep(record.incarnation, *own)
    page = replace(page, batches=(*page.batches[: len(page.batches) - len(own)], *shared))
    if page.up_to_date and own:
        stores.tails.learn(head_from(record, own[-1], now_ms))
    return Reading(record, page)


def forgotten(stores: Stores, record: StreamRecord) -> errors.ProtocolError:
    """Forget a stream whose page shows its end, and return the error."""
    stores.tails.forget(record.key)
    return ended_error(stores, record)


def with_blobs(stores: Stores, page: Page) -> Page:
    """The page with the bytes that are in S3, fetched concurrently. Raises Damaged unless every batch is
    complete: otherwise readers would take the next bytes for the missing ones."""
    wanted = [
        (batch.blob, batch.blob_bytes or batch.size)
        for batch in page.batches
        if batch.data is None and batch.blob is not None
    ]
    if wanted:
        blobs = iter(stores.fetch(wanted))
        batches = (
            _with_blob(batch, next(blobs)) if batch.data is None and batch.blob else batch
            for batch in page.batches
        )
        page = replace(page, batches=tuple(batches))
    for batch in page.batches:
        if len(batch.data or b"") != (batch.size if batch.gaps is None else batch.data_bytes):
            _log.error("a batch is damaged: %s of %d bytes at %d", batch.append_id, batch.size, batch.start)
            raise errors.Damaged
    return page


def _with_blob(batch: Batch, blob: bytes) -> Batch:
    if not batch.checksums.fit(batch.start, blob):
        _log.error("a batch is damaged: %s does not fit the checksum at %d", batch.blob, batch.start)
        raise errors.Damaged
    return replace(batch, data=blob[: batch.size])
