"""Giving space back: what the janitor removes, and when it may."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.log.records import Due
from tidemark.log.schema import (
    DUE_SHARDS,
    decode_due,
    due_before,
    due_key,
    due_pk,
    encode_due,
    log_pk,
)
from tidemark.log.table import Condition, ConditionFailed, Table


def due_entries(table: Table, now_ms: int) -> Iterator[Due]:
    """What has fallen due, a page per shard and round, so that a run can stop anywhere."""
    for shard in range(DUE_SHARDS):
        items, _ = table.query(due_pk(shard), at_most=due_before(now_ms), limit=100)
        yield from map(decode_due, items)


def overdue(table: Table, now_ms: int, shard: int) -> list[Due]:
    """All that has fallen due in one shard."""
    found: list[Due] = []
    at_least, more = "0", True
    while more:
        items, more = table.query(due_pk(shard), at_least=at_least, at_most=due_before(now_ms))
        found += map(decode_due, items)
        if items:
            at_least = f"{items[-1]['sk']['S']}/"  # behind the last one, whatever its mark
    return found


def schedule(table: Table, due: Due) -> None:
    table.put(encode_due(due))


def settle(table: Table, due: Due) -> None:
    table.delete(due_key(due))


def claim(table: Table, due: Due) -> bool:
    """Take the entry out of the queue; False where somebody else has."""
    try:
        table.delete(due_key(due), Condition("attribute_exists(sk)"))
    except ConditionFailed:
        return False
    return True


def remove_log(table: Table, due: Due) -> None:
    """Remove every batch and producer of an incarnation. Safe to repeat."""
    _remove_partition(table, log_pk(due.key, due.incarnation))
    _remove_partition(table, f"producer/{due.incarnation}")


def _remove_partition(table: Table, pk: str) -> None:
    more = True
    while more:
        items, more = table.query(pk, at_least=" ", attributes=("pk", "sk"), limit=1000)
        for start in range(0, len(items), 25):
            table.delete_many([{"pk": i["pk"], "sk": i["sk"]} for i in items[start : start + 25]])
