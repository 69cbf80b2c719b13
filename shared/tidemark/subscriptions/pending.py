"""Finds the streams of a subscription that have new data, by pending marks and the streams' tails; and the
subscriptions whose notice was lost.

The cost of a delivery grows with the changed streams, not with the links: only marked streams are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeVar

import orjson

from tidemark.log.buckets import pages_of_records
from tidemark.log.read import load_news, logs_written_at
from tidemark.log.records import StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.table import Table
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import SoftDeleted, StreamNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.load import load_head
from tidemark.service.stores import Stores
from tidemark.subscriptions import storage
from tidemark.subscriptions.configuration import literal_prefix
from tidemark.subscriptions.notices import Changed, encode_notice
from tidemark.subscriptions.records import PendingMark, RosterEntry, StreamLink, SubscriptionRecord
from tidemark.subscriptions.state import Step, next_step
from tidemark.subscriptions.storage import SubscriptionChanged

#: Most streams that one delivery names. The next delivery names the others.
MAX_STREAMS_IN_A_DELIVERY: Final = 500
#: Most links that a claim checks itself if there is no mark yet.
MAX_LOOKED_AT: Final = 1_000
#: Most dead letters in a row: if the delivery of the third letter fails too, no letter follows.
MAX_HOPS: Final = 3
_AT_ONCE: Final = 16
_PAGE: Final = 200

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PendingStream:
    """A stream whose tail lies beyond the acked offset, as both were read just now."""

    link: StreamLink
    acked: int
    tail: int
    stream_incarnation: str


def stream_key_of(path: str) -> StreamKey:
    return StreamKey(PLAIN_BUCKET, path)


def find_head(stores: Stores, path: str) -> StreamHead | None:
    """The stream as it is now, or None if there is no stream at `path`."""
    try:
        return load_head(stores, stream_key_of(path))
    except (StreamNotFound, SoftDeleted):
        return None


def acked_in(link: StreamLink, head: StreamHead) -> int:
    """The acked offset in this incarnation of the stream: 0 if the ack belongs to an earlier one."""
    return link.acked if link.stream_incarnation == head.record.incarnation else 0


def is_behind(link: StreamLink, head: StreamHead) -> bool:
    return acked_in(link, head) < head.tail.offset


def find_pending(
    stores: Stores, record: SubscriptionRecord, limit: int = MAX_STREAMS_IN_A_DELIVERY
) -> list[PendingStream]:
    """Up to `limit` streams with something new, by path. Removes marks of streams with nothing new."""
    found: list[PendingStream] = []
    marks = storage.load_marks(stores.table, record.incarnation, min(100, max(_AT_ONCE, limit)))
    for some in _sixteens(marks):
        checked = stores.concurrency.each(lambda mark: _check_mark(stores, record, mark), some)
        found += [stream for stream in checked if stream is not None]
        if len(found) >= limit:
            break
    return found[:limit]


def _sixteens(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Divide into groups that are read concurrently."""
    left = iter(items)
    return iter(lambda: list(islice(left, _AT_ONCE)), [])


def _check_mark(stores: Stores, record: SubscriptionRecord, mark: PendingMark) -> PendingStream | None:
    """Look the stream of the mark up. The tail is read after the mark, so a later append raises the mark."""
    link = storage.load_link(stores.table, record.incarnation, mark.path)
    head = find_head(stores, mark.path)
    if head is None:
        if link is not None:
            _forget_stream(stores, link)
    elif link is None and record.configuration.follows(mark.path):
        # The stream is new: it is linked before its first append (§6.2).
        new = head.record.incarnation
        link = StreamLink(record.incarnation, mark.path, explicit=False, acked=0, stream_incarnation=new)
        storage.put_link_once(stores.table, link)
    if head is not None and link is not None and is_behind(link, head):
        link = _linked_to(stores, link, head.record.incarnation)
        return PendingStream(link, link.acked, head.tail.offset, head.record.incarnation)
    storage.remove_mark(stores.table, mark)
    return None


def _linked_to(stores: Stores, link: StreamLink, stream_incarnation: str) -> StreamLink:
    """The link with this incarnation of the stream. The incarnation is stored before a delivery names the
    stream, so that a later ack cannot apply to a new stream of that name."""
    if link.stream_incarnation == stream_incarnation:
        return link
    linked = replace(link, acked=0, stream_incarnation=stream_incarnation)
    with suppress(SubscriptionChanged):
        storage.change_link(stores.table, link, linked)
    return linked


def _forget_stream(stores: Stores, link: StreamLink) -> None:
    """Remove the link: the stream has ended. A link that was named one by one stays, and begins again with
    the next stream of that name."""
    with suppress(SubscriptionChanged):
        if link.explicit:
            storage.change_link(stores.table, link, replace(link, acked=0, stream_incarnation=""))
        else:
            storage.remove_link(stores.table, link)


def hops_of(message: Any) -> int:
    """The number of dead letters in a row that led to this one; 0 for another message."""
    is_letter = isinstance(message, dict) and message.get("type") == "dead-letter"
    hops = message.get("hops") if is_letter else 0
    return hops if isinstance(hops, int) else 0


def count_hops(table: Table, streams: Sequence[PendingStream]) -> int:
    """The number of dead letters in a row that led to these pending streams; 0 unless all pending messages
    are dead letters. Takes one query for each stream, up to the first other message."""
    fewest = MAX_HOPS
    for stream in streams:
        pk = log_pk(stream_key_of(stream.link.path), stream.stream_incarnation)
        _, news = load_news(table, pk, stream.acked)
        try:
            messages: list[Any] = orjson.loads(b"[%b]" % news.stored.rstrip(b",")) if news else [None]
        except orjson.JSONDecodeError:
            return 0
        for message in messages:
            fewest = min(fewest, hops_of(message))
        if fewest <= 0:
            return 0
    return fewest


def mark_appended(stores: Stores, record: SubscriptionRecord) -> bool:
    """Mark the streams that have a batch at the acked offset: §7 counts an append as pending at once, and its
    stream record may be late. Returns whether there are any.

    Two kinds of streams need no check here. A stream that is acked up to the middle of a batch still has its
    mark. A stream that did not exist when it was named gets its mark from the stream record."""
    links = storage.load_links(stores.table, record.incarnation, limit=MAX_LOOKED_AT)
    by_log = {log_pk(stream_key_of(each.path), each.stream_incarnation): each for each in links}
    places = {pk: link.acked for pk, link in by_log.items() if link.stream_incarnation}
    grown = [by_log[pk] for pk in logs_written_at(stores.table, places, stores.concurrency.each)]
    stores.concurrency.each(lambda link: _mark(stores, record, link.path, link.stream_incarnation), grown)
    return bool(grown)


def mark_what_is_pending(stores: Stores, record: SubscriptionRecord) -> bool:
    """Read the linked streams themselves and mark those with something new: the stream records may be late or
    lost. Stops after a group of 16 with a mark. Returns whether any was marked."""

    def look(link: StreamLink) -> bool:
        head = find_head(stores, link.path)
        if head is None or not is_behind(link, head):
            return False
        _mark(stores, record, link.path, head.record.incarnation)
        return True

    links = storage.load_links(stores.table, record.incarnation, limit=MAX_LOOKED_AT)
    return any(any(stores.concurrency.each(look, some)) for some in _sixteens(links))


def _mark(stores: Stores, record: SubscriptionRecord, path: str, stream_incarnation: str) -> None:
    """Write the lowest mark; the mark of the stream record raises it."""
    storage.put_mark(stores.table, PendingMark(record.incarnation, path, stream_incarnation, -1))


# --- where notices were lost --------------------------------------------------------


def remind(
    stores: Stores, send: Callable[[Sequence[str]], None], has_time_left: Callable[[], bool] = lambda: True
) -> int:
    """Send a notice for each subscription that is due, not created to the end, or idle with a mark. Returns
    their number. Takes one query for the roster, and one or two small reads for each subscription. Also
    removes ended subscriptions that a reused id has left in the roster."""
    found, ended = list[str](), list[RosterEntry]()
    for entry in storage.load_roster(stores.table):
        if not has_time_left():
            break
        record = storage.load_subscription(stores.table, entry.subscription_id)
        if record is None or record.incarnation != entry.incarnation:
            ended.append(entry)
            continue
        if not record.active:
            is_due = True
        elif (step := next_step(record.delivery, stores.clock_ms())) is Step.LOOK:
            is_due = any(storage.load_marks(stores.table, record.incarnation, 1))
        else:
            is_due = step is not Step.WAIT
        if is_due:
            found.append(encode_notice(Changed(entry.subscription_id)))
    if found:
        send(found)
    for entry in ended:
        if has_time_left():
            storage.remove_belongings(stores.table, entry.subscription_id, entry.incarnation)
    return len(found)


def followed_streams(stores: Stores, record: SubscriptionRecord) -> Iterator[list[StreamRecord]]:
    """The streams that the subscription's pattern matches, in pages."""
    pattern = record.configuration.pattern
    if pattern is not None:
        for streams in pages_of_records(stores.table, PLAIN_BUCKET, literal_prefix(pattern), _PAGE):
            yield [stream for stream in streams if record.configuration.follows(stream.key.stream_id)]
