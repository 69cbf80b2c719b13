"""Read (§5.6): one page from an offset, or where the tail is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.log.lifecycle import load_stream
from tidemark.log.read import Page, load_last, read_page
from tidemark.log.records import StreamRecord
from tidemark.log.schema import log_pk, stream_key
from tidemark.log.table import ConditionFailed, if_incarnation
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.expiry import is_expired, needs_renewal
from tidemark.protocol.offset import NOW, ReadFrom
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.load import ended, existing, known_from, load_known
from tidemark.service.stores import Stores


@dataclass(frozen=True, slots=True)
class Reading:
    """A page of a stream, with all its bytes."""

    record: StreamRecord
    page: Page

    @property
    def data(self) -> bytes:
        return self.page.data


def read(stores: Stores, key: StreamKey, read_from: ReadFrom) -> Reading:
    """One page. Raises StreamNotFound, or Malformed for an offset not in the stream.

    A read renews a sliding expiry (§5.1), whether it finds data or not.
    """
    now_ms = stores.clock_ms()
    if read_from == NOW:
        known = load_known(stores, key)
        record = _renew(stores, known.record, known.touched_ms, now_ms)
        tail = known.tail
        return Reading(record, Page(tail.offset, (), up_to_date=True, closed=tail.closed))
    record, page = _load_page(stores, key, read_from, now_ms)
    record = _keep_alive(stores, record, page, now_ms)
    return _reading(stores, record, page, now_ms)


def read_on(stores: Stores, reading: Reading) -> Reading:
    """What has come after a page that reached the tail: one query and no look at the
    stream's item, because a deletion shows in the log. Raises StreamNotFound."""
    record, start = reading.record, reading.page.end
    now_ms = stores.clock_ms()
    page = _query_page(stores, record, start, Tail(start))
    return _reading(stores, record, page, now_ms)


def _reading(stores: Stores, record: StreamRecord, page: Page, now_ms: int) -> Reading:
    if page.deleted:
        stores.tails.forget(record.key)
        raise ended(load_stream(stores.table, record.key))
    page = _with_blobs(stores, page)
    own = [batch for batch in page.batches if batch.start >= record.base]
    stores.recent.keep(record.incarnation, *own)
    if page.up_to_date and own:
        stores.tails.learn(known_from(record, own[-1], now_ms))
    return Reading(record, page)


def _with_blobs(stores: Stores, page: Page) -> Page:
    """The page with the bytes that lie in S3, all fetched at once."""
    names = [batch.blob for batch in page.batches if batch.data is None and batch.blob is not None]
    if not names:
        return page
    blobs = iter(stores.fetch(names))
    batches = (
        replace(batch, data=next(blobs)[: batch.size]) if batch.data is None else batch
        for batch in page.batches
    )
    return replace(page, batches=tuple(batches))


def _load_page(stores: Stores, key: StreamKey, start: int, now_ms: int) -> tuple[StreamRecord, Page]:
    """The stream and the page at once where the incarnation is known, else in turn."""
    known = stores.tails.get(key, now_ms)
    if known is None:
        record = existing(load_stream(stores.table, key))
        return record, _query_page(stores, record, start, None)
    guess = known
    found, page = stores.concurrency.pair(
        lambda: load_stream(stores.table, key),
        lambda: _query_page(stores, guess.record, start, guess.tail),
    )
    record = existing(found)
    if record.incarnation != known.record.incarnation:
        stores.tails.forget(key)
        page = _query_page(stores, record, start, None)
    return record, page


def _query_page(stores: Stores, record: StreamRecord, start: int, known_tail: Tail | None) -> Page:
    return read_page(stores.table, record, start, known_tail=known_tail, recent=stores.recent)


def _keep_alive(stores: Stores, record: StreamRecord, page: Page, now_ms: int) -> StreamRecord:
    """Judge the expiry, and renew a sliding one. Raises StreamNotFound.

    Writes renew by their batches alone, so a stream that nobody reads looks idle in its
    item; only then is its tail asked.
    """
    touched_ms = max(record.touched_ms, page.last.time_ms if page.last else 0)
    if is_expired(record.expiry, touched_ms, now_ms):
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        touched_ms = max(touched_ms, last.time_ms if last else 0)
        if is_expired(record.expiry, touched_ms, now_ms):
            raise ended(record)
    return _renew(stores, record, touched_ms, now_ms)


def _renew(stores: Stores, record: StreamRecord, touched_ms: int, now_ms: int) -> StreamRecord:
    """Record that a read took place. Raises StreamNotFound where the stream just ended."""
    if not needs_renewal(record.expiry, touched_ms, now_ms):
        return record
    try:
        stores.table.set_number(stream_key(record.key), "to", now_ms, if_incarnation(record.incarnation))
    except ConditionFailed:
        raise StreamNotFound from None
    return replace(record, touched_ms=now_ms)
