"""Packs of packs: a new pack takes in the small ones right before it (`docs/internals/packs.md`).

A stream that gets a small pack a day thus does not collect hundreds of small packs. The replaced packs are
removed from the log at once, and from S3 once no reader can ask for them any more.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from tidemark.log.due import schedule, settle
from tidemark.log.packs import pack_mark, pack_start
from tidemark.log.records import Batch, Due, DueKind, StreamRecord
from tidemark.log.schema import BLOB, batch_key, decode_batch, log_pk
from tidemark.protocol.errors import Damaged, StorageUnavailable
from tidemark.protocol.offset import render_offset
from tidemark.protocol.pack import CorruptPack, PackIndex, PackWriter, decode_index
from tidemark.service.stores import Stores

#: Each is a request.
_MOST_TAKEN_IN: Final = 64

_log: Final = logging.getLogger("tidemark")


def take_in(
    stores: Stores, record: StreamRecord, pack: bytes, index: bytes
) -> tuple[list[Batch], bytes, bytes]:
    """The packs that a new one takes in, and the merged pack's object and index. If one of them is missing or
    damaged, nothing is merged: readers of the damaged pack get the error."""
    new, merged = decode_index(index), None
    try:
        before = _packs_before(stores, record, new)
        for batch in before:
            merged = merged or PackWriter(batch.start, stores.packing.block_bytes)
            _take_object(stores, merged, batch)
    except (CorruptPack, Damaged, StorageUnavailable) as fault:
        _log.error("a pack of %s cannot be read, and is not packed again: %s", record.key, fault)
        return [], pack, index
    if merged is None:
        return [], pack, index
    _take_blocks(merged, new, memoryview(pack)[new.blocks[0].first_byte :])
    return before, *merged.finish()


def _packs_before(stores: Stores, record: StreamRecord, new: PackIndex) -> list[Batch]:
    """The small packs right before the new one, one after the other. All of them are at or above the retained
    offset."""
    start, data_bytes = new.start, new.end - new.start
    if record.packed != start or start <= record.retained:
        return []
    items, _ = stores.table.query(
        log_pk(record.key, record.incarnation),
        at_least=render_offset(record.retained),
        at_most=render_offset(start - 1),
        limit=_MOST_TAKEN_IN,
        backward=True,
    )
    found: list[Batch] = []
    for batch in map(decode_batch, items):
        # A plain batch here was replaced by a pack, and is not removed yet.
        if batch.index is None or batch.end != start or not stores.packing.takes_in(data_bytes, batch.size):
            break
        found.append(batch)
        start, data_bytes = batch.start, data_bytes + batch.size
    return found[::-1]


def _take_object(stores: Stores, merged: PackWriter, batch: Batch) -> None:
    """All blocks of a pack in the log, with one request."""
    assert batch.index is not None, "a pack"
    assert batch.blob is not None, "a pack has an object"
    first, last = batch.index.blocks[0], batch.index.blocks[-1]
    size = last.first_byte + last.stored_bytes - first.first_byte
    _take_blocks(merged, batch.index, memoryview(stores.blobs.get_range(batch.blob, first.first_byte, size)))


def _take_blocks(merged: PackWriter, index: PackIndex, stored: memoryview) -> None:
    """All blocks of a pack, whose bytes from the first one on are `stored`. They are not copied."""
    position = 0
    for block in index.blocks:
        merged.take(block, stored[position : position + block.stored_bytes])
        position += block.stored_bytes


def schedule_removal(stores: Stores, replaced: Due, start: int, blob: str) -> None:
    """The object of the pack that began at `start` is due for removal once it cannot be read any more: no
    process remembers the pack, and the table cannot be restored to a moment at which it had it. `replaced` is
    the entry of the pack that has replaced it."""
    due_ms, mark = replaced.due_ms + stores.packing.keep_replaced_ms, pack_mark(start, blob)
    due = replace(replaced, kind=DueKind.REPLACED, due_ms=due_ms, mark=mark, offset=0, blob=blob)
    schedule(stores.table, due)


def remove_object(stores: Stores, due: Due) -> bool:
    """Remove the object of a pack that was replaced. If an item in the table still names it, this waits until
    that item is removed. Returns whether the object was removed."""
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
