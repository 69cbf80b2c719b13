"""Finding a stream and its tail."""

from __future__ import annotations

from tidemark.log.lifecycle import load_stream
from tidemark.log.read import load_last
from tidemark.log.records import Batch, StreamRecord
from tidemark.log.schema import log_pk
from tidemark.log.tails import StreamHead
from tidemark.protocol.errors import ProtocolError, StreamGone, StreamNotFound
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.stores import Stores


def head_from(record: StreamRecord, last: Batch | None, learned_ms: int) -> StreamHead:
    if last is None:
        return StreamHead(record, Tail(record.base), record.created_ms, learned_ms)
    return StreamHead(record, last.after, last.time_ms, learned_ms)


def ended(record: StreamRecord | None) -> ProtocolError:
    """Why a stream that is not there is not: gone without a trace, or kept for its forks."""
    return StreamGone() if record is not None and record.references else StreamNotFound()


def existing(record: StreamRecord | None) -> StreamRecord:
    """Raises StreamNotFound or StreamGone."""
    if record is None or record.deleted:
        raise ended(record)
    return record


def load_known(stores: Stores, key: StreamKey) -> StreamHead:
    """The stream and its tail as they are now: two small reads, at once where possible.

    Raises StreamNotFound or StreamGone; an expired stream is not there any more (§5.1).
    """
    now_ms = stores.clock_ms()
    found, last = _load(stores, key, now_ms)
    if found is None or found.deleted or (last is not None and last.tombstone):
        stores.tails.forget(key)
        if found is not None and not found.deleted:
            # The item was read before the log ended: what has become of it since?
            earlier, found = found, load_stream(stores.table, key)
            if found is not None and found.incarnation != earlier.incarnation and not found.deleted:
                return load_known(stores, key)
        raise ended(found)
    known = head_from(found, last, now_ms)
    if known.is_expired(now_ms):
        raise ended(found)
    stores.tails.learn(known)
    return known


def _load(stores: Stores, key: StreamKey, now_ms: int) -> tuple[StreamRecord | None, Batch | None]:
    """The incarnation names the log, so the two reads are at once only where it is known."""
    guess = stores.tails.get(key, now_ms)
    if guess is None:
        record, last = load_stream(stores.table, key), None
        expected = None
    else:
        expected = guess.record.incarnation
        guessed_pk = log_pk(key, expected)
        record, last = stores.concurrency.pair(
            lambda: load_stream(stores.table, key), lambda: load_last(stores.table, guessed_pk)
        )
    if record is not None and record.incarnation != expected:
        last = load_last(stores.table, log_pk(key, record.incarnation))
    return record, last


def last_used_ms(stores: Stores, record: StreamRecord, seen_ms: int, now_ms: int) -> int:
    """When the stream was last used, as far as its expiry hangs on it. Raises StreamNotFound or
    StreamGone.

    `seen_ms` is the time of some batch of it. Writes renew by their batches alone, so a
    stream that nobody reads looks idle in its item; only then is its tail asked.
    """
    used_ms = max(record.used_ms, seen_ms)
    if is_expired(record.expiry, used_ms, now_ms):
        last = load_last(stores.table, log_pk(record.key, record.incarnation))
        if last is not None and last.tombstone:
            # It is being ended this moment: a tombstone's time is no use of the stream.
            raise ended(load_stream(stores.table, record.key))
        used_ms = max(used_ms, last.time_ms if last else 0)
        if is_expired(record.expiry, used_ms, now_ms):
            raise ended(record)
    return used_ms


def reload_tail(stores: Stores, record: StreamRecord) -> StreamHead:
    """The tail alone, of a stream whose item needs no second look. Raises StreamNotFound."""
    now_ms = stores.clock_ms()
    last = load_last(stores.table, log_pk(record.key, record.incarnation))
    if last is not None and last.tombstone:
        return load_known(stores, record.key)
    known = head_from(record, last, now_ms)
    stores.tails.learn(known)
    return known
