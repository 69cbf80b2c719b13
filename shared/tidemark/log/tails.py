"""In-memory state of logs in one process: tails, so that a warm append writes without a read; recent batches;
and other writers of each stream, which decide how an append begins and how often it looks.

A batch never changes, so a known batch is not read again. Whether its stream still exists is always read.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from tidemark.log.combining import ChainEnd, Mailed
from tidemark.log.records import Batch, Pack, StreamRecord
from tidemark.protocol.expiry import deadline_ms
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

#: A tail learned longer ago is not used. With RECLAIM_AFTER_MS, this guarantees that no write goes to a key
#: that once held a batch: half of the proof that no append is lost (the other is the conditional write).
MAX_AGE_MS: Final = 5 * 60 * 1000

#: Tombstones and the batches before them stay at least this long (`janitor/sweep.py`).
RECLAIM_AFTER_MS: Final = 60 * 60 * 1000

#: Room for about 60,000 streams of 1 KB each (`held_bytes`).
CAPACITY_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True, unsafe_hash=True)
class StreamHead:
    """A stream and its tail, as of `learned_ms`. Never changed, but not frozen, for the same reason as
    `Tail`.

    `written_ms` is the time of the last batch, which also renews a sliding expiry. `last_start` is the start
    of that batch; None if there is none or it is not known. `mailed` are the combined appends of the batch.
    `crc` is the chain's CRC-32 after the batch (`log/records.py: Checksums`).
    """

    record: StreamRecord
    tail: Tail
    written_ms: int
    learned_ms: int
    last_start: int | None = None
    mailed: tuple[Mailed, ...] = ()
    crc: int | None = None

    @property
    def chain_end(self) -> ChainEnd:
        return ChainEnd(self.tail.offset, self.last_start, self.mailed)

    @property
    def touched_ms(self) -> int:
        return max(self.record.used_ms, self.written_ms)

    @property
    def ends_ms(self) -> int | None:
        """The time at which the stream expires without further use."""
        return deadline_ms(self.record.expiry, self.touched_ms)

    def is_expired(self, now_ms: int) -> bool:
        ends_ms = deadline_ms(self.record.expiry, self.touched_ms)
        return ends_ms is not None and now_ms >= ends_ms


class TailCache:
    """The tails of streams, up to `capacity_bytes`; safe to share between threads.

    A full cache evicts at random. LRU would be worse for writers that take turns over slightly more streams
    than fit: it evicts each stream just before its turn, and every lookup misses. At random, most hit.
    """

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES, chance: random.Random | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._chance = chance or random.Random()
        self._held_bytes = 0
        self._heads: dict[StreamKey, StreamHead] = {}
        #: The same keys in a list, and the index of each, to choose one at random in one step.
        self._keys: list[StreamKey] = []
        self._places: dict[StreamKey, int] = {}
        self._lock = Lock()

    def get(self, key: StreamKey, now_ms: int) -> StreamHead | None:
        """The cached head of the stream, unless it is too old."""
        with self._lock:
            head = self._heads.get(key)
            if head is not None and not 0 <= now_ms - head.learned_ms < MAX_AGE_MS:
                self._drop(key)
                return None
            return head

    def learn(self, head: StreamHead) -> None:
        """Keep the head, unless a later tail of the same log is already known."""
        key = head.record.key
        with self._lock:
            older = self._heads.get(key)
            if older is None:
                self._places[key] = len(self._keys)
                self._keys.append(key)
            elif older.record.incarnation == head.record.incarnation and (
                (older.tail.offset, older.tail.closed) > (head.tail.offset, head.tail.closed)
            ):
                return
            else:
                self._held_bytes -= held_bytes(older)
            self._heads[key] = head
            self._held_bytes += held_bytes(head)
            while self._held_bytes > self._capacity_bytes:
                self._drop(self._chance.choice(self._keys))

    def learn_if_it_fits(self, head: StreamHead) -> None:
        """Keep the head, unless another stream would be evicted."""
        if self._held_bytes + held_bytes(head) <= self._capacity_bytes:
            self.learn(head)

    def forget(self, key: StreamKey) -> None:
        with self._lock:
            if key in self._heads:
                self._drop(key)

    def _drop(self, key: StreamKey) -> None:
        """Remove the key. The last key in the list takes its place."""
        self._held_bytes -= held_bytes(self._heads.pop(key))
        place, last = self._places.pop(key), self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place


def held_bytes(head: StreamHead) -> int:
    """Return the approximate memory of a head: 1,000 bytes, and more for each producer, each inherited
    segment and a snapshot (measured with `tracemalloc`, CPython 3.11)."""
    record = head.record
    parts = (
        len(head.mailed) + len(head.tail.producers) + 2 * len(record.lineage) + (record.snapshot is not None)
    )
    return 1000 + 240 * parts + len(record.key.stream_id)


#: Approximate memory of a batch beside its bytes.
_OVERHEAD_BYTES: Final = 500
#: The most packs kept in memory; each takes about 20 KB.
_MOST_PACKS: Final = 64
#: The most batches kept without their bytes; each takes 1 KB or slightly more.
_MOST_BODIES: Final = 2048


class RecentBatches:
    """The most recently used batches, up to `capacity_bytes`; safe to share between threads."""

    def __init__(
        self, capacity_bytes: int, clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock_ms = clock_ms
        self._held_bytes = 0
        self._batches: OrderedDict[tuple[str, int], Batch] = OrderedDict()
        #: Entries with their bytes in S3, and the time when each was found, so that the next read needs no
        #: query. Only the last pack read in each log is kept.
        self._packs: OrderedDict[tuple[str, int], tuple[Batch | Pack, int]] = OrderedDict()
        self._bodies: OrderedDict[tuple[str, int], tuple[Batch | Pack, int]] = OrderedDict()
        self._lock = Lock()

    def keep(self, incarnation: str, *batches: Batch) -> tuple[Batch, ...]:
        """Keep the batches that have all their data. Returns all batches, with those already kept in place of
        equal ones, so that readers share the same bytes. (After packing, a kept small batch may have the same
        offset as a block: these differ.) Not kept are empty batches, because the end of a stream is read
        every time, and compacted ones, because more messages may be removed."""
        shared = []
        with self._lock:
            for batch in batches:
                place = (incarnation, batch.start)
                known = self._batches.get(place)
                if known is not None:
                    is_same = known.end == batch.end and batch.gaps is None
                    shared.append(known if is_same else batch)
                    continue
                shared.append(batch)
                size = batch.size
                if batch.data is not None and len(batch.data) == size > 0:
                    self._batches[place] = batch
                    self._held_bytes += size + _OVERHEAD_BYTES
            while self._held_bytes > self._capacity_bytes:
                _, dropped = self._batches.popitem(last=False)
                self._held_bytes -= dropped.size + _OVERHEAD_BYTES
        return tuple(shared)

    def keep_found(self, incarnation: str, entry: Batch | Pack) -> None:
        """Keep a pack that was just found, or a batch with its bytes in S3. A known entry keeps its time."""
        held, place, most = self._packs, (incarnation, 0), _MOST_PACKS
        if isinstance(entry, Batch):
            held, place, most = self._bodies, (incarnation, entry.start), _MOST_BODIES
        with self._lock:
            known = held.get(place)
            if known is None or known[0] is not entry:
                held[place] = entry, self._clock_ms()
            held.move_to_end(place)
            if len(held) > most:
                held.popitem(last=False)

    def chain(self, incarnation: str, start: int, limit_bytes: int) -> list[Batch]:
        """Return batches from `start` on without a gap, until `limit_bytes` are exceeded."""
        chain: list[Batch] = []
        for entry in self.chain_with_pack(incarnation, start, start + limit_bytes):
            if not isinstance(entry, Batch) or entry.data is None:
                break
            chain.append(entry)
        return chain

    def chain_with_pack(self, incarnation: str, start: int, last: int) -> list[Batch | Pack]:
        """Return entries from `start` on, without a gap, that begin at or before `last`: batches, and the
        last pack read. Entries with their bytes in S3 expire soon, because a larger pack may replace them,
        and their objects are then removed."""
        chain: list[Batch | Pack] = []
        position = start
        with self._lock:
            while position <= last:
                place = incarnation, position
                entry: Batch | Pack | None = self._batches.get(place)
                if entry is not None:
                    self._batches.move_to_end(place)
                elif (entry := self._fresh(incarnation, position)) is None:
                    break
                chain.append(entry)
                position = entry.end
        return chain

    def _fresh(self, incarnation: str, position: int) -> Batch | Pack | None:
        for found in self._bodies.get((incarnation, position)), self._packs.get((incarnation, 0)):
            is_there = found is not None and found[0].start <= position < found[0].end
            if found is not None and is_there and self._clock_ms() - found[1] <= MAX_AGE_MS:
                return found[0]
        return None


#: Milliseconds for which other writers are expected after a lost race or a batch of several writers.
RIVALS_MS: Final = 1_000
#: The same, measured from the time in a batch of several writers: its writer's clock may differ from this
#: process's by 2 s (`aws/clock.py` corrects larger differences).
RIVALS_APART_MS: Final = RIVALS_MS + 2_000
#: Milliseconds after a lost race for which other processes are expected to write to the stream now and then.
SHARED_MS: Final = 60_000
#: A tail older than this, in ms, is read again if others write: a lost put costs more than a read.
STALE_MS: Final = 50
#: A batch with this many appends shows that writers combine.
MANY_WRITERS: Final = 2
_KEPT: Final = 0.9
#: From this number of writers on, a writer that has just won alone combines too. Otherwise it would win
#: repeatedly before the others have put a batch together.
SEVERAL: Final = 4
#: The most streams with known other writers in one process; the oldest entry is evicted first.
_MOST_STREAMS: Final = 256
#: Milliseconds after throttling in which a process posts less, unless an append meets no throttling.
THROTTLED_MS: Final = 10_000


@dataclass(slots=True)
class StreamRivals:
    """The number of other writers that a process has recently met on a stream, its last lost race or shared
    batch, and the last throttling by storage."""

    size: float = 0.0
    lost_ms: int = 0
    throttled_ms: int = 0

    def was_in(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - self.lost_ms < last_ms


@dataclass(slots=True)
class Rivals:
    """The other writers that a process has met, by stream incarnation. `sender` is the id of the process."""

    sender: str = ""
    _met: dict[str, StreamRivals] = field(default_factory=dict)

    def on(self, incarnation: str) -> StreamRivals:
        return self._met.get(incarnation) or StreamRivals()

    def lose(self, incarnation: str, now_ms: int) -> None:
        self._met.setdefault(incarnation, StreamRivals()).lost_ms = now_ms
        while len(self._met) > _MOST_STREAMS:
            self._met.pop(next(iter(self._met)), None)

    def throttle(self, incarnation: str, now_ms: int) -> None:
        self.lose(incarnation, now_ms)
        self._met[incarnation].throttled_ms = now_ms

    def flow(self, incarnation: str) -> None:
        """Note that an append met no throttling."""
        if (rivals := self._met.get(incarnation)) is not None:
            rivals.throttled_ms = 0

    def meet(self, incarnation: str, writers: int, now_ms: int) -> None:
        """Note a batch of `writers` writers."""
        if writers >= MANY_WRITERS:
            self.lose(incarnation, now_ms)
        if (rivals := self._met.get(incarnation)) is not None:
            rivals.size = max(writers, rivals.size * _KEPT)
