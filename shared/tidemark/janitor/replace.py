"""Replacing: one pack takes the place of batches or other packs, which are then removed.

The order of the writes:

1. The object is written under a unique name. Nothing refers to it yet.
2. One transaction makes the pack: the pack takes the key of its first batch, the stream's item records the
new end of packs, and a queue entry names the batches to remove. If two janitors pack the same range, a
condition on the stream's item refuses one.
3. The batches in between are removed, from the first to the last. Readers find either the batches or the
pack.
4. The objects of replaced packs are removed much later, because readers may still request them.

A run may stop after any of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tidemark.blobs import batch_blob_key
from tidemark.log.due import Packing, schedule, settle
from tidemark.log.pack_format import BlockEntry
from tidemark.log.packs import PackRefused, commit_pack, pack_mark, pack_start
from tidemark.log.records import Batch, Due, DueKind, Pack, StreamRecord
from tidemark.log.schema import BLOB, PK, SK, batch_key, decode_batch_start, decode_entry, just_behind, log_pk
from tidemark.log.table import MAX_DELETES, pages
from tidemark.protocol.offset import render_offset
from tidemark.service.stores import Stores


class NoTimeLeft(Exception):
    """The run has no time left; the rest stays due."""


@dataclass(frozen=True, slots=True)
class NextLook:
    """The time of the next look at a stream. The same `mark` and time make one entry of the queue."""

    at_ms: int
    mark: str = ""

    @classmethod
    def together(cls, packing: Packing, at_ms: int) -> NextLook:
        """Round the time up, so that several looks at a stream become one entry of the queue."""
        step = max(1000, packing.after_ms)
        return cls(-(-at_ms // step) * step, "again")


def read_blocks(stores: Stores, pack: Pack) -> Iterator[tuple[BlockEntry, memoryview]]:
    """Return all blocks of a pack in the log, with one request."""
    assert pack.blob is not None, "a pack that was read whole has its object's name"
    first, last = pack.index.blocks[0], pack.index.blocks[-1]
    size = last.first_byte + last.stored_bytes - first.first_byte
    stored = stores.blobs.get_range(pack.blob, first.first_byte, size)
    return pack.index.stored_blocks(memoryview(stored))


def put_pack(
    stores: Stores,
    record: StreamRecord,
    replaced: tuple[Batch | Pack, Batch | Pack],
    encoded: tuple[bytes, bytes],
    *,
    compacted: int = 0,
) -> tuple[Due, StreamRecord]:
    """Make a pack of `encoded`, its object and its index. It replaces the range from the first to the second
    entry of `replaced`. Returns the queue entry that removes the replaced entries, and the stream's new
    record. Raises PackRefused."""
    data, index = encoded
    blob = batch_blob_key(record.incarnation, stores.new_id())
    stores.blobs.put(blob, data)
    try:
        now_ms = stores.clock_ms()
        return commit_pack(
            stores.table, record, replaced, now_ms, blob=blob, index=index, compacted=compacted
        )
    except PackRefused as refused:
        if not refused.maybe_landed:
            stores.blobs.delete(blob)
        raise


def remove_replaced(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> bool:
    """Remove the batches that the entry's pack has replaced, the first ones first, because a reader of a
    missing batch looks before it for the pack. The removal needs the pack to exist. Objects of replaced packs
    stay for now. Returns whether time was enough."""
    pk, start, end = log_pk(due.key, due.incarnation), pack_start(due), due.offset
    if due.blob is not None:
        schedule_removal(stores, due, start, due.blob)
    found = stores.table.get(batch_key(pk, start))
    is_there = found is not None and isinstance(pack := decode_entry(found), Pack) and pack.end == end
    bounds = just_behind(start), render_offset(end - 1)
    replaced = pages(stores.table, pk, *bounds, attributes=(PK, SK, BLOB), limit=1000) if is_there else ()
    for items in replaced:
        for first in range(0, len(items), MAX_DELETES):
            if not has_time_left():
                return False
            some = items[first : first + MAX_DELETES]
            for item in some:
                if BLOB in item:
                    schedule_removal(stores, due, decode_batch_start(item[SK]["S"]), item[BLOB]["S"])
            stores.table.delete_many([{PK: item[PK], SK: item[SK]} for item in some])
    settle(stores.table, due)
    return True


def schedule_removal(stores: Stores, replaced: Due, start: int, blob: str) -> None:
    """Schedule the removal of the object of the pack that began at `start`. By then it is unreadable: no
    process remembers the pack, and no restore point of the table has it. `replaced` is the entry of the pack
    that has replaced it."""
    due_ms, mark = replaced.due_ms + stores.packing.keep_replaced_ms, pack_mark(start, blob)
    due = replace(replaced, kind=DueKind.REPLACED, due_ms=due_ms, mark=mark, offset=0, blob=blob)
    schedule(stores.table, due)


def remove_object(stores: Stores, due: Due) -> bool:
    """Remove the object of a replaced pack. If an item in the table still names the object, the removal waits
    for that item's removal. Returns whether the object was removed."""
    assert due.blob is not None, "scheduled with its name"
    start = pack_start(due)
    found = stores.table.get(batch_key(log_pk(due.key, due.incarnation), start))
    is_named = found is not None and found.get(BLOB) == {"S": due.blob}
    if is_named:
        schedule_removal(stores, replace(due, due_ms=stores.clock_ms()), start, due.blob)
    else:
        stores.blobs.delete(due.blob)
    settle(stores.table, due)
    return not is_named
