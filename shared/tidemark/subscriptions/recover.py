"""Finding work without any trigger: for a process that has not seen the table's stream for a while."""

from __future__ import annotations

from tidemark.log.buckets import list_records
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import literal_prefix
from tidemark.subscriptions.pending import acked_in, find_head
from tidemark.subscriptions.records import PendingMark, SubscriptionRecord
from tidemark.subscriptions.storage import load_link, load_links, load_roster, load_subscription, put_mark

_PAGE = 200


def recover(stores: Stores) -> list[str]:
    """Mark every followed stream that holds something new. Returns the subscriptions to attend to: all of
    them. It takes two reads for each link and each stream that a pattern may match."""
    found = []
    for entry in load_roster(stores.table):
        record = load_subscription(stores.table, entry.subscription_id)
        if record is not None and record.incarnation == entry.incarnation and record.active:
            mark_all(stores, record)
        found.append(entry.subscription_id)
    return found


def mark_all(stores: Stores, record: SubscriptionRecord) -> None:
    for link in load_links(stores.table, record.incarnation):
        head = find_head(stores, link.path)
        if head is not None and head.tail.offset > acked_in(link, head):
            _mark(stores, record, link.path, head.record.incarnation)
    pattern, after, more = record.configuration.pattern, "", True
    while pattern is not None and more:
        streams, more = list_records(stores.table, PLAIN_BUCKET, literal_prefix(pattern), after, _PAGE)
        for stream in streams:
            after = stream.key.stream_id
            if (
                record.configuration.follows(after)
                and load_link(stores.table, record.incarnation, after) is None
            ):
                _mark(stores, record, after, stream.incarnation)
        more = more and bool(streams)


def _mark(stores: Stores, record: SubscriptionRecord, path: str, stream_incarnation: str) -> None:
    """Write the lowest mark; the trigger's own mark raises it."""
    put_mark(stores.table, PendingMark(record.incarnation, path, stream_incarnation, -1))
