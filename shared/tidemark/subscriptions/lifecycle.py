"""Creating, reading and ending subscriptions, and naming streams one by one (§6.2 to §6.4).

A creation is several writes, each of which may be repeated:

    1  the subscription's item, not active yet         fails where one of that id exists
    2  its roster entry, the followers it names        from here on appends leave pending marks
    3  links to the streams that exist, at their tails
    4  the item again, active                          from here on marks begin wakes

If the process dies in between, a retry of the request or the delivery function completes the steps. A stream
that is created meanwhile is either listed by step 3, or has a mark and no link, and is followed from its
beginning.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tidemark.log.buckets import list_records
from tidemark.protocol.errors import Busy, SubscriptionExists, SubscriptionNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import SubscriptionConfiguration, configuration_hash, literal_prefix
from tidemark.subscriptions.pending import find_head
from tidemark.subscriptions.records import RosterEntry, StreamFollower, StreamLink, SubscriptionRecord
from tidemark.subscriptions.state import WakeState
from tidemark.subscriptions.storage import (
    SubscriptionChanged,
    SubscriptionEndedLater,
    SubscriptionThere,
    change_link,
    commit_subscription,
    create_subscription,
    end_subscription,
    load_link,
    load_links,
    load_roster,
    load_subscription,
    put_follower,
    put_link_once,
    put_roster_entry,
    remove_follower,
    remove_link,
)

_MAX_TRIES = 5
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Subscribed:
    """`is_new` tells 201 from 200."""

    record: SubscriptionRecord
    is_new: bool


def subscribe(stores: Stores, subscription_id: str, configuration: SubscriptionConfiguration) -> Subscribed:
    """Make the subscription, or find that it is there as asked for. Raises SubscriptionExists."""
    created_ms = stores.clock_ms()
    for _ in range(_MAX_TRIES):
        record = SubscriptionRecord(
            subscription_id=subscription_id,
            incarnation=stores.new_id(),
            configuration=configuration,
            secret=secrets.token_urlsafe(32),
            created_ms=created_ms,
            wake=WakeState(),
            active=False,
            version=1,
            write_id=stores.new_id(),
        )
        try:
            create_subscription(stores.table, record)
        except SubscriptionEndedLater as ended:
            created_ms = ended.ended_ms + 1
        except SubscriptionThere as met:
            if configuration_hash(met.existing.configuration) != configuration_hash(configuration):
                raise SubscriptionExists from met
            record = met.existing
            return Subscribed(record if record.active else activate(stores, record), is_new=False)
        else:
            return Subscribed(activate(stores, record), is_new=True)
    raise Busy


def activate(stores: Stores, record: SubscriptionRecord) -> SubscriptionRecord:
    """Steps 2 to 4. Raises SubscriptionNotFound if it was deleted meanwhile."""
    configuration = record.configuration
    put_roster_entry(
        stores.table,
        RosterEntry(
            record.subscription_id,
            record.incarnation,
            configuration.pattern,
            configuration.wake_stream,
            bool(configuration.streams),
        ),
    )
    _name_streams(stores, record, configuration.streams)
    if configuration.pattern is not None:
        _link_existing(stores, record, configuration.pattern)
    for _ in range(_MAX_TRIES):
        if record.active:
            return record
        with suppress(SubscriptionChanged):
            return commit_subscription(stores.table, record, replace(record, active=True), stores.new_id())
        record = _reload(stores, record)
    raise Busy


def _reload(stores: Stores, record: SubscriptionRecord) -> SubscriptionRecord:
    latest = load_subscription(stores.table, record.subscription_id)
    if latest is None or latest.incarnation != record.incarnation:
        raise SubscriptionNotFound
    return latest


def _link_existing(stores: Stores, record: SubscriptionRecord, pattern: str) -> None:
    """Link the streams that the pattern matches, at their tails: existing messages start no wake (§6.2)."""
    prefix, after, more = literal_prefix(pattern), "", True
    while more:
        streams, more = list_records(stores.table, PLAIN_BUCKET, prefix, after, _PAGE)
        matched = [stream.key.stream_id for stream in streams]
        matched = [path for path in matched if record.configuration.follows(path)]
        stores.concurrency.each(lambda path: _link_at_tail(stores, record, path, explicit=False), matched)
        after = streams[-1].key.stream_id if streams else after
        more = more and bool(streams)


def _link_at_tail(stores: Stores, record: SubscriptionRecord, path: str, *, explicit: bool) -> None:
    head = find_head(stores, path)
    acked, incarnation = (head.tail.offset, head.record.incarnation) if head is not None else (0, "")
    if head is None and not explicit:
        return
    put_link_once(stores.table, StreamLink(record.incarnation, path, explicit, acked, incarnation))


def _name_streams(stores: Stores, record: SubscriptionRecord, paths: Sequence[str]) -> None:
    """The follower comes before the link: an append in between finds the subscription."""

    def name(path: str) -> None:
        put_follower(stores.table, StreamFollower(path, record.subscription_id, record.incarnation))
        _link_at_tail(stores, record, path, explicit=True)
        for _ in range(_MAX_TRIES):
            link = load_link(stores.table, record.incarnation, path)
            if link is None or link.explicit:
                return None
            with suppress(SubscriptionChanged):
                return change_link(stores.table, link, replace(link, explicit=True))
        raise Busy

    stores.concurrency.each(name, paths)


def require_subscription(stores: Stores, subscription_id: str) -> SubscriptionRecord:
    """Raises SubscriptionNotFound."""
    record = load_subscription(stores.table, subscription_id)
    if record is None:
        raise SubscriptionNotFound
    return record


def list_links(
    stores: Stores, record: SubscriptionRecord, after: str, limit: int
) -> tuple[list[StreamLink], str | None]:
    """A page of links by path, and behind which path the next page begins; None on the last one."""
    links = load_links(stores.table, record.incarnation, after, limit + 1)
    page = links[:limit]
    return page, page[-1].path if len(links) > limit else None


def list_subscriptions(
    stores: Stores, prefix: str, after: str, limit: int
) -> tuple[list[SubscriptionRecord], str | None]:
    """A page by id, and behind which id the next page begins; None on the last one. The roster takes one
    query, each subscription one read; one that has ended meanwhile is left out."""
    ids = sorted({entry.subscription_id for entry in load_roster(stores.table)})
    wanted = [each for each in ids if each.startswith(prefix) and each > after]
    page = wanted[:limit]
    records = stores.concurrency.each(lambda each: load_subscription(stores.table, each), page)
    return [record for record in records if record is not None], page[-1] if len(wanted) > limit else None


def unsubscribe(stores: Stores, subscription_id: str) -> None:
    """Delete a subscription: all later callbacks, acks and releases fail. Deleting a missing one succeeds."""
    record = load_subscription(stores.table, subscription_id)
    if record is not None:
        end_subscription(stores.table, record, stores.clock_ms())


def add_streams(stores: Stores, subscription_id: str, paths: Sequence[str]) -> None:
    """Raises SubscriptionNotFound. A stream that is linked already keeps how far it is acked."""
    record = require_subscription(stores, subscription_id)
    configuration = record.configuration
    wanted = RosterEntry(
        subscription_id,
        record.incarnation,
        configuration.pattern,
        configuration.wake_stream,
        has_explicit=True,
    )
    put_roster_entry(stores.table, wanted)
    _name_streams(stores, record, paths)


def remove_stream(stores: Stores, subscription_id: str, path: str) -> None:
    """The stream stays linked where the pattern matches it (§6.1). Raises SubscriptionNotFound."""
    record = require_subscription(stores, subscription_id)
    for _ in range(_MAX_TRIES):
        link = load_link(stores.table, record.incarnation, path)
        if link is None or not link.explicit:
            return None
        remove_follower(stores.table, StreamFollower(path, subscription_id, record.incarnation))
        with suppress(SubscriptionChanged):
            if record.configuration.follows(path):
                return change_link(stores.table, link, replace(link, explicit=False))
            return remove_link(stores.table, link)
    raise Busy
