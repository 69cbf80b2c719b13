"""Packs in the log: one entry replaces many batches, with their bytes in blocks of an S3 object.

The walk along the chain yields a pack as one entry (`log/chain.py`). A reader gets its blocks, each as one
batch. Only needed blocks are fetched, with one ranged request for each run of adjacent blocks.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Final

from tidemark.log import schema
from tidemark.log.lifecycle import NONE_LEFT, at_most, if_live
from tidemark.log.pack_format import BatchTimes, CorruptPack, decode_block
from tidemark.log.records import Batch, Checksums, Due, DueKind, Pack, StreamRecord, UnreadBlock
from tidemark.log.table import AllOf, Condition, Missing, Table, TransactionRefused, Update, Write, equals
from tidemark.protocol.compaction import NOT_YET, Horizon
from tidemark.protocol.errors import BlobUnreadable, Damaged
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.tail import Tail

FetchRange = Callable[[str, int, int], bytes]
"""Fetches a range, given the object's name, the first byte and the number of bytes. Raises Damaged,
StorageUnavailable and similar."""

Piece = Batch | UnreadBlock
"""A part of a page: a batch, or a block of a pack whose bytes are not read yet."""

_Each = Callable[[Callable[[Sequence[Piece]], list[Batch]], Sequence[Sequence[Piece]]], list[list[Batch]]]
"""Runs the same call for several arguments at once (`service/stores.py`)."""

Fill = Callable[[Sequence[Piece]], list[Batch]]
"""Returns the batches, with blocks replaced by batches with their bytes: `fill_blocks` on some bucket."""

_log: Final = logging.getLogger("tidemark")


def blocks_of(pack: Pack, start: int) -> Iterator[UnreadBlock]:
    """Yield the pack's blocks, without their bytes, from the one that contains `start`."""
    return (UnreadBlock(pack, entry) for entry in pack.index.blocks_from(start))


def fill_blocks(pieces: Sequence[Piece], fetch: FetchRange, each: _Each) -> list[Batch]:
    """Read the bytes of every block; batches stay unchanged. Blocks of one pack are one range, and several
    packs are fetched in parallel. Raises Damaged if bytes do not match the index, and the exceptions of
    `fetch`."""

    def fill_run(run: Sequence[Piece]) -> list[Batch]:
        blocks = [piece for piece in run if isinstance(piece, UnreadBlock)]
        return _read_blocks(blocks, fetch) if blocks else [piece for piece in run if isinstance(piece, Batch)]

    by_pack = groupby(pieces, key=lambda piece: piece.pack.blob if isinstance(piece, UnreadBlock) else None)
    runs = [list(group) for _, group in by_pack]
    filled_runs = each(fill_run, runs) if len(runs) > 1 else map(fill_run, runs)
    return [batch for run in filled_runs for batch in run]


def _read_blocks(blocks: Sequence[UnreadBlock], fetch: FetchRange) -> list[Batch]:
    """Read adjacent blocks of one pack with one request."""
    blob, first, last = blocks[0].pack.blob, blocks[0].entry, blocks[-1].entry
    assert blob is not None, "a pack that was read to be shown has its object's name"
    try:
        stored = fetch(blob, first.first_byte, last.first_byte + last.stored_bytes - first.first_byte)
    except (BlobUnreadable, Damaged):
        _log.error("a pack cannot be read: %s", blob)
        raise
    places = [block.entry.first_byte - first.first_byte for block in blocks]
    return [
        _decode_block(block, stored[place : place + block.entry.stored_bytes])
        for block, place in zip(blocks, places, strict=True)
    ]


def _decode_block(block: UnreadBlock, stored: bytes) -> Batch:
    try:
        columns = decode_block(block.entry, stored)
    except CorruptPack as fault:
        _log.error("a pack is damaged: %s: %s", block.pack.blob, fault)
        raise Damaged from fault
    return Batch(
        block.start,
        Tail(block.end),
        block.pack.append_id,
        columns.times_ms[-1],
        columns.data,
        lengths=tuple(columns.lengths),
        appends=tuple(columns.appends),
        times=BatchTimes(columns.batches, columns.times_ms),
        checksums=block.checksums,
        gaps=columns.gaps,
    )


@dataclass(eq=False)
class PackRefused(Exception):
    """The pack was refused: another janitor has packed here, the stream has ended, or its retained offset has
    risen. `maybe_landed` as in ConditionFailed."""

    maybe_landed: bool


def cut_front(batch: Batch, begin: int) -> Batch:
    """Return the batch from `begin` on. `begin` is the end of an append, or an offset inside a gap."""
    ends = batch.message_ends()
    messages = bisect_right(ends, begin)
    skip = sum(batch.lengths[:messages])
    left = [end - messages for end in accumulate(batch.appends) if end > messages]
    gaps = batch.gaps and batch.gaps[messages:]
    if gaps:
        gaps[0] = ends[messages] - batch.lengths[messages] - begin
    return replace(
        batch,
        start=begin,
        data=None if batch.data is None else batch.data[skip:],
        lengths=batch.lengths[messages:],
        appends=tuple(other - one for one, other in pairwise([0, *left])),
        times=batch.times and batch.times.without_first(messages),
        checksums=Checksums(None, batch.checksums.after),
        gaps=gaps,
    )


def commit_pack(
    table: Table,
    record: StreamRecord,
    replaced: tuple[Batch | Pack, Batch | Pack],
    now_ms: int,
    *,
    blob: str,
    index: bytes,
    compacted: int,
) -> tuple[Due, StreamRecord]:
    """Commit a pack to the log, in place of all entries from the first to the second of `replaced`. The
    object `blob` is already in S3. Returns the due entry that removes the replaced entries, which the same
    transaction writes, and the stream's new record. Raises PackRefused.

    The conditions:

    - The first entry is unchanged: still the same plain batch, or the same pack. The due entry keeps the name
      of that pack's object, because nothing else does after the commit.
    - The stream exists, and no pack was made since `record` was read. Otherwise two packs could overlap,
      because a replaced pack may still be there.
    - The retained offset is not after the pack's start: a running trim removes batches by key, and none of
      these keys may be the pack's.
    """
    first, last = replaced
    pk = schema.log_pk(record.key, record.incarnation)
    item = schema.encode_pack(pk, first, last, blob, index, compacted=compacted)
    is_known: Condition = AllOf(
        equals(schema.APPEND_ID, first.append_id), equals(schema.END, first.end), Missing(schema.PACK_INDEX)
    )
    if isinstance(first, Pack):
        is_known = equals(schema.BLOB, first.blob or "")
    mark = pack_mark(first.start, blob)
    due = Due(DueKind.PACKED, record.key, record.incarnation, now_ms, mark, last.end, first.blob)
    packed, reached = max(record.packed, last.end), max(record.compacted, compacted)
    after = replace(record, packed=packed, packs_made=record.packs_made + 1, compacted=reached)
    moves = _move(record, after, first.start, compacts=compacted > 0)
    try:
        table.transact([Write(item, condition=is_known), moves, Write(schema.encode_due(due))])
    except TransactionRefused as refused:
        found = refused.existing[0]
        # The reply to this transaction may have been lost; then its own pack is there.
        if found is None or found.get(schema.BLOB) != item[schema.BLOB]:
            raise PackRefused(maybe_landed=refused.maybe_landed) from refused
    return due, after


def _move(record: StreamRecord, after: StreamRecord, start: int, *, compacts: bool) -> Write:
    """Return the write of the stream's packed and compacted offsets. A compaction is refused while the stream
    has forks, because forks read the messages that compaction removes. Later forks are not made below the
    compacted offset (`log/lifecycle.py: add_reference`)."""
    numbers = {schema.PACKED: after.packed, schema.PACKS_MADE: after.packs_made}
    as_seen = _is(schema.PACKS_MADE, record.packs_made)
    condition: Condition = AllOf(if_live(record.incarnation), as_seen, at_most(schema.RETAINED, start))
    if compacts:
        numbers[schema.COMPACTED] = after.compacted
        condition = AllOf(condition, _is(schema.COMPACTED, record.compacted), NONE_LEFT)
    sets = {name: {"N": str(value)} for name, value in numbers.items()}
    return Write(Update(schema.stream_key(record.key), sets), condition=condition)


def commit_horizon(table: Table, record: StreamRecord, horizon: Horizon) -> None:
    """Write the horizon that a pass has reached. A late copy of the write is refused. Raises PackRefused."""
    if horizon == record.horizon:
        return
    before = schema.encode_horizon(record.horizon)[schema.HORIZON]["S"]
    is_before = Missing(schema.HORIZON) if record.horizon == NOT_YET else equals(schema.HORIZON, before)
    as_seen = AllOf(if_live(record.incarnation), _is(schema.COMPACTED, record.compacted), is_before)
    update = Update(schema.stream_key(record.key), schema.encode_horizon(horizon))
    try:
        table.transact([Write(update, condition=as_seen)])
    except TransactionRefused as refused:
        raise PackRefused(maybe_landed=refused.maybe_landed) from refused


def _is(name: str, offset: int) -> Condition:
    return equals(name, offset) if offset else Missing(name)


def pack_mark(start: int, blob: str) -> str:
    """Return the mark of the due entries for the pack at `start`. The object's name makes it unique."""
    return f"{render_offset(start)}-{blob.rpartition('/')[2]}"


def pack_start(due: Due) -> int:
    return int(due.mark[:WIDTH])
