"""Watch: a socket's subscription to the tail of a stream. Register, then read the tail, then send the tail
(`docs/live.md`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemark.log.read import load_last, load_news, load_stream, load_streams
from tidemark.log.records import StreamRecord, Tombstone
from tidemark.log.schema import log_pk
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.socket import News, decide_lease_seconds
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.load import ended_error, reload_tail, require_live
from tidemark.service.read import renew
from tidemark.service.stores import Stores


class Watched(NamedTuple):
    """A watched stream: its tail after the registration, the time of its last use, and the seconds until the
    tail must be read again (infinity: only when woken)."""

    record: StreamRecord
    tail: Tail
    used_ms: int
    read_seconds: float

    def lease_seconds(self, now_ms: int, token_until_ms: int | None) -> int:
        return decide_lease_seconds(self.record.expiry, self.used_ms, now_ms, token_until_ms)


def begin_watch(stores: Stores, key: StreamKey, register: Callable[[str], float]) -> Watched:
    """Register, then read the tail: an append that does not wake the registration came earlier, so the tail
    includes it. `register` gets the stream's incarnation and returns `read_seconds`. A watch renews a sliding
    expiry as a read does. Raises StreamNotFound or SoftDeleted."""
    while True:
        record = require_live(load_stream(stores.table, key))
        watched = _look(stores, record, register(record.incarnation))
        if watched is not None:
            return watched


def begin_watches(
    stores: Stores, keys: Sequence[StreamKey], register: Callable[[Sequence[StreamRecord]], object]
) -> dict[StreamKey, Watched | Exception]:
    """Begin watches of several streams, which are loaded by the hundred. After `register`, every append wakes
    the registration. Returns a watch for each stream, or the error that a read would raise."""
    found = load_streams(stores.table, keys, stores.concurrency.each)
    living = [record for record in found.values() if not record.deleted]
    if living:
        register(living)

    def finish(key: StreamKey) -> Watched | Exception:
        try:
            watched = _look(stores, require_live(found.get(key)), math.inf)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the other streams are watched
            return failure
        return begin_watches(stores, [key], register)[key] if watched is None else watched

    return dict(zip(keys, stores.concurrency.each(finish, keys), strict=True))


def _look(stores: Stores, record: StreamRecord, read_seconds: float) -> Watched | None:
    """Read the tail after the registration. None if the stream was deleted and created again in between: the
    new incarnation needs a registration of its own. Raises StreamNotFound or SoftDeleted."""
    head = reload_tail(stores, record)
    if head.record.incarnation != record.incarnation:
        return None
    now_ms = stores.clock_ms()
    if head.is_expired(now_ms):
        raise StreamNotFound
    record = renew(stores, record, head.touched_ms, now_ms)
    return Watched(record, head.tail, max(head.touched_ms, record.used_ms), read_seconds)


def load_tail(stores: Stores, record: StreamRecord, known_offset: int | None) -> tuple[Tail, News | None]:
    """Read the tail of a watched stream, and the data after `known_offset`, in one query. The offset is
    None if no client wants data. Raises StreamNotFound or SoftDeleted."""
    pk, news = log_pk(record.key, record.incarnation), None
    if known_offset is None:
        last = load_last(stores.table, pk)
    else:
        last, news = load_news(stores.table, pk, known_offset)
    if isinstance(last, Tombstone):
        raise ended_error(stores, record)
    return (Tail(record.base) if last is None else last.after), news
