"""Waiters, which are notified when a stream grows: processes with readers at its tail, each by its queue, and
connections of the WebSocket API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.records import Waiter
from tidemark.protocol import socket
from tidemark.protocol.stream_key import StreamKey

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]
"""Runs the same call for several arguments, some in parallel (`service/stores.py`)."""


def put_waiter(table: tables.Table, waiter: Waiter) -> None:
    """Register a waiter or extend its lease. A late copy does not shorten a later registration; a
    connection's messages may be handled out of order."""
    earlier = tables.Compared(schema.UNTIL_MS, "<", waiter.until_ms)
    if waiter.is_socket:
        earlier = tables.Compared(schema.ASKED_MS, "<", waiter.asked_ms)
    with suppress(tables.ConditionFailed):
        table.put(schema.encode_waiter(waiter), tables.AnyOf(tables.IF_ABSENT, earlier))


def put_watches(
    table: tables.Table, connection_id: str, watches: Mapping[StreamKey, Waiter], now_ms: int, each: Each
) -> None:
    """Register a connection with streams, after a note for `end_watches`: a write for each, because a
    transaction costs twice as much. Raises Malformed for too many streams."""
    asked = {schema.mark_of(key): waiter.incarnation for key, waiter in watches.items()}
    _ask_for(table, connection_id, asked, now_ms, each)
    each(partial(put_waiter, table), list(watches.values()))


def _ask_for(table: tables.Table, connection_id: str, asked: dict[str, str], now_ms: int, each: Each) -> None:
    """Record the streams that a connection subscribes to: one read, and one write if a stream is new. Streams
    whose subscription has ended are removed only when there are too many."""
    known, revision = schema.decode_asked_for(table.get(schema.connection_key(connection_id)))
    while not asked.items() <= known.items():
        if len(known | asked) > socket.MAX_WATCHED:
            known = _still_watched(table, connection_id, known, now_ms, each)
        socket.check_watched(len(known | asked))
        ttl_seconds = now_ms // 1000 + 2 * socket.MAX_LEASE_SECONDS  # API Gateway disconnects earlier.
        item = schema.encode_asked_for(connection_id, known | asked, revision + 1, ttl_seconds)
        try:
            table.put(item, tables.AnyOf(tables.IF_ABSENT, tables.equals(schema.REVISION, revision)))
        except tables.ConditionFailed as refused:  # Another message of the connection was first.
            known, revision = schema.decode_asked_for(refused.existing)
        else:
            return


def _still_watched(
    table: tables.Table, connection_id: str, known: dict[str, str], now_ms: int, each: Each
) -> dict[str, str]:
    keys = [_watch_key(connection_id, incarnation) for incarnation in known.values()]
    found = (
        schema.decode_waiter(item) for page in each(table.get_many, tables.in_hundreds(keys)) for item in page
    )
    left = {waiter.incarnation for waiter in found if waiter.until_ms > now_ms}
    return {mark: incarnation for mark, incarnation in known.items() if incarnation in left}


def end_watches(
    table: tables.Table, connection_id: str, keys: Iterable[StreamKey], asked_ms: int, each: Each
) -> None:
    """Remove a connection's waiters of these streams, unless it has subscribed again: one read, and one
    deletion each."""
    known, _ = schema.decode_asked_for(table.get(schema.connection_key(connection_id)))

    def end(incarnation: str) -> None:
        with suppress(tables.ConditionFailed):
            table.delete(
                _watch_key(connection_id, incarnation), tables.Compared(schema.ASKED_MS, "<", asked_ms)
            )

    each(end, [known[mark] for mark in map(schema.mark_of, keys) if mark in known])


def _watch_key(connection_id: str, incarnation: str) -> schema.Key:
    return schema.waiter_key(Waiter(incarnation, connection_id, 0, name=""))


def load_waiters(table: tables.Table, incarnation: str, now_ms: int) -> list[Waiter]:
    """Return the waiters of one stream that have not lapsed, with one consistent query."""
    pk, low, high = schema.waiters_of(incarnation)
    return [waiter for waiter in _query(table, pk, low, high) if waiter.until_ms > now_ms]


def has_many_waiters(table: tables.Table, incarnation: str, now_ms: int, most: int) -> bool:
    """Whether a stream has more than `most` waiters. Costs one small query, because lapsed waiters count too
    where there are many."""
    pk, low, high = schema.waiters_of(incarnation)
    items, more = table.query(pk, at_least=low, at_most=high, limit=4 * most)
    return more or sum(waiter.until_ms > now_ms for waiter in map(schema.decode_waiter, items)) > most


def all_waiters(table: tables.Table, shards: Iterable[int] = range(schema.WAIT_SHARDS)) -> Iterator[Waiter]:
    """Yield all waiters, also lapsed ones: DynamoDB removes those late, and some engines never do."""
    for shard in shards:
        yield from _query(table, schema.wait_pk(shard), "-", "~")


def _query(table: tables.Table, pk: str, low: str, high: str) -> Iterator[Waiter]:
    return (schema.decode_waiter(item) for page in tables.pages(table, pk, low, high) for item in page)


def remove_lapsed(table: tables.Table, waiter: Waiter) -> None:
    """Remove a lapsed waiter, unless its process has renewed it in the meantime."""
    with suppress(tables.ConditionFailed):
        table.delete(schema.waiter_key(waiter), tables.equals(schema.UNTIL_MS, waiter.until_ms))


def remove_waiters(table: tables.Table, waiters: Sequence[Waiter]) -> None:
    tables.remove_items(table, map(schema.waiter_key, waiters))
