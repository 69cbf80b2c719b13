"""A cache of tails, so that a warm append writes without reading first."""

from __future__ import annotations

import random
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tidemark.log.records import StreamRecord
from tidemark.protocol.expiry import is_expired
from tidemark.protocol.mail import ChainEnd, Mailed
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

#: A tail learned longer ago is not used. With RECLAIM_AFTER_MS, no write can be sent to a
#: place that once held a batch: this is the second half of the proof that appends are
#: never lost (the first is the conditional write).
MAX_AGE_MS: Final = 5 * 60 * 1000

#: Tombstones and the batches before them stay at least this long (`janitor/sweep.py`).
RECLAIM_AFTER_MS: Final = 60 * 60 * 1000

#: Some 60,000 streams, of which each takes about a kilobyte (`held_bytes`).
CAPACITY_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A stream and its tail, as they were at `learned_ms`.

    `written_ms` is the time of the last batch; a sliding expiry counts from there too. `last_start` is where
    that batch begins, None if there is none or it is not known; `mailed` are the appends in it that were
    combined. `crc` is the chain's CRC-32 behind that batch (`log/records.py: Checksums`).
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

    def is_expired(self, now_ms: int) -> bool:
        return is_expired(self.record.expiry, self.touched_ms, now_ms)


class TailCache:
    """The tails of as many streams as fit `capacity_bytes`; safe to share between threads.

    A full cache drops streams at random. The one that was used least recently looks like the better
    choice, but writers that take turns over a few more streams than fit would drop each one just before
    its turn, and find nothing. At random, they still find most.
    """

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES, chance: random.Random | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._chance = chance or random.Random()
        self._held_bytes = 0
        self._heads: dict[StreamKey, StreamHead] = {}
        #: The same keys in a row, and the place of each there: one is then chosen at random at once.
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
        """Keep what was learned, unless a later tail of the same log is known already."""
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

    def forget(self, key: StreamKey) -> None:
        with self._lock:
            if key in self._heads:
                self._drop(key)

    def clear(self) -> None:
        with self._lock:
            for key in list(self._heads):
                self._drop(key)

    def _drop(self, key: StreamKey) -> None:
        """The last key of the row takes the place of the one that goes."""
        self._held_bytes -= held_bytes(self._heads.pop(key))
        place, last = self._places.pop(key), self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place


def held_bytes(head: StreamHead) -> int:
    """Roughly what a head takes in memory: 1,000 bytes, and more with each producer, each stretch of
    another log that a fork inherits, and a snapshot (measured with `tracemalloc`, CPython 3.11)."""
    record = head.record
    parts = (
        len(head.mailed) + len(head.tail.producers) + 2 * len(record.lineage) + (record.snapshot is not None)
    )
    return 1000 + 240 * parts + len(record.key.stream_id)
