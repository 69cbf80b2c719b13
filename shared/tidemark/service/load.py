"""Loads a stream and its tail, and decides appends on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from tidemark.log.read import load_incarnation, load_last, load_stream
from tidemark.log.records import Batch, Due, StreamRecord, Tombstone
from tidemark.log.schema import decode_producer, log_pk, producer_key
from tidemark.log.tails import StreamHead
from tidemark.protocol.append import Append, AppendPlan, plan_appends, unknown_producers
from tidemark.protocol.errors import ProtocolError, SoftDeleted, StreamNotFound
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.stores import Stores


class Known(NamedTuple):
    """The stream's head, on which an append is decided, and whether it was read just now. A refusal or a
    duplicate writes nothing, so it counts only on a fresh head."""

    head: StreamHead
    is_fresh: bool


def head_from(record: StreamRecord, last: Batch | Tombstone | None, learned_ms: int) -> StreamHead:
    """`last` is the end of the stream's own log; None if nothing was written to it."""
    if last is None:
        return StreamHead(record, Tail(record.base), record.created_ms, learned_ms)
    if isinstance(last, Tombstone):
        return StreamHead(record, last.after, last.time_ms, learned_ms, last.start)
    return StreamHead(
        record, last.after, last.time_ms, learned_ms, last.start, last.mailed, last.checksums.after
    )


def absence_error(record: StreamRecord | None) -> ProtocolError:
    """SoftDeleted for a deleted stream that is kept for its forks, else StreamNotFound."""
    return SoftDeleted() if record is not None and record.references else StreamNotFound()


def ended_error(stores: Stores, record: StreamRecord) -> ProtocolError:
    """StreamNotFound or SoftDeleted for a stream whose log has ended since its item was read. Another stream
    may have the name by now, and forks of that one say nothing about this one."""
    found = load_stream(stores.table, record.key)
    return absence_error(found if found is not None and found.incarnation == record.incarnation else None)


def require_live(record: StreamRecord | None) -> StreamRecord:
    """The record, unless there is none or it was deleted. Raises StreamNotFound or SoftDeleted."""
    if record is None or record.deleted:
        raise absence_error(record)
    return record


def load_head(stores: Stores, key: StreamKey) -> StreamHead:
    """The stream and its tail as they are now: two small reads, at once where possible.

    Raises StreamNotFound or SoftDeleted; an expired stream is not there any more (§5.1).
    """
    now_ms = stores.clock_ms()
    remembered = stores.tails.get(key, now_ms)
    # The incarnation names the log, so the two reads are at once only where it is remembered.
    if remembered is None:
        record, last = load_stream(stores.table, key), None
    else:
        pk = log_pk(key, remembered.record.incarnation)
        record, last = stores.concurrency.pair(
            partial(load_stream, stores.table, key), partial(load_last, stores.table, pk)
        )
    if record is not None and (remembered is None or record.incarnation != remembered.record.incarnation):
        last = load_last(stores.table, log_pk(key, record.incarnation))
    if record is None or record.deleted or isinstance(last, Tombstone):
        stores.tails.forget(key)
        return _load_again(stores, key, record)
    head = head_from(record, last, now_ms)
    if head.is_expired(stores.clock_ms()):  # Asked after the replies, as in `last_used_ms`.
        raise absence_error(record)
    stores.tails.learn(head)
    return head


def load_due_head(stores: Stores, due: Due) -> StreamHead | None:
    """The stream that a queue entry is of, and its tail; None if it has ended."""
    record = load_incarnation(stores.table, due)
    if record is None or record.deleted:
        return None
    return head_from(record, load_last(stores.table, log_pk(due.key, due.incarnation)), stores.clock_ms())


def _load_again(stores: Stores, key: StreamKey, ended: StreamRecord | None) -> StreamHead:
    """The stream that has taken the name in the meantime; else raises StreamNotFound or SoftDeleted. An
    item that says nothing of the end was read before the log ended, so it is read again."""
    if ended is None or ended.deleted:
        raise absence_error(ended)
    record = load_stream(stores.table, key)
    if record is None or record.deleted or record.incarnation == ended.incarnation:
        raise absence_error(record)
    return load_head(stores, key)


def last_used_ms(stores: Stores, record: StreamRecord, seen_ms: int) -> int:
    """When the stream was last used, as far as its expiry depends on it. Raises StreamNotFound or
    SoftDeleted.

    `seen_ms` is the time of some batch of it. Writes renew by their batches alone, so a stream without
    readers looks idle in its item; its tail is read only then. The clock is asked after the reply that
    brought the record, which has set it right where it was off (`aws/clock.py`).
    """
    now_ms = stores.clock_ms()
    used_ms = max(record.used_ms, seen_ms)
    if is_expired(record.expiry, used_ms, now_ms):
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        if isinstance(last, Tombstone):
            # The stream is being ended right now: a tombstone's time does not count as use.
            raise ended_error(stores, record)
        used_ms = max(used_ms, last.time_ms if last else 0)
        if is_expired(record.expiry, used_ms, now_ms):
            raise absence_error(record)
    return used_ms


def reload_tail(stores: Stores, record: StreamRecord) -> StreamHead:
    """The tail alone, of a stream whose item needs no second look. Raises StreamNotFound."""
    now_ms = stores.clock_ms()
    last = load_last(stores.table, log_pk(record.key, record.incarnation))
    if isinstance(last, Tombstone):
        return load_head(stores, record.key)
    head = head_from(record, last, now_ms)
    stores.tails.learn(head)
    return head


NONE_KNOWN: Final[Mapping[str, ProducerState | None]] = MappingProxyType({})


def decide(
    stores: Stores,
    head: StreamHead,
    appends: Sequence[Append],
    known: Mapping[str, ProducerState | None] = NONE_KNOWN,
) -> AppendPlan:
    """Decide each append in order, on the head and on the items of the producers that it does not name.
    `known` are those that were looked up for this very head.

    The items are read after the head, never before: read before, they could miss a producer that appends and
    is pushed out in between. They may say more than an old head does; a batch of such a plan is refused.
    Raises what storage raises.
    """
    if not head.tail.overflowed:  # It names all producers, as most tails do.
        return plan_appends(head.tail, appends, known)
    table, incarnation = stores.table, head.record.incarnation
    unknown = sorted(unknown_producers(head.tail, appends) - known.keys())
    if not unknown:
        return plan_appends(head.tail, appends, known)
    found = stores.concurrency.each(
        lambda producer_id: table.get(producer_key(incarnation, producer_id)), unknown
    )
    states = [decode_producer(item) if item else None for item in found]
    return plan_appends(head.tail, appends, {**known, **dict(zip(unknown, states, strict=True))})
