"""Creating, reading and ending subscriptions, and naming streams one by one (§6.2 to §6.4).

A creation is several writes, each of which may be repeated:

    1  the subscription's item, not active yet         fails if the id is taken
    2  its roster entry, the followers it names        from here on appends leave pending marks
    3  links to the streams that exist, at their tails
    4  the item again, active                          from here on marks begin deliveries

If the process dies in between, a retry of the request or the delivery function completes the steps. Step 3
may miss a stream that is created meanwhile. That stream has a mark and no link, and is followed from its
beginning.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from tidemark.log.buckets import list_records
from tidemark.log.records import EndMark, StreamRecord
from tidemark.log.tails import StreamHead
from tidemark.protocol import errors
from tidemark.protocol.offset import parse_token
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.read import read
from tidemark.service.stores import Stores
from tidemark.subscriptions import records, storage
from tidemark.subscriptions.configuration import (
    SubscriptionConfiguration,
    SubscriptionKind,
    follows,
    literal_prefix,
    matching_path,
)
from tidemark.subscriptions.pending import find_head, followed_streams
from tidemark.subscriptions.records import RosterEntry, StreamFollower, StreamLink, SubscriptionRecord
from tidemark.subscriptions.shared import Window
from tidemark.subscriptions.state import DeliveryState
from tidemark.subscriptions.storage import SubscriptionChanged

_MAX_TRIES: Final = 10
#: Most subscriptions that follow one stream, by name or by pattern: an append leads to a delivery for each.
MAX_OF_A_STREAM: Final = 100
#: Most subscriptions whose ids begin with a token's prefix. A token for all ids has no limit.
MAX_OF_A_PREFIX: Final = 1_000
#: Matching streams, and most frequent other patterns, for which the limit of a new pattern is checked.
_SAMPLE: Final = 16

_T = TypeVar("_T")


def until_committed(stores: Stores, step: Callable[[], _T]) -> _T:
    """Retry the step while other transitions come first, up to 10 times. Raises Busy."""
    for tries in range(_MAX_TRIES):
        try:
            return step()
        except SubscriptionChanged:
            stores.pause(tries)
    raise errors.Busy


def subscribe(
    stores: Stores, subscription_id: str, configuration: SubscriptionConfiguration, prefix: str = ""
) -> bool:
    """Create the subscription, or check that the existing one has this configuration. Returns whether it is
    new. The client may manage the ids that begin with `prefix`. Raises SubscriptionExists,
    TooManySubscriptions."""
    if storage.load_subscription(stores.table, subscription_id) is None:
        _check_limits(stores, subscription_id, configuration, prefix)
        if configuration.kind is SubscriptionKind.SHARED:
            begin = _first_window(stores, configuration).committed
            if begin and configuration.offset is not None:  # Raises as a read if it is not a message's end.
                read(stores, StreamKey(PLAIN_BUCKET, configuration.streams[0]), begin, small=True)
    created_ms = stores.clock_ms()
    for _ in range(_MAX_TRIES):
        record = SubscriptionRecord(
            subscription_id=subscription_id,
            incarnation=stores.new_id(),
            configuration=configuration,
            secret=secrets.token_urlsafe(32),
            created_ms=created_ms,
            delivery=DeliveryState(),
            active=False,
            version=1,
            write_id=stores.new_id(),
        )
        there = storage.put_subscription(stores.table, record)
        if isinstance(there, EndMark):
            created_ms = there.ended_ms + 1
        elif there.configuration != configuration:
            raise errors.SubscriptionExists
        else:
            activate(stores, there)
            return there.incarnation == record.incarnation
    raise errors.Busy


def _check_limits(stores: Stores, name: str, asked: SubscriptionConfiguration, prefix: str = "") -> None:
    """Takes a query for the roster; from 100 subscriptions on, one for the pattern's streams, and one for
    each stream that is checked. Concurrent requests may exceed a limit by their number. Existing
    subscriptions beyond a limit still work. Raises TooManySubscriptions."""
    roster = storage.load_roster(stores.table)
    count = sum(entry.subscription_id.startswith(prefix) for entry in roster)
    if prefix and count >= MAX_OF_A_PREFIX:
        raise errors.TooManySubscriptions(f"have an id that begins with {prefix!r}", count, MAX_OF_A_PREFIX)
    if len(roster) < MAX_OF_A_STREAM:
        return
    paths = list(asked.streams)
    if asked.pattern is not None:
        records, _ = list_records(stores.table, PLAIN_BUCKET, literal_prefix(asked.pattern), "", _SAMPLE)
        frequent = Counter(entry.pattern for entry in roster if entry.pattern is not None).most_common(
            _SAMPLE
        )
        examples = [matching_path(pattern) for pattern in (asked.pattern, *dict(frequent))]
        paths += filter(asked.follows, [*examples, *(record.key.stream_id for record in records)])
    for path in dict.fromkeys(paths):
        found = {each.subscription_id for each in roster if follows(each.pattern, each.wake_stream, path)}
        found |= {follower.subscription_id for follower in storage.load_followers(stores.table, path)}
        if name not in found and len(found) >= MAX_OF_A_STREAM:
            raise errors.TooManySubscriptions(f"follow the stream {path!r}", len(found), MAX_OF_A_STREAM)


def activate(stores: Stores, record: SubscriptionRecord) -> SubscriptionRecord:
    """Take steps 2 to 4 unless they were taken. Raises SubscriptionNotFound after a concurrent deletion."""
    if record.active:
        return record
    configuration = record.configuration
    is_shared = configuration.kind is SubscriptionKind.SHARED
    _put_roster_entry(stores, record, has_explicit=bool(configuration.streams) and not is_shared)
    if is_shared:
        state = records.SharedRecord(
            record.subscription_id, record.incarnation, _first_window(stores, configuration)
        )
        storage.put_shared_once(stores.table, state)
    else:
        _name_streams(stores, record, configuration.streams)
    latest: SubscriptionRecord | None = record
    for page in followed_streams(stores, record):
        # Links begin at the tails: existing messages begin no delivery (§6.2). Check `active` again: if
        # another process has finished the creation, these tails may lie after appends that must be delivered.
        heads = stores.concurrency.each(lambda each: find_head(stores, each.key.stream_id), page)
        latest = storage.reload_subscription(stores.table, record)
        if latest is None or latest.active:
            break
        links = [_link(record.incarnation, head.record.key.stream_id, head) for head in heads if head]
        stores.concurrency.each(lambda link: storage.put_link_once(stores.table, link), links)
    while latest is not None and not latest.active:
        with suppress(SubscriptionChanged):
            return storage.commit_subscription(
                stores.table, latest, replace(latest, active=True), stores.new_id()
            )
        latest = storage.reload_subscription(stores.table, record)
    if latest is None:
        raise errors.SubscriptionNotFound
    return latest


def check_key(configuration: SubscriptionConfiguration, stream: StreamRecord) -> None:
    """Raises InvalidSubscription if messages need a key and the stream is not JSON."""
    if configuration.key is not None and not stream.content_type.is_json:
        raise errors.InvalidSubscription(
            f"key needs a JSON stream; {configuration.streams[0]!r} is {stream.content_type.value}"
        )


def _first_window(stores: Stores, asked: SubscriptionConfiguration) -> Window:
    """Where a shared subscription begins. Raises InvalidSubscription."""
    head, place = find_head(stores, asked.streams[0]), parse_token(asked.offset or "")
    if head is None:
        if place:
            raise errors.InvalidSubscription(f"There is no stream {asked.streams[0]!r}; leave offset out")
        return Window("", 0)
    check_key(asked, head.record)
    begin = head.tail.offset if asked.offset is None else head.record.retained
    return Window(head.record.incarnation, begin if place is None else place)


def _put_roster_entry(stores: Stores, record: SubscriptionRecord, *, has_explicit: bool) -> None:
    asked = record.configuration
    entry = RosterEntry(
        record.subscription_id, record.incarnation, asked.pattern, asked.wake_stream, has_explicit
    )
    storage.put_roster_entry(stores.table, entry)


def _link(incarnation: str, path: str, head: StreamHead | None, *, explicit: bool = False) -> StreamLink:
    """A link at the stream's tail, or at its beginning without `head`."""
    if head is None:
        return StreamLink(incarnation, path, explicit, 0, "")
    return StreamLink(incarnation, path, explicit, head.tail.offset, head.record.incarnation)


def _name_streams(stores: Stores, record: SubscriptionRecord, paths: Sequence[str]) -> None:
    """Write the follower, then the link: an append in between finds the subscription. After a new link both
    are written once more: a removal in between has removed the follower, and the notice of an append in
    between has found no link."""

    def name(path: str) -> None:
        follower = StreamFollower(path, record.subscription_id, record.incarnation)
        # A stream that matches the pattern and has no link yet is newer than the subscription.
        is_new = record.active and record.configuration.follows(path)

        def settle() -> StreamLink:
            storage.put_follower(stores.table, follower)
            head = None if is_new else find_head(stores, path)
            return _link(record.incarnation, path, head, explicit=True)

        link = settle()
        if storage.put_link_once(stores.table, link) and (later := settle()) != link:
            with suppress(SubscriptionChanged):
                storage.change_link(stores.table, link, later)

        def step() -> None:
            link = storage.load_link(stores.table, record.incarnation, path)
            if link is not None and not link.explicit:
                storage.change_link(stores.table, link, replace(link, explicit=True))

        until_committed(stores, step)

    stores.concurrency.each(name, paths)


def require_subscription(
    stores: Stores, subscription_id: str, kind: SubscriptionKind | None = None
) -> SubscriptionRecord:
    """Raises SubscriptionNotFound, and InvalidSubscription for one of another kind."""
    record = storage.load_subscription(stores.table, subscription_id)
    if record is None:
        raise errors.SubscriptionNotFound
    if kind is not None:
        require_kind(record, kind)
    return record


def require_kind(record: SubscriptionRecord, kind: SubscriptionKind) -> None:
    if record.configuration.kind is not kind:
        raise errors.InvalidSubscription(f"This is not a {kind.value} subscription")


def require_notifying(stores: Stores, subscription_id: str) -> SubscriptionRecord:
    """Raises SubscriptionNotFound, and InvalidSubscription for a shared one."""
    record = require_subscription(stores, subscription_id)
    if record.configuration.kind is SubscriptionKind.SHARED:
        raise errors.InvalidSubscription(
            "A shared subscription has the one stream of its creation, and wakes nobody: its workers take"
        )
    return record


def list_links(
    stores: Stores, record: SubscriptionRecord, after: str, limit: int
) -> tuple[list[StreamLink], str | None]:
    """A page of links by path, and its last path as the cursor of the next page, or None."""
    links = storage.load_links(stores.table, record.incarnation, after, limit + 1)
    page = links[:limit]
    return page, page[-1].path if len(links) > limit else None


def page_of_subscriptions(
    stores: Stores, prefix: str, after: str, limit: int
) -> tuple[list[SubscriptionRecord], str | None]:
    """A page by id, and its last id as the cursor of the next page, or None. The roster takes one query, and
    each subscription one read. A subscription that has ended meanwhile is left out."""
    ids = sorted({entry.subscription_id for entry in storage.load_roster(stores.table)})
    wanted = [each for each in ids if each.startswith(prefix) and each > after]
    page = wanted[: min(limit, stores.listed_at_once)]
    records = stores.concurrency.each(lambda each: storage.load_subscription(stores.table, each), page)
    return [record for record in records if record is not None], page[-1] if len(wanted) > len(page) else None


def unsubscribe(stores: Stores, subscription_id: str) -> None:
    """Delete a subscription: all later callbacks, acks and releases fail. A second deletion succeeds too."""
    record = storage.load_subscription(stores.table, subscription_id)
    if record is not None:
        storage.end_subscription(stores.table, record, stores.clock_ms())


def add_streams(stores: Stores, subscription_id: str, paths: Sequence[str]) -> None:
    """Name more streams. A stream that is linked already keeps its acked offset. Raises SubscriptionNotFound,
    InvalidSubscription, TooManySubscriptions."""
    record = require_notifying(stores, subscription_id)
    record.configuration.check_named(paths)
    _check_limits(stores, subscription_id, replace(record.configuration, pattern=None, streams=tuple(paths)))
    record = activate(stores, record)
    _put_roster_entry(stores, record, has_explicit=True)
    _name_streams(stores, record, paths)


def remove_stream(stores: Stores, subscription_id: str, path: str) -> None:
    """Remove a named stream. Its link stays if the pattern matches (§6.1). Raises SubscriptionNotFound."""
    record = require_notifying(stores, subscription_id)

    def step() -> None:
        link = storage.load_link(stores.table, record.incarnation, path)
        if link is None or not link.explicit:
            return
        storage.remove_follower(stores.table, StreamFollower(path, subscription_id, record.incarnation))
        if record.configuration.follows(path):
            storage.change_link(stores.table, link, replace(link, explicit=False))
        else:
            storage.remove_link(stores.table, link)

    until_committed(stores, step)
