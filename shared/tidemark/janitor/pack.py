"""Packing: old batches move to S3 together, and one entry replaces them (`docs/internals/packs.md`).

Small packs right before the new one are merged into it. The last batch of a log is never packed, because
writers decide on its state. The writes are in `janitor/replace.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from tidemark.janitor.compact import compact
from tidemark.janitor.replace import NextLook, NoTimeLeft, put_pack, read_blocks, remove_replaced
from tidemark.log.chain import ChainWalk, Span
from tidemark.log.due import schedule, settle
from tidemark.log.pack_format import CorruptPack, PackIndex, PackWriter, decode_index
from tidemark.log.packs import PackRefused
from tidemark.log.read import Page, load_incarnation, load_last
from tidemark.log.records import Batch, Due, Entry, Pack, StreamRecord
from tidemark.log.schema import decode_entry, log_pk
from tidemark.observability import metrics
from tidemark.protocol.errors import BlobUnreadable, Damaged
from tidemark.protocol.offset import render_offset
from tidemark.service.read import with_blobs
from tidemark.service.stores import Stores

#: The most packs merged into a new one; each costs a request.
_MOST_TAKEN_IN: Final = 64

_log: Final = logging.getLogger("tidemark")


def take_in(
    stores: Stores, record: StreamRecord, pack: bytes, index: bytes
) -> tuple[list[Pack], bytes, bytes]:
    """Return the packs to merge into a new one, and the object and index of the merged pack. If a pack is
    missing or damaged, nothing is merged: readers of the damaged pack get the error."""
    new, merged = decode_index(index), None
    try:
        before = _packs_before(stores, record, new)
        for batch in before:
            merged = merged or PackWriter(batch.start, stores.packing.block_bytes)
            for block in read_blocks(stores, batch):
                merged.take(*block)
    except (CorruptPack, Damaged, BlobUnreadable) as fault:
        _log.error("a pack of %s cannot be read, and is not packed again: %s", record.key, fault)
        return [], pack, index
    if merged is None:
        return [], pack, index
    for block in new.stored_blocks(memoryview(pack)[new.blocks[0].first_byte :]):
        merged.take(*block)
    return before, *merged.finish()


def _packs_before(stores: Stores, record: StreamRecord, new: PackIndex) -> list[Pack]:
    """Return the small packs right before the new one, without a gap, from the retained offset on."""
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
            break  # A batch that a pack has replaced and that is not removed yet.
        if entry.end <= record.compacted or not stores.packing.takes_in(data_bytes, entry.size):
            break  # Compacted packs are not merged with new ones (`janitor/compact.py`).
        found.append(entry)
        start, data_bytes = entry.start, data_bytes + entry.size
    return found[::-1]


def pack_stream(stores: Stores, due: Due, has_time_left: Callable[[], bool]) -> int:
    """Pack the old batches of the entry's stream, and compact its packs. Returns the number of packs made.
    The entry stays due if another janitor was first or time ran out."""
    record = load_incarnation(stores.table, due)
    if record is None or record.deleted:
        settle(stores.table, due)
        return 0
    packer = _Packer(stores, record, has_time_left)
    try:
        looks = [packer.pack_all(), compact(stores, packer.record, has_time_left)]
    except (PackRefused, NoTimeLeft):
        return packer.made
    for look in looks:
        if look is not None:
            schedule(stores.table, replace(due, due_ms=look.at_ms, mark=look.mark or due.mark))
    settle(stores.table, due)
    return packer.made


class _Packer:
    """One look at a stream. `run` holds adjacent batches that are not in a pack yet."""

    def __init__(self, stores: Stores, record: StreamRecord, has_time_left: Callable[[], bool]) -> None:
        self._stores = stores
        self._packing = stores.packing.of(record)
        self.record = record
        self._has_time_left = has_time_left
        self._run: _Run | None = None
        self._are_all = True
        self.made = 0

    def pack_all(self) -> NextLook | None:
        """Pack all old batches. Returns the time of the next look, if more is expected. Raises PackRefused,
        NoTimeLeft. A stream with compaction is checked until all its batches are packed."""
        packing, now_ms = self._packing, self._stores.clock_ms()
        for batch in self._old_batches(now_ms - packing.after_ms):
            if not self._has_time_left():
                raise NoTimeLeft
            self._take(batch)
        run, compacts = self._run, self.record.compaction is not None
        if run is not None:
            if not (self._are_all or compacts or packing.has_waited(run.first.time_ms, now_ms)):
                return NextLook(packing.next_look_ms(run.first.time_ms, now_ms))
            self._finish(run)
        if compacts and (self.made or not self._are_all):
            return NextLook.together(packing, now_ms + packing.after_ms)
        return None

    def _old_batches(self, until_ms: int) -> Iterator[Entry]:
        """Yield the batches after the last pack that were written by `until_ms`, without the last one of the
        log. `_are_all` becomes False if younger batches are left out."""
        record, table = self.record, self._stores.table
        pk = log_pk(record.key, record.incarnation)
        begin = max(record.base, record.packed, record.retained)
        last = load_last(table, pk)
        if last is None or last.start <= begin:
            return
        span = Span(pk, record.incarnation, begin, None)
        decode = partial(map, decode_entry)
        for batch in ChainWalk(table.query, decode, [span], begin, until=last.start, looks_back=False):
            if batch.time_ms > until_ms:
                self._are_all = False
                return
            if batch.start >= begin:
                yield batch

    def _take(self, entry: Entry) -> None:
        """Add a batch to the run. A large body is already in S3 and is packed only for compaction."""
        batch = entry if isinstance(entry, Batch) and entry.size else None
        if batch is not None and batch.data is None:
            batch = None if self.record.compaction is None else self._with_body(batch)
        run = self._run
        if run is not None and not (batch and batch.start == run.last.end):
            self._finish(run)
        if batch is None:
            return
        run = self._run = self._run or _Run(batch, self._packing.block_bytes)
        run.add(batch)
        if run.writer.data_bytes >= self._packing.pack_bytes:
            self._finish(run)

    def _with_body(self, batch: Batch) -> Batch:
        """Return the batch with its body from S3. Raises Damaged: the janitor then continues."""
        try:
            return with_blobs(self._stores, Page(batch.start, (batch,), up_to_date=False)).batches[0]
        except BlobUnreadable as fault:
            _log.error("a body of %s cannot be read, and is not packed: %s", self.record.key, batch.blob)
            raise Damaged from fault

    def _finish(self, run: _Run) -> None:
        """Make the pack if it pays, and remove the replaced entries. Raises PackRefused."""
        self._run = None
        if not self._packing.pays(run.writer.batch_count, run.writer.data_bytes):
            return
        data, index = run.writer.finish()
        before, data, index = take_in(self._stores, self.record, data, index)
        first = before[0] if before else run.first
        due, self.record = put_pack(self._stores, self.record, (first, run.last), (data, index))
        self.made += 1
        metrics.PROCESS.add(metrics.PACKS)
        metrics.PROCESS.add(metrics.MERGED_PACKS, len(before))
        metrics.PROCESS.add(metrics.PACKED_BATCHES, run.writer.batch_count)
        metrics.PROCESS.add(metrics.PACKED_BYTES, run.writer.data_bytes)
        metrics.PROCESS.add(metrics.PACK_STORED_BYTES, len(data))
        remove_replaced(self._stores, due, self._has_time_left)


class _Run:
    def __init__(self, first: Batch, block_bytes: int) -> None:
        self.first = self.last = first
        self.writer = PackWriter(first.start, block_bytes)

    def add(self, batch: Batch) -> None:
        assert batch.data is not None
        if batch is not self.first and not batch.checksums.follow(self.last.checksums):
            raise Damaged
        self.writer.add(batch.data, batch.lengths, batch.appends, batch.time_ms)
        self.last = batch
