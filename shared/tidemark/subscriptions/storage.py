"""Subscriptions in the table. Every step of a delivery is a conditional write to the subscription's item. The
small items around that item may be written again at any time.

Why no delivery is lost
=======================

    append         commit ─▶ stream record ─▶ put the pending mark ─▶ consistent read of the subscription
    delivery ends  write the subscription (idle) ─▶ consistent query of the marks ─▶ and reads of the tails

If the read after the mark still sees the delivery in flight, the delivery ends later, so the query after its
end finds the mark. If the read sees the subscription idle, the reader begins a delivery. The removal of a
mark is conditional: a later append raises `start`, and the removal is refused.

The table's stream repeats each commit of the subscription's item. If the process dies after the commit, the
stream record leads to the next step.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.read import stream_in
from tidemark.log.records import EndMark, StreamRecord
from tidemark.protocol.errors import OutcomeUnknown
from tidemark.protocol.stream_key import StreamKey
from tidemark.subscriptions import records
from tidemark.subscriptions.shared import Window

#: Most acks in one transaction: DynamoDB allows 100 writes, and one is the subscription's item.
ACKS_AT_ONCE = 99


class SubscriptionChanged(Exception):
    """The item changed since it was read: load the subscription and decide again."""


# --- the subscription's own item ----------------------------------------------------


def load_subscription(table: tables.Table, subscription_id: str) -> records.SubscriptionRecord | None:
    item = table.get(records.subscription_key(subscription_id))
    return None if item is None or schema.is_end_mark(item) else records.decode_subscription(item)


def reload_subscription(
    table: tables.Table, seen: records.SubscriptionRecord
) -> records.SubscriptionRecord | None:
    """The subscription as stored now; None if it has ended, also if a new subscription has its id."""
    latest = load_subscription(table, seen.subscription_id)
    return latest if latest is not None and latest.incarnation == seen.incarnation else None


def load_ended(table: tables.Table, subscription_id: str) -> EndMark | None:
    """The end mark of a subscription of this id that was deleted within the last day."""
    item = table.get(records.subscription_key(subscription_id))
    return schema.decode_end_mark(item) if item is not None and schema.is_end_mark(item) else None


def put_subscription(
    table: tables.Table, record: records.SubscriptionRecord
) -> records.SubscriptionRecord | EndMark:
    """Return the record that is stored now: `record`, or an existing subscription of the same id, or the end
    mark of one that ended after `record.created_ms`. A retried creation finds its own record."""
    try:
        table.put(records.encode_subscription(record), tables.if_never_or_ended_before(record.created_ms))
    except tables.ConditionFailed as refused:
        existing = refused.existing
        assert existing is not None, "a refused creation names what is there"
        if not schema.is_end_mark(existing):
            return records.decode_subscription(existing)
        if refused.maybe_landed:
            raise OutcomeUnknown from refused
        return schema.decode_end_mark(existing)
    return record


def commit_subscription(
    table: tables.Table,
    seen: records.SubscriptionRecord,
    changed: records.SubscriptionRecord,
    write_id: str,
    acks: Sequence[tables.Write] = (),
) -> records.SubscriptionRecord:
    """Write the next state if the item has not changed since `seen`, in one transaction with `acks`
    (`ack_link`). Returns the stored record. Raises SubscriptionChanged.

    If a refused write finds its own `write_id`, the write was sent twice and has landed.
    """
    assert len(acks) <= ACKS_AT_ONCE, "the caller divides them"
    stored = replace(changed, version=seen.version + 1, write_id=write_id)
    item, condition = records.encode_subscription(stored), _as_seen(seen)
    try:
        if acks:
            table.transact([tables.Write(item, condition=condition), *acks])
        else:
            table.put(item, condition)
    except tables.ConditionFailed as refused:
        _check_own(refused.existing, write_id, refused)
    except tables.TransactionRefused as refused:
        _check_own(refused.existing[0], write_id, refused)
    return stored


def _as_seen(seen: records.SubscriptionRecord | records.SharedRecord) -> tables.Condition:
    return tables.AllOf(
        tables.equals(schema.INCARNATION, seen.incarnation), tables.equals(records.VERSION, seen.version)
    )


def _check_own(existing: schema.Item | None, write_id: str, refused: Exception) -> None:
    if existing is None or existing.get(records.WRITE_ID) != {"S": write_id}:
        raise SubscriptionChanged from refused


# --- the state of a shared subscription ---------------------------------------------


Shared = tuple[records.SubscriptionRecord | None, records.SharedRecord | None, StreamRecord | None]
"""A shared subscription, its state, and its stream: each None if it is not there."""


def load_shared(table: tables.Table, subscription_id: str, stream: StreamKey | None = None) -> Shared:
    """Load them with one call, without `stream` the first two."""
    keys = [records.subscription_key(subscription_id), records.shared_key(subscription_id)]
    keys += [schema.stream_key(stream)] if stream else []
    found = {item[schema.PK]["S"]: item for item in table.get_many(keys)}
    one, state, *of_stream = (found.get(key[schema.PK]["S"]) for key in keys)
    return (
        None if one is None or schema.is_end_mark(one) else records.decode_subscription(one),
        None if state is None else records.decode_shared(state),
        stream_in(*of_stream) if of_stream else None,
    )


def load_window(table: tables.Table, record: records.SubscriptionRecord) -> Window:
    """The state for people; empty while the subscription is created."""
    item = table.get(records.shared_key(record.subscription_id))
    return Window("", 0) if item is None else records.decode_shared(item).window


def put_shared_once(table: tables.Table, state: records.SharedRecord) -> None:
    """Write the first state, unless this subscription has one."""
    of_another = tables.Compared(schema.INCARNATION, "<>", state.incarnation)
    with suppress(tables.ConditionFailed):
        table.put(records.encode_shared(state), of_another)


def commit_shared(table: tables.Table, seen: records.SharedRecord, window: Window, write_id: str) -> None:
    """Write the next state if the item has not changed since `seen`. Raises SubscriptionChanged."""
    stored = replace(seen, window=window, version=seen.version + 1, write_id=write_id)
    try:
        table.put(records.encode_shared(stored), _as_seen(seen))
    except tables.ConditionFailed as refused:
        _check_own(refused.existing, write_id, refused)


def end_subscription(table: tables.Table, seen: records.SubscriptionRecord, ended_ms: int) -> None:
    """Replace the subscription by an end mark, in any state. `remove_belongings` removes its other items
    later. A repeated deletion finds the mark, or a later subscription."""
    ended_ms = max(ended_ms, seen.created_ms + 1)
    mark = schema.encode_end_mark(
        records.subscription_key(seen.subscription_id), EndMark(ended_ms, seen.incarnation)
    )
    with suppress(tables.ConditionFailed):
        table.put(mark, tables.equals(schema.INCARNATION, seen.incarnation))


# --- the roster, and a stream's followers by name -----------------------------------


def load_roster(table: tables.Table) -> list[records.RosterEntry]:
    """All subscriptions, in one query up to some thousands, without damaged entries."""
    pages = tables.pages_around_damage(table, records.ROSTER_PK, records.SLASH, records.BEHIND_SLASH)
    return [records.decode_roster_entry(item) for page in pages for item in page]


def put_roster_entry(table: tables.Table, entry: records.RosterEntry) -> None:
    """Write the entry; may be repeated. An entry without `has_explicit` never overwrites another."""
    with suppress(tables.ConditionFailed):
        table.put(records.encode_roster_entry(entry), None if entry.has_explicit else tables.IF_ABSENT)


def load_followers(table: tables.Table, stream_id: str) -> list[records.StreamFollower]:
    """The subscriptions that name the stream; some may have ended."""
    return [records.decode_follower(item) for item in _pages(table, records.FOLLOWERS + stream_id)]


def put_follower(table: tables.Table, follower: records.StreamFollower) -> None:
    table.put(records.encode_follower(follower))


def remove_follower(table: tables.Table, follower: records.StreamFollower) -> None:
    table.delete(records.follower_key(follower))


# --- links --------------------------------------------------------------------------


def load_link(table: tables.Table, subscription_incarnation: str, path: str) -> records.StreamLink | None:
    item = table.get(records.link_key(subscription_incarnation, path))
    return None if item is None else records.decode_link(item)


def load_links(
    table: tables.Table, subscription_incarnation: str, after: str = "", limit: int | None = None
) -> list[records.StreamLink]:
    """The links in the order of their paths, after the path `after`; all links without a `limit`."""
    low = records.SLASH + after + tables.NEXT if after else records.SLASH
    items = _pages(table, records.LINKS + subscription_incarnation, low, limit)
    return [records.decode_link(item) for item in islice(items, limit)]


def put_link_once(table: tables.Table, link: records.StreamLink) -> bool:
    """Write the link unless there is one. Returns whether it was written."""
    with suppress(tables.ConditionFailed):
        table.put(records.encode_link(link), tables.IF_ABSENT)
        return True
    return False


def change_link(table: tables.Table, seen: records.StreamLink, changed: records.StreamLink) -> None:
    """Raises SubscriptionChanged if the link has changed since `seen`."""
    try:
        table.put(records.encode_link(changed), _link_as_seen(seen))
    except tables.ConditionFailed as refused:
        if refused.existing != records.encode_link(changed):
            raise SubscriptionChanged from refused


def remove_link(table: tables.Table, seen: records.StreamLink) -> None:
    """Raises SubscriptionChanged if the link has changed since `seen`."""
    try:
        table.delete(records.link_key(seen.subscription_incarnation, seen.path), _link_as_seen(seen))
    except tables.ConditionFailed as refused:
        if refused.existing is not None:
            raise SubscriptionChanged from refused


def ack_link(seen: records.StreamLink, acked: int, stream_incarnation: str) -> tables.Write:
    """The write of an ack, for a transaction. The write is refused if the link was acked or removed since."""
    item = records.encode_link(replace(seen, acked=acked, stream_incarnation=stream_incarnation))
    return tables.Write(item, condition=_link_as_seen(seen))


def _link_as_seen(seen: records.StreamLink) -> tables.Condition:
    named = tables.Present(records.EXPLICIT) if seen.explicit else tables.Missing(records.EXPLICIT)
    return tables.AllOf(
        tables.equals(records.ACKED, seen.acked),
        tables.equals(records.STREAM_INCARNATION, seen.stream_incarnation),
        named,
    )


# --- pending marks ------------------------------------------------------------------


def put_mark(table: tables.Table, mark: records.PendingMark) -> None:
    """Write or raise the mark. A stream record that arrives late or twice never lowers it. If the mark names
    another stream incarnation, either may be the newer one: the new mark gets a random incarnation, so that
    every conditional removal of an earlier mark is refused."""
    of_this = tables.equals(records.STREAM_INCARNATION, mark.stream_incarnation)
    ahead = tables.AllOf(of_this, tables.Compared(records.START, "<", mark.start))
    try:
        table.put(records.encode_mark(mark), tables.AnyOf(tables.IF_ABSENT, ahead))
    except tables.ConditionFailed as refused:
        existing = refused.existing
        assert existing is not None, "without a mark it is written"
        seen = records.decode_mark(existing)
        if seen.stream_incarnation != mark.stream_incarnation:
            other = replace(mark, stream_incarnation=secrets.token_urlsafe(16))
            # If the mark has changed since, another call has written a mark that no removal knows.
            with suppress(tables.ConditionFailed):
                table.put(records.encode_mark(other), tables.AnyOf(tables.IF_ABSENT, _mark_as_seen(seen)))


def _mark_as_seen(seen: records.PendingMark) -> tables.Condition:
    return tables.AllOf(
        tables.equals(records.START, seen.start),
        tables.equals(records.STREAM_INCARNATION, seen.stream_incarnation),
    )


def load_marks(
    table: tables.Table, subscription_incarnation: str, page: int = 100
) -> Iterator[records.PendingMark]:
    """The marks in the order of their paths, with a query for each `page` of them."""
    return map(records.decode_mark, _pages(table, records.MARKS + subscription_incarnation, limit=page))


def remove_mark(table: tables.Table, seen: records.PendingMark) -> None:
    """Remove the mark, unless an append has raised it since `seen`."""
    with suppress(tables.ConditionFailed):
        table.delete(records.mark_key(seen), _mark_as_seen(seen))


# --- items of a subscription that has ended -----------------------------------------


def remove_belongings(table: tables.Table, subscription_id: str, incarnation: str) -> None:
    """Remove roster entry, followers, links, marks and shared state of an ended subscription. May be
    repeated."""
    with suppress(tables.ConditionFailed):
        table.delete(records.shared_key(subscription_id), tables.equals(schema.INCARNATION, incarnation))
    keys = []
    for link in load_links(table, incarnation):
        keys.append(records.link_key(incarnation, link.path))
        if link.explicit:
            keys.append(records.follower_key(records.StreamFollower(link.path, subscription_id, incarnation)))
    keys += _pages(table, records.MARKS + incarnation)
    # Remove the roster entry last: while it exists, appends lead here again.
    tables.remove_items(table, [*keys, records.roster_key(incarnation)])


def _pages(
    table: tables.Table, pk: str, low: str = records.SLASH, limit: int | None = None
) -> Iterator[schema.Item]:
    return chain.from_iterable(tables.pages(table, pk, low, records.BEHIND_SLASH, limit=limit))
