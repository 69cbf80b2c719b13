"""The janitor's queue: tasks for later, and the time from which each may be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tidemark.log.entries import Batch
from tidemark.log.pack_format import Packing
from tidemark.log.records import Due, DueKind, StreamRecord
from tidemark.log.schema import (
    DUE_SHARDS,
    KIND,
    SK,
    decode_due,
    due_before,
    due_key,
    due_pk,
    encode_due,
)
from tidemark.log.table import IF_ABSENT, Condition, ConditionFailed, Table, Write, equals
from tidemark.protocol.errors import Damaged, ProtocolError

#: A prime, so that runs that come at even times begin with different shards.
_TURN_MS: Final = 7919


def due_entries(table: Table, now_ms: int, *, packing: bool = False) -> Iterator[Due]:
    """The entries that are due, a page of each shard in turn, so that a run can stop anywhere and no shard
    waits for another one. With `packing`, only entries about packs; without it, all others. Each run begins
    with another shard, so that runs that are cut short reach every shard in time."""
    begins = {(now_ms // _TURN_MS + turn) % DUE_SHARDS: "0" for turn in range(DUE_SHARDS)}
    while begins:
        for shard, begin in list(begins.items()):
            pk = due_pk(shard, packing=packing)
            try:
                items, more = table.query(pk, at_least=begin, at_most=due_before(now_ms), limit=100)
            except Damaged:  # The log says what is; the other shards go on.
                items, more = [], False
            yield from map(decode_due, items)
            if more and items:
                begins[shard] = f"{items[-1][SK]['S']} "  # just behind the last one
            else:
                del begins[shard]


def overdue(table: Table, now_ms: int, shard: int) -> list[Due]:
    """All that has fallen due in one shard."""
    found: list[Due] = []
    at_least, more = "0", True
    while more:
        items, more = table.query(due_pk(shard), at_least=at_least, at_most=due_before(now_ms))
        found += map(decode_due, items)
        if items:
            at_least = f"{items[-1][SK]['S']}/"  # behind the last one, whatever its mark
    return found


def schedule(table: Table, due: Due) -> None:
    """Put an entry into the queue. It may be put there again at any time: the janitor checks
    whether there is anything to do."""
    table.put(encode_due(due))


def schedule_packing(table: Table, record: StreamRecord, batch: Batch, packing: Packing, now_ms: int) -> None:
    """After a batch was written, which stands whatever comes of this. An entry that is lost is made good by
    the next one: the janitor packs all that is old enough."""
    if not packing.is_due(batch.start, batch.after):
        return
    mark = f"{batch.end}-closed" if batch.after.closed else str(batch.end)
    due_ms = now_ms + packing.after_ms
    with suppress(ProtocolError):
        schedule(table, Due(DueKind.PACK, record.key, record.incarnation, due_ms, mark, batch.end))


def schedule_once(table: Table, due: Due) -> None:
    """Put an entry into the queue whose key it never had before: an upload's or an orphan's, which
    stays under its key, settled, so that this write cannot be repeated."""
    with suppress(ConditionFailed):
        table.put(encode_due(due), IF_ABSENT)


def settle_for_good(due: Due) -> Write:
    """Part of the transaction that uses an upload or a spilled body: it must not be removed any more.
    Refused where the janitor has claimed it."""
    return Write(encode_due(replace(due, kind=DueKind.SETTLED)), condition=_if_kind(due.kind))


def claim(table: Table, due: Due) -> bool:
    """Claim the entry's blob for the janitor; False if it was used first."""
    try:
        table.put(encode_due(replace(due, kind=DueKind.REMOVE)), _if_kind(due.kind))
    except ConditionFailed as refused:
        # A claim whose reply was lost finds itself.
        return refused.existing is not None and decode_due(refused.existing).kind is DueKind.REMOVE
    return True


def _if_kind(kind: DueKind) -> Condition:
    return equals(KIND, kind.value)


def settle(table: Table, due: Due) -> None:
    """Take the entry out of the queue. No key of an entry is used a second time."""
    table.delete(due_key(due))
