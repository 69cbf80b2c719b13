"""Compaction: packs are rewritten without the messages that a later one of their key supersedes
(`docs/compaction.md`).

A pass works like Kafka's log cleaner. It reads the packs that no pass has seen, and keeps the last offset of
each key in a map, for as many keys as fit memory. Then it rewrites all packs up to that point in order, and
merges some: a message stays unless the map has a later one of its key. Below the end of a pass each key
therefore has one message, and the next pass needs a map of only the new packs.

A pass may stop after any pack: each pack records the offset up to which a pass has compared it
(`Pack.compacted`), and the next pass continues there. The message that supersedes a removed one is always
kept, so a reader of old and new packs ends with the same state.

A message that deletes its key is removed last, some time after the messages that it deletes (`Horizon`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, repeat, takewhile
from typing import Final

from tidemark.janitor.replace import NextLook, NoTimeLeft, put_pack, read_blocks, remove_replaced
from tidemark.log.pack_format import Block, BlockEntry, CorruptPack, PackWriter, decode_block, message_ends
from tidemark.log.packs import commit_horizon
from tidemark.log.records import Pack, StreamRecord
from tidemark.log.schema import decode_entry, log_pk
from tidemark.log.table import pages
from tidemark.observability.metrics import COMPACTED_AWAY_BYTES, COMPACTED_BYTES, PROCESS
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.errors import BlobUnreadable, Damaged
from tidemark.protocol.message_key import make_key_rule
from tidemark.protocol.offset import render_offset
from tidemark.service.stores import Stores

#: The most keys in the map, which then takes about 120 MB of the packer's 512. No pack has more messages.
MOST_KEYS: Final = 600_000
#: The most new bytes that a pass compares, so that one round of the janitor can fill the map.
MOST_BYTES: Final = 512 * 1024 * 1024
#: A pass pays once the new bytes are a sixth of the bytes that it would read again. A reader then gets at
#: most a sixth more than the last messages, and at most seven bytes are rewritten for each new one.
_PART: Final = 6
_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS

_log: Final = logging.getLogger("tidemark")


def compact(stores: Stores, record: StreamRecord, has_time_left: Callable[[], bool]) -> NextLook | None:
    """Run all passes that are due. Returns the time of the next look, if it is known. Raises PackRefused,
    NoTimeLeft, StorageUnavailable.

    A stream with forks is not compacted, because the forks read its log. In a fork, only its own log is
    compacted and not the inherited logs, so a fork keeps the messages that delete a key.
    """
    if record.compaction is None:
        return None
    try:
        look_ms = _make_passes(stores, record, record.compaction, has_time_left)
    except (CorruptPack, Damaged, BlobUnreadable) as fault:
        _log.error("a pack of %s cannot be read, and is not compacted: %s", record.key, fault)
        look_ms = stores.clock_ms() + _HOUR_MS
    return None if look_ms is None else NextLook.together(stores.packing, look_ms)


def _make_passes(
    stores: Stores, record: StreamRecord, compaction: Compaction, has_time_left: Callable[[], bool]
) -> int | None:
    if record.references:
        return stores.clock_ms() + _DAY_MS if record.packed > record.compacted else None
    while True:
        packs = load_packs(stores, record)
        plan = plan_pass(packs, record, compaction, stores.clock_ms())
        if not plan.packs:
            return plan.look_ms
        record = _Pass(stores, record, compaction, plan, has_time_left).run()


def load_packs(stores: Stores, record: StreamRecord) -> list[Pack]:
    """Return the stream's own packs from the retained offset on, without a gap up to the last one. The search
    begins at the start of the log: only an earlier pack shows whether an entry was replaced."""
    packs: list[Pack] = []
    pk, base, packed = log_pk(record.key, record.incarnation), record.base, record.packed
    found = pages(stores.table, pk, render_offset(base), render_offset(packed - 1)) if base < packed else ()
    for items in found:
        for entry in map(decode_entry, items):
            if packs and entry.start < packs[-1].end:
                continue  # A replaced entry that is not removed yet.
            if not isinstance(entry, Pack) or (packs and entry.start > packs[-1].end):
                packs.clear()
            if isinstance(entry, Pack):
                packs.append(entry)
    return [pack for pack in packs if pack.start >= record.retained]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pass over `packs`, which end at `bound`. Packs from `new_from` on are new to compaction."""

    packs: Sequence[Pack] = ()
    new_from: int = 0
    bound: int = 0
    is_resumed: bool = False
    look_ms: int | None = None


def plan_pass(packs: Sequence[Pack], record: StreamRecord, compaction: Compaction, now_ms: int) -> Plan:
    """Choose the next pass: continue an interrupted one; compare new packs that are old enough, if that pays;
    or remove messages that delete a key, if that is due. `look_ms` is the time when more may be due."""
    seen = list(takewhile(lambda pack: pack.compacted, packs))
    new, new_from = packs[len(seen) :], _end(seen)
    reached = max((pack.compacted for pack in seen), default=0)
    unfinished = [pack for pack in packs if pack.end <= reached]
    if reached > new_from and _end(unfinished) == reached:
        return Plan(unfinished, new_from, reached, is_resumed=True)
    old_ms = now_ms - 1000 * compaction.after_seconds
    old = list(takewhile(lambda pack: pack.time_ms <= old_ms, new))
    if old and _PART * _bytes(old) >= _bytes(seen):
        most_bytes = max(MOST_BYTES, _bytes(seen) // _PART)
        behind = accumulate(pack.index.data_bytes for pack in old)
        first = [pack for pack, size in zip(old, behind, strict=True) if size <= most_bytes]
        return Plan([*seen, *(first or old[:1])], new_from, _end(first or old[:1]))
    if seen and record.horizon.at(now_ms) != record.horizon:
        return Plan(seen, new_from, new_from)
    waits = [now_ms + pack.time_ms - old_ms for pack in new[len(old) :]][:1]
    if record.horizon.next_offset:
        waits.append(record.horizon.next_ms)
    return Plan(look_ms=min(waits, default=None))


def _end(packs: Sequence[Pack]) -> int:
    return packs[-1].end if packs else 0


def _bytes(packs: Sequence[Pack]) -> int:
    return sum(pack.index.data_bytes for pack in packs)


@dataclass(slots=True)
class _Kept:
    """Remaining messages without a gap, of one time: their range, and their end in the block's data."""

    start: int
    end: int
    data_end: int
    time_ms: int
    lengths: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Survey:
    entry: BlockEntry
    stored: memoryview
    data: bytes
    runs: list[_Kept]
    is_untouched: bool


class _Pass:
    """A pass in progress. `writer` has the remaining messages of the packs in `replaced`."""

    def __init__(
        self,
        stores: Stores,
        record: StreamRecord,
        compaction: Compaction,
        plan: Plan,
        has_time_left: Callable[[], bool],
    ) -> None:
        self._stores = stores
        self._record = record
        self._seconds = compaction.tombstone_seconds
        self._key_of = make_key_rule(compaction.key)
        self._plan = plan
        self._has_time_left = has_time_left
        self._last: dict[bytes, int] = {}
        self._horizon = record.horizon.at(stores.clock_ms())
        self._begins = not record.lineage and plan.packs[0].start in {0, record.retained}
        self._tombstones_below = self._horizon.offset if self._begins else 0
        self._replaced: list[Pack] = []
        self._writer = PackWriter(plan.packs[0].start, stores.packing.block_bytes)

    def run(self) -> StreamRecord:
        """Make the pass and return the stream's new record. Raises PackRefused, NoTimeLeft, Damaged."""
        self._learn_keys()
        for pack in self._plan.packs:
            self._rewrite(pack)
        self._commit()
        bound, now_ms, horizon = self._plan.bound, self._stores.clock_ms(), self._horizon
        if self._begins:  # Otherwise messages before the first pack stay until a trim.
            horizon = horizon.after_pass(bound, now_ms, self._seconds)
        commit_horizon(self._stores.table, self._record, horizon)
        return replace(self._record, horizon=horizon)

    def _learn_keys(self) -> None:
        """Read the keys of the new packs, up to the bound. If the map gets too large, the pass ends earlier.
        A resumed pass does not end earlier: its map is no larger than at its first start."""
        plan = self._plan
        for behind, pack in enumerate(plan.packs, 1):
            if pack.start < plan.new_from:
                continue
            for entry, stored in self._blocks(pack):
                for _, end, message, _ in _messages(entry, decode_block(entry, stored)):
                    if keyed := self._key_of(message):
                        self._last[keyed[0]] = end
            if len(self._last) > MOST_KEYS and not plan.is_resumed:
                self._plan = replace(plan, packs=plan.packs[:behind], bound=pack.end)
                return

    def _blocks(self, pack: Pack) -> Iterator[tuple[BlockEntry, memoryview]]:
        if not self._has_time_left():
            raise NoTimeLeft
        return read_blocks(self._stores, pack)

    def _rewrite(self, pack: Pack) -> None:
        """Add the pack's remaining messages to the next one. A large pack without removals stays."""
        plan, packing = self._plan, self._stores.packing
        can_commit = not self._replaced or self._writer.batch_count > 0
        may_stay = can_commit and pack.compacted and 2 * pack.index.data_bytes >= packing.pack_bytes
        is_done = may_stay and plan.is_resumed and pack.compacted == plan.bound
        blocks = () if is_done else self._blocks(pack)
        surveys = [self._survey(entry, stored) for entry, stored in blocks]
        if may_stay and all(survey.is_untouched for survey in surveys):
            self._commit()
            self._writer = PackWriter(pack.end, packing.block_bytes)
            return
        for survey in surveys:
            self._put(survey)
        self._writer.skip(pack.end - self._writer.reached)
        self._replaced.append(pack)
        if self._writer.data_bytes >= packing.pack_bytes:
            self._commit()

    def _survey(self, entry: BlockEntry, stored: memoryview) -> _Survey:
        block = decode_block(entry, stored)
        runs: list[_Kept] = []
        run, behind, is_untouched = None, 0, True
        for start, end, message, time_ms in _messages(entry, block):
            behind += len(message)
            if self._is_gone(message, end):
                is_untouched = False
                continue
            if run is None or run.end != start or run.time_ms != time_ms:
                run = _Kept(start, start, behind, time_ms)
                runs.append(run)
            run.end, run.data_end = end, behind
            run.lengths.append(end - start)
        return _Survey(entry, stored, block.data, runs, is_untouched)

    def _is_gone(self, message: bytes, end: int) -> bool:
        """Whether the pass removes the message. The last message always stays, so that no pack is empty."""
        keyed = self._key_of(message)
        if keyed is None or end == self._plan.bound:
            return False
        digest, deletes = keyed
        return self._last.get(digest, 0) > end or (deletes and end <= self._tombstones_below)

    def _put(self, survey: _Survey) -> None:
        """Add the remaining messages of a block. A large block without removals is copied as stored."""
        writer, entry = self._writer, survey.entry
        is_large = 2 * entry.data_bytes >= self._stores.packing.block_bytes
        if survey.is_untouched and is_large and writer.end == writer.reached == entry.start:
            writer.take(entry, survey.stored)
            return
        for run in survey.runs:
            writer.skip(run.start - writer.reached)
            data = survey.data[run.data_end - (run.end - run.start) : run.data_end]
            writer.add(data, run.lengths, (), run.time_ms)

    def _commit(self) -> None:
        if not self._replaced:
            return
        first, last = self._replaced[0], self._replaced[-1]
        size, left = _bytes(self._replaced), self._writer.data_bytes
        bound, stores = self._plan.bound, self._stores
        encoded = self._writer.finish()
        due, self._record = put_pack(stores, self._record, (first, last), encoded, compacted=bound)
        self._replaced, self._writer = [], PackWriter(last.end, stores.packing.block_bytes)
        PROCESS.add(COMPACTED_BYTES, size)
        PROCESS.add(COMPACTED_AWAY_BYTES, size - left)
        remove_replaced(stores, due, self._has_time_left)


def _messages(entry: BlockEntry, block: Block) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield for each message its start and end in the stream, its bytes, and its time."""
    behind, ends = 0, message_ends(entry.start, block.lengths, block.gaps)
    times_ms = chain.from_iterable(map(repeat, block.times_ms, block.batches))
    for end, length, time_ms in zip(ends, block.lengths, times_ms, strict=True):
        begin, behind = behind, behind + length
        yield end - length, end, block.data[begin:behind], time_ms
