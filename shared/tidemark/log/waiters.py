"""The waiters: who is told when a stream grows. Processes with readers at its tail, each by its queue, and
connections of the WebSocket API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from tidemark.log.records import Waiter
from tidemark.log.schema import (
    ASKED_MS,
    SK,
    UNTIL_MS,
    WAIT_SHARDS,
    decode_waiter,
    encode_waiter,
    wait_pk,
    waiter_key,
    waiters_of,
)
from tidemark.log.table import IF_ABSENT, MAX_DELETES, AnyOf, Compared, ConditionFailed, Table, equals

#: Sorts before everything that an address can go on with.
_JUST_BEHIND = " "


def put_waiter(table: Table, waiter: Waiter) -> None:
    """Register, or register again for longer. A registration that lands late does not shorten a later one,
    and a connection's messages may be handled in another order than they were sent."""
    name, value = (ASKED_MS, waiter.asked_ms) if waiter.is_socket else (UNTIL_MS, waiter.until_ms)
    with suppress(ConditionFailed):
        table.put(encode_waiter(waiter), AnyOf(IF_ABSENT, Compared(name, "<", value)))


def end_watch(table: Table, waiter: Waiter) -> None:
    """Remove a connection's waiter, unless it has asked again later."""
    with suppress(ConditionFailed):
        table.delete(waiter_key(waiter), Compared(ASKED_MS, "<", waiter.asked_ms))


def load_waiters(table: Table, incarnation: str, now_ms: int) -> list[Waiter]:
    """The waiters of one stream that have not lapsed: one consistent query."""
    pk, low, high = waiters_of(incarnation)
    return [waiter for waiter in _query(table, pk, low, high) if waiter.until_ms > now_ms]


def all_waiters(table: Table) -> Iterator[Waiter]:
    """Lapsed ones too: DynamoDB takes its time, and not every engine removes them."""
    for shard in range(WAIT_SHARDS):
        yield from _query(table, wait_pk(shard), "-", "~")


def _query(table: Table, pk: str, low: str, high: str) -> Iterator[Waiter]:
    more = True
    while more:
        items, more = table.query(pk, at_least=low, at_most=high)
        yield from map(decode_waiter, items)
        if more:
            low = items[-1][SK]["S"] + _JUST_BEHIND


def remove_lapsed(table: Table, waiter: Waiter) -> None:
    """Remove it, unless its process has renewed it in the meantime."""
    with suppress(ConditionFailed):
        table.delete(waiter_key(waiter), equals(UNTIL_MS, waiter.until_ms))


def remove_waiters(table: Table, waiters: Sequence[Waiter]) -> None:
    for start in range(0, len(waiters), MAX_DELETES):
        table.delete_many([waiter_key(waiter) for waiter in waiters[start : start + MAX_DELETES]])
