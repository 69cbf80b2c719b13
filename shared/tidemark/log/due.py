"""The janitor's queue of tasks with due times, and the policy that decides when batches become a pack."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from tidemark.log import schema
from tidemark.log import table as tables
from tidemark.log.pack_format import BLOCK_BYTES
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.protocol.errors import Damaged, ProtocolError
from tidemark.protocol.tail import Tail

#: A prime, so that runs at regular times begin with different shards.
TURN_MS: Final = 7919


def due_entries(table: tables.Table, now_ms: int, *, packing: bool = False) -> Iterator[Due]:
    """Yield the due entries, one page of each shard in turn, so that a run can stop anywhere and no shard
    waits for another. With `packing`, only entries about packs; without, all others. Each run begins with
    another shard, so that shortened runs reach every shard in time."""
    turns = [(now_ms // TURN_MS + turn) % schema.DUE_SHARDS for turn in range(schema.DUE_SHARDS)]
    waiting = deque(_pages(table, schema.due_pk(shard, packing=packing), now_ms) for shard in turns)
    while waiting:
        pages = waiting.popleft()
        if (page := next(pages, None)) is not None:
            yield from map(schema.decode_due, page)
            waiting.append(pages)


def overdue(table: tables.Table, now_ms: int, shard: int) -> list[Due]:
    pages = _pages(table, schema.due_pk(shard), now_ms)
    return [schema.decode_due(item) for page in pages for item in page]


def _pages(table: tables.Table, pk: str, now_ms: int) -> Iterator[list[schema.Item]]:
    with suppress(Damaged):  # Reading goes on with the other shards.
        yield from tables.pages_around_damage(table, pk, "0", schema.due_before(now_ms), limit=100)


def schedule(table: tables.Table, due: Due) -> None:
    """Put an entry into the queue. Repeats do no harm: the janitor checks for work."""
    table.put(schema.encode_due(due))


_KILOBYTE: Final = 1024
_HOUR_MS: Final = 60 * 60 * 1000
#: The table can be restored to any moment of the last 35 days, and then needs the packs of that moment.
KEEP_REPLACED_MS: Final = 36 * 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Packing:
    """Limits of packing. Batches are packed once they are `after_ms` old. An append that crosses a multiple
    of `every_bytes` schedules the janitor. A pack has about `pack_bytes`, and fewer only if no more data is
    expected soon; a pack pays from `min_batches` or `min_bytes` on. An object that a larger pack has replaced
    is kept for `keep_replaced_ms`."""

    after_ms: int
    every_bytes: int = 256 * _KILOBYTE
    pack_bytes: int = 8 * _KILOBYTE * _KILOBYTE
    min_batches: int = 64
    min_bytes: int = 256 * _KILOBYTE
    fewest_batches: int = 2
    block_bytes: int = BLOCK_BYTES
    keep_replaced_ms: int = KEEP_REPLACED_MS

    @classmethod
    def after_seconds(cls, seconds: float) -> Packing:
        """Return the limits for a minimum age. With 0, for tests and demonstrations, every append schedules
        the janitor and any two batches are packed."""
        if seconds == 0:
            return cls(0, every_bytes=1, min_batches=2, keep_replaced_ms=_HOUR_MS)
        return cls(round(seconds * 1000))

    def of(self, record: StreamRecord) -> Packing:
        """Return these limits, lowered for compaction, because only packed messages are compacted."""
        if record.compaction is None:
            return self
        limits = {"every_bytes": 64 * _KILOBYTE, "min_bytes": 4 * _KILOBYTE, "min_batches": 8}
        smaller = {name: min(limit, getattr(self, name)) for name, limit in limits.items()}
        return replace(self, fewest_batches=1, **smaller)

    def crosses_a_mark(self, start: int, after: Tail) -> bool:
        """Whether a batch from `start` to the tail `after` schedules the janitor. A batch has at least one
        byte, so a pack of a closed stream with fewer than `min_batches` bytes never pays."""
        if after.closed:
            return after.offset >= self.min_batches
        return start // self.every_bytes != after.offset // self.every_bytes

    def pays(self, batches: int, data_bytes: int) -> bool:
        """Whether a pack is worth its writes. Removing each batch costs one write, earned back by cheaper
        storage and reads. A single batch is packed only for compaction."""
        is_much = batches >= self.min_batches or data_bytes >= self.min_bytes
        return is_much and batches >= self.fewest_batches

    def takes_in(self, data_bytes: int, before_bytes: int) -> bool:
        """Whether a new pack of `data_bytes` merges with the pack of `before_bytes` right before it.

        The packs merge if the one before is at most twice as large. Each remaining small pack is then more
        than twice as large as the next, so there are few of these. The merged pack is at least 1.5 times as
        large as the old one, so no byte is rewritten often. A pack of half `pack_bytes` is not merged.
        """
        return (
            before_bytes <= 2 * data_bytes
            and 2 * before_bytes < self.pack_bytes
            and 2 * (data_bytes + before_bytes) <= 3 * self.pack_bytes
        )

    def has_waited(self, oldest_ms: int, now_ms: int) -> bool:
        """Whether old batches make a small pack, so that slow but steady streams are packed too."""
        return now_ms - oldest_ms >= 24 * self.after_ms

    def next_look_ms(self, oldest_ms: int, now_ms: int) -> int:
        """Return the time of the next check: the oldest batch will then have waited twice as long as now."""
        return now_ms + max(self.after_ms, now_ms - oldest_ms)


def schedule_packing(
    table: tables.Table, record: StreamRecord, batch: Batch, packing: Packing, now_ms: int
) -> None:
    """Schedule the janitor after a write, if packing is due. A failure is ignored: the next entry packs the
    batches too."""
    if not packing.of(record).crosses_a_mark(batch.start, batch.after):
        return
    mark = f"{batch.end}-closed" if batch.after.closed else str(batch.end)
    due_ms = now_ms + packing.after_ms
    with suppress(ProtocolError):
        schedule(table, Due(DueKind.PACK, record.key, record.incarnation, due_ms, mark, batch.end))


def schedule_once(table: tables.Table, due: Due) -> None:
    """Add an entry whose key was never used: an upload or an orphan. The settled entry stays under its key,
    so that a late copy of this write is refused."""
    with suppress(tables.ConditionFailed):
        table.put(schema.encode_due(due), tables.IF_ABSENT)


def settle_for_good(due: Due) -> tables.Write:
    """Return the write that stops the janitor from removing an upload or a spilled body. It is part of the
    transaction that uses the blob, and is refused if the janitor has claimed the blob."""
    return tables.Write(schema.encode_due(replace(due, kind=DueKind.SETTLED)), condition=_if_kind(due.kind))


def claim_entry(table: tables.Table, due: Due) -> bool:
    """Claim the entry's blob for the janitor. Returns False if the blob was used first."""
    try:
        table.put(schema.encode_due(replace(due, kind=DueKind.REMOVE)), _if_kind(due.kind))
    except tables.ConditionFailed as refused:
        # A retried claim finds its own entry.
        return refused.existing is not None and schema.decode_due(refused.existing).kind is DueKind.REMOVE
    return True


def _if_kind(kind: DueKind) -> tables.Condition:
    return tables.equals(schema.KIND, kind.value)


def settle(table: tables.Table, due: Due) -> None:
    """Remove the entry from the queue. The key of an entry is never used again."""
    table.delete(schema.due_key(due))
