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
    """The head on which an append is decided, and whether the head was read just now. A refusal or a
    duplicate writes nothing, so it counts only on a fresh head."""

    head: StreamHead
    is_fresh: bool


def head_from(record: StreamRecord, last: Batch | Tombstone | None, learned_ms: int) -> StreamHead:
    """`last` is the last entry of the stream's own log, or None if the log is empty."""
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
    """StreamNotFound or SoftDeleted for a stream whose log has ended since its item was read. A new stream
    may have the name by now, whose forks must not count for this one."""
    found = load_stream(stores.table, record.key)
    return absence_error(found if found is not None and found.incarnation == record.incarnation else None)


def require_live(record: StreamRecord | None) -> StreamRecord:
    """Return the record if the stream exists. Raises StreamNotFound or SoftDeleted."""
    if record is None or record.deleted:
        raise absence_error(record)
    return record


def load_head(stores: Stores, key: StreamKey) -> StreamHead:
    """Load the stream and its tail: two small reads, concurrent if possible.

    Raises StreamNotFound or SoftDeleted, also for an expired stream (§5.1).
    """
    now_ms = stores.clock_ms()
    remembered = stores.tails.get(key, now_ms)
    # The incarnation names the log, so the reads are concurrent only if it is remembered.
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
    if head.is_expired(stores.clock_ms()):  # The clock is read after the replies, as in `last_used_ms`.
        raise absence_error(record)
    stores.tails.learn(head)
    return head


def load_due_head(stores: Stores, due: Due) -> StreamHead | None:
    """The stream of a due entry, and its tail; None if the stream has ended."""
    record = load_incarnation(stores.table, due)
    if record is None or record.deleted:
        return None
    return head_from(record, load_last(stores.table, log_pk(due.key, due.incarnation)), stores.clock_ms())


def _load_again(stores: Stores, key: StreamKey, ended: StreamRecord | None) -> StreamHead:
    """The stream that has taken the name meanwhile. Raises StreamNotFound or SoftDeleted if there is none. An
    item that does not show the end was read before the log ended, so it is read again."""
    if ended is None or ended.deleted:
        raise absence_error(ended)
    record = load_stream(stores.table, key)
    if record is None or record.deleted or record.incarnation == ended.incarnation:
        raise absence_error(record)
    return load_head(stores, key)


def last_used_ms(stores: Stores, record: StreamRecord, seen_ms: int) -> int:
    """The time of the stream's last use, as far as the expiry needs it. Raises StreamNotFound or SoftDeleted
    if the stream has expired.

    `seen_ms` is the time of any known batch. A write does not update the item, so a stream without readers
    looks expired by its item; only then the tail is read. The clock is read after the reply with the record,
    because the reply corrects the clock (`aws/clock.py`).
    """
    now_ms = stores.clock_ms()
    used_ms = max(record.used_ms, seen_ms)
    if is_expired(record.expiry, used_ms, now_ms):
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        if isinstance(last, Tombstone):
            # The stream is being ended. The time of a tombstone does not count as use.
            raise ended_error(stores, record)
        used_ms = max(used_ms, last.time_ms if last else 0)
        if is_expired(record.expiry, used_ms, now_ms):
            raise absence_error(record)
    return used_ms


def reload_tail(stores: Stores, record: StreamRecord) -> StreamHead:
    """Read the tail alone, without the stream's item. Raises StreamNotFound."""
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
    """Decide the appends in order, on the head and on the items of producers that the head does not name.
    `known` are the producers that were looked up for this head.

    The items must be read after the head: an earlier read could miss a producer that appends and is pushed
    out in between. An item may be newer than the head; the batch of such a plan loses the race. Raises
    storage's errors.
    """
    if not head.tail.overflowed:  # The tail names all producers, as most do.
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
