"""Finds the streams of a subscription with new data, from its pending marks and the tails behind them.

A wake costs what has changed, however many streams are linked: only marked streams are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tidemark.log.entries import Tombstone
from tidemark.log.lifecycle import load_stream
from tidemark.log.read import load_last
from tidemark.log.schema import PK, batch_key, log_pk
from tidemark.log.table import MAX_GETS
from tidemark.log.tails import StreamHead
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.load import head_from
from tidemark.service.stores import Stores
from tidemark.subscriptions.records import PendingMark, StreamLink, SubscriptionRecord
from tidemark.subscriptions.storage import (
    SubscriptionChanged,
    change_link,
    load_link,
    load_links,
    load_marks,
    put_link_once,
    put_mark,
    remove_link,
    remove_mark,
)

#: Streams that one wake names. The others stay pending, and the next wake names them.
MAX_STREAMS_IN_A_WAKE: Final = 500
#: Links that a claim checks itself if there is no mark yet.
MAX_LOOKED_AT: Final = 1_000
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class PendingStream:
    """A stream whose tail lies beyond what is acked, as both were read just now."""

    link: StreamLink
    acked: int
    tail: int
    stream_incarnation: str


def stream_key_of(path: str) -> StreamKey:
    return StreamKey(PLAIN_BUCKET, path)


def find_head(stores: Stores, path: str) -> StreamHead | None:
    """The stream as it is now; None if there is none. Two reads, one after the other: many streams are
    looked at at once, on threads, and a thread that waits for another one would leave none.

    A stream that ends between the two reads counts as none. The next one of its name has marks of its own.
    """
    now_ms = stores.clock_ms()
    record = load_stream(stores.table, stream_key_of(path))
    if record is None or record.deleted:
        return None
    last = load_last(stores.table, log_pk(record.key, record.incarnation))
    head = head_from(record, last, now_ms)
    is_over = isinstance(last, Tombstone) or head.is_expired(now_ms)
    return None if is_over else head


def acked_in(link: StreamLink, head: StreamHead) -> int:
    """How far the link's workers have come in this very stream, and not in an earlier one of its name."""
    return link.acked if link.stream_incarnation == head.record.incarnation else 0


def find_pending(
    stores: Stores, record: SubscriptionRecord, limit: int = MAX_STREAMS_IN_A_WAKE
) -> list[PendingStream]:
    """Up to `limit` streams with something new, by path. Marks without anything behind them are removed."""
    found: list[PendingStream] = []
    after = ""
    check = _checker(stores, record)
    while len(found) < limit:
        marks = load_marks(
            stores.table, record.incarnation, after, min(100, max(_AT_ONCE, limit - len(found)))
        )
        for start in range(0, len(marks), _AT_ONCE):
            checked = stores.concurrency.each(check, marks[start : start + _AT_ONCE])
            found += [stream for stream in checked if stream is not None]
            if len(found) >= limit:
                break
        if not marks:
            break
        after = marks[-1].path
    return found[:limit]


def _checker(stores: Stores, record: SubscriptionRecord) -> Callable[[PendingMark], PendingStream | None]:
    """Looks up the stream of one mark. The tail is read after the mark: an append after that raises the
    mark."""

    def check(mark: PendingMark) -> PendingStream | None:
        link = load_link(stores.table, record.incarnation, mark.path)
        head = find_head(stores, mark.path)
        if head is None:
            if link is not None:
                _forget_stream(stores, link)
        elif link is None and record.configuration.follows(mark.path):
            # The stream is new: it is linked before its first append (§6.2).
            link = StreamLink(
                record.incarnation,
                mark.path,
                explicit=False,
                acked=0,
                stream_incarnation=head.record.incarnation,
            )
            put_link_once(stores.table, link)
        if head is not None and link is not None:
            acked = acked_in(link, head)
            if head.tail.offset > acked:
                return PendingStream(link, acked, head.tail.offset, head.record.incarnation)
        remove_mark(stores.table, mark)
        return None

    return check


def _forget_stream(stores: Stores, link: StreamLink) -> None:
    """The stream has ended. One that was named stays named, and begins again with the next of that name."""
    with suppress(SubscriptionChanged):
        if link.explicit:
            change_link(stores.table, link, replace(link, acked=0, stream_incarnation=""))
        else:
            remove_link(stores.table, link)


def mark_appended(stores: Stores, record: SubscriptionRecord) -> bool:
    """Mark the streams that have grown behind what is acked, where the trigger has not come by yet: §7 counts
    them from their append on. Returns whether there are any.

    The next batch of a stream lies where the last one ended, so one call asks a hundred streams. One that is
    acked up to the middle of a batch has its mark still, and one that was not there when it was named leaves
    its mark by the trigger."""
    links = load_links(stores.table, record.incarnation, limit=MAX_LOOKED_AT)
    by_log = {log_pk(stream_key_of(each.path), each.stream_incarnation): each for each in links}
    keys = [batch_key(pk, link.acked) for pk, link in by_log.items() if link.stream_incarnation]
    hundreds = [keys[start : start + MAX_GETS] for start in range(0, len(keys), MAX_GETS)]
    pages = stores.concurrency.each(lambda some: stores.table.get_many(some, (PK,)), hundreds)
    grown = [by_log[item[PK]["S"]] for page in pages for item in page]
    stores.concurrency.each(lambda link: _mark(stores, link, link.stream_incarnation), grown)
    return bool(grown)


def _mark(stores: Stores, link: StreamLink, stream_incarnation: str) -> None:
    """Write the lowest mark; the trigger's own mark raises it."""
    put_mark(stores.table, PendingMark(link.subscription_incarnation, link.path, stream_incarnation, -1))


def mark_what_is_pending(stores: Stores, record: SubscriptionRecord, limit: int = MAX_LOOKED_AT) -> bool:
    """Look at the linked streams themselves, where the trigger has not come by yet or has failed. Returns
    whether anything was marked; stops at the first sixteen that hold something."""
    links = load_links(stores.table, record.incarnation, limit=limit)

    def look(link: StreamLink) -> bool:
        head = find_head(stores, link.path)
        if head is None or head.tail.offset <= acked_in(link, head):
            return False
        _mark(stores, link, head.record.incarnation)
        return True

    for start in range(0, len(links), _AT_ONCE):
        if any(stores.concurrency.each(look, links[start : start + _AT_ONCE])):
            return True
    return False
