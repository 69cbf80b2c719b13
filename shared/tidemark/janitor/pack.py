"""Packing: old batches go to S3 together, and one batch stands for them (`docs/internals/packs.md`).

The order of the writes:

1. The object is put, under a name that is never used again. Nothing points to it yet. Small packs right
   before the new one are taken in (`janitor/pack.py`).
2. One transaction makes the pack: it takes the place of its first batch, the stream's item says how far
   packs reach now, and an entry in the queue names the batches to remove. If two janitors pack the same
   stretch, a condition on the stream's item refuses one.
3. The batches in between are removed, from the first to the last. Readers find either them or the pack.
4. The objects of packs that were taken in are removed much later: readers may be on the way to them.

A run may stop behind any of these. The last batch of a log is never packed: writers decide on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from tidemark.blobs import batch_blob_key
from tidemark.log.chain import ChainWalk, Span
from tidemark.log.due import schedule, settle
from tidemark.log.pack_format import CorruptPack, PackIndex, PackWriter, decode_index
from tidemark.log.packs import NewPack, PackRefused, commit_pack, pack_mark, pack_start
from tidemark.log.read import load_last, load_stream
from tidemark.log.records import Batch, Due, DueKind, Entry, Pack, StreamRecord
from tidemark.log.schema import BLOB, PK, SK, batch_key, decode_batch_start, decode_entry, just_behind, log_pk
from tidemark.log.table import MAX_DELETES
from tidemark.observability.metrics import (
    MERGED_PACKS,
    PACK_STORED_BYTES,
    PACKED_BATCHES,
    PACKED_BYTES,
    PACKS,
    PROCESS,
)
from tidemark.protocol.errors import Damaged, StorageUnavailable
from tidemark.protocol.offset import render_offset
from tidemark.service.stores import Stores

#: Each is a request.
_MOST_TAKEN_IN: Final = 64

_log: Final = logging.getLogger("tidemark")


def take_in(
    stores: Stores, record: StreamRecord, pack: bytes, index: bytes
) -> tuple[list[Pack], bytes, bytes]:
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


def _packs_before(stores: Stores, record: StreamRecord, new: PackIndex) -> list[Pack]:
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
    found: list[Pack] = []
    for entry in map(decode_entry, items):
        if not isinstance(entry, Pack) or entry.end != start:
            break  # A batch here was replaced by a pack, and is not removed yet.
        if not stores.packing.takes_in(data_bytes, entry.size):
            break
        found.append(entry)
        start, data_bytes = entry.start, data_bytes + entry.size
    return found[::-1]


def _take_object(stores: Stores, merged: PackWriter, pack: Pack) -> None:
    """All blocks of a pack in the log, with one request."""
    assert pack.blob is not None, "a pack that was read whole has its object's name"
    first, last = pack.index.blocks[0], pack.index.blocks[-1]
    size = last.first_byte + last.stored_bytes - first.first_byte
    _take_blocks(merged, pack.index, memoryview(stores.blobs.get_range(pack.blob, first.first_byte, size)))


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


class _NoTimeLeft(Exception):
    """The rest is still due."""


def pack(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> int:
    """Pack the batches of the entry's stream that are old enough. Returns the number of packs made. If
    another janitor was first, or time ran out, the entry is still due."""
    record = load_stream(stores.table, due.key)
    if record is None or record.incarnation != due.incarnation or record.deleted:
        settle(stores.table, due)
        return 0
    packer = _Packer(stores, record, has_time_left)
    try:
        look_again_ms = packer.pack_all()
    except (PackRefused, _NoTimeLeft):
        return packer.made
    if look_again_ms is not None:
        schedule(stores.table, replace(due, due_ms=look_again_ms))
    settle(stores.table, due)
    return packer.made


class _Packer:
    """One look at a stream. `run` are the batches that follow each other and are in no pack yet."""

    def __init__(self, stores: Stores, record: StreamRecord, has_time_left: Callable[[], bool]) -> None:
        self._stores = stores
        self._packing = stores.packing
        self._record = record
        self._has_time_left = has_time_left
        self._run: _Run | None = None
        self.made = 0

    def pack_all(self) -> int | None:
        """When to look again, if more is to come. Raises PackRefused, _NoTimeLeft."""
        packing, now_ms = self._packing, self._stores.clock_ms()
        old = _OldBatches(self._stores, self._record, now_ms - packing.after_ms)
        for batch in old:
            if not self._has_time_left():
                raise _NoTimeLeft
            self._take(batch)
        run = self._run
        if run is None:
            return None
        if not old.are_all and not packing.has_waited(run.first.time_ms, now_ms):
            return packing.next_look_ms(run.first.time_ms, now_ms)
        self._finish(run)
        return None

    def _take(self, entry: Entry) -> None:
        """A large body is in S3 already, under its own name."""
        batch = entry if isinstance(entry, Batch) and entry.data and entry.blob is None else None
        run = self._run
        if run is not None and not (batch and batch.start == run.last.end):
            self._finish(run)
        if batch is None:
            return
        run = self._run = self._run or _Run(batch, self._packing.block_bytes)
        run.add(batch)
        if run.writer.data_bytes >= self._packing.pack_bytes:
            self._finish(run)

    def _finish(self, run: _Run) -> None:
        """Make the pack if it pays, and remove what it replaces. Raises PackRefused."""
        self._run = None
        if not self._packing.pays(run.writer.batch_count, run.writer.data_bytes):
            return
        stores, record = self._stores, self._record
        data, index = run.writer.finish()
        before, data, index = take_in(stores, record, data, index)
        first = before[0] if before else run.first
        new = NewPack(first, run.last, batch_blob_key(record.incarnation, stores.new_id()), index)
        stores.blobs.put(new.blob, data)
        try:
            replaced = commit_pack(stores.table, record, new, stores.clock_ms())
        except PackRefused as refused:
            if not refused.maybe_landed:
                stores.blobs.delete(new.blob)
            raise
        self._record = replace(record, packed=new.last.end)
        self.made += 1
        PROCESS.add(PACKS)
        PROCESS.add(MERGED_PACKS, len(before))
        PROCESS.add(PACKED_BATCHES, run.writer.batch_count)
        PROCESS.add(PACKED_BYTES, run.writer.data_bytes)
        PROCESS.add(PACK_STORED_BYTES, len(data))
        remove_replaced(stores, replaced, self._has_time_left)


class _Run:
    """Batches that follow each other, on their way into a pack."""

    def __init__(self, first: Batch, block_bytes: int) -> None:
        self.first = self.last = first
        self.writer = PackWriter(first.start, block_bytes)

    def add(self, batch: Batch) -> None:
        assert batch.data is not None
        if batch is not self.first and not batch.checksums.follow(self.last.checksums):
            raise Damaged
        self.writer.add(batch.data, batch.lengths, batch.appends, batch.time_ms)
        self.last = batch


class _OldBatches:
    """The batches from the last pack on that were written by `until_ms`, without the last one of the log.
    Once they are used up, `are_all` says that only that one was left out."""

    def __init__(self, stores: Stores, record: StreamRecord, until_ms: int) -> None:
        self._table = stores.table
        self._record = record
        self._until_ms = until_ms
        self.are_all = True

    def __iter__(self) -> Iterator[Entry]:
        record = self._record
        pk = log_pk(record.key, record.incarnation)
        begin = max(record.base, record.packed, record.retained)
        last = load_last(self._table, pk)
        if last is None or last.start <= begin:
            return
        span = Span(pk, record.incarnation, begin, None)
        decode = partial(map, decode_entry)
        walk = ChainWalk(self._table.query, decode, [span], begin, until=last.start, looks_back=False)
        for batch in walk:
            if batch.time_ms > self._until_ms:
                self.are_all = False
                return
            if batch.start >= begin:
                yield batch


def remove_replaced(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> bool:
    """Remove the batches that the entry's pack has replaced, the first ones first: readers that miss one
    look behind it for the pack. Whether there was time for all. That the pack is there is the proof that they
    may go. Packs among them were taken in: their objects stay for now."""
    pk, start, end = log_pk(due.key, due.incarnation), pack_start(due), due.offset
    if due.blob is not None:
        schedule_removal(stores, due, start, due.blob)
    found = stores.table.get(batch_key(pk, start))
    is_there = found is not None and isinstance(pack := decode_entry(found), Pack) and pack.end == end
    more = is_there
    while more:
        items, more = stores.table.query(
            pk,
            at_least=just_behind(start),
            at_most=render_offset(end - 1),
            attributes=(PK, SK, BLOB),
            limit=1000,
        )
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
