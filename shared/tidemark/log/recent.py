"""Batches this process has seen lately. A batch never changes, so what was read or written
once need not be read again; whether its stream still exists is read every time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

from tidemark.log.records import Batch
from tidemark.log.tails import MAX_AGE_MS

#: Roughly what a batch takes beside its bytes.
_OVERHEAD_BYTES: Final = 500
#: Each takes some 20 KB.
_MOST_PACKS: Final = 64


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class RecentBatches:
    """The most recently used batches up to `capacity_bytes`; safe to share between threads."""

    def __init__(self, capacity_bytes: int, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock_ms = clock_ms
        self._held_bytes = 0
        self._batches: OrderedDict[tuple[str, int], Batch] = OrderedDict()
        #: The pack that was read last, by incarnation, and when it was found: reading on needs no query.
        self._packs: OrderedDict[str, tuple[Batch, int]] = OrderedDict()
        self._lock = Lock()

    def keep(self, incarnation: str, *batches: Batch) -> tuple[Batch, ...]:
        """Keep the batches that have all their data, and return all of them: those that were kept before
        as they were, so that many readers share the same bytes. (Where a pack has replaced small batches,
        one of those may be kept for the same offset: that is another one.) Empty ones are not kept: they say
        how a stream ends, and that is read every time."""
        shared = []
        with self._lock:
            for batch in batches:
                place = (incarnation, batch.start)
                known = self._batches.get(place)
                if known is not None:
                    shared.append(known if known.end == batch.end else batch)
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

    def clear(self) -> None:
        with self._lock:
            self._batches.clear()
            self._packs.clear()
            self._held_bytes = 0

    def keep_pack(self, incarnation: str, pack: Batch) -> None:
        """Keep a pack that was found just now. A pack that is remembered already keeps its time."""
        with self._lock:
            known = self._packs.get(incarnation)
            if known is None or known[0] is not pack:
                self._packs[incarnation] = pack, self._clock_ms()
            self._packs.move_to_end(incarnation)
            if len(self._packs) > _MOST_PACKS:
                self._packs.popitem(last=False)

    def chain(
        self, incarnation: str, start: int, limit_bytes: int, *, with_pack: bool = False
    ) -> list[Batch]:
        """Batches from `start` on without a gap, until `limit_bytes` are exceeded. `with_pack` takes in the
        pack that was read last, whose bytes are not there; not for long, because a larger pack may take its
        place, and then its object is removed."""
        chain: list[Batch] = []
        position = start
        with self._lock:
            while position - start <= limit_bytes:
                batch = self._batches.get((incarnation, position))
                if batch is not None:
                    self._batches.move_to_end((incarnation, position))
                elif with_pack and (pack := self._pack(incarnation, position)):
                    batch = pack
                else:
                    break
                chain.append(batch)
                position = batch.end
        return chain

    def _pack(self, incarnation: str, position: int) -> Batch | None:
        pack, found_ms = self._packs.get(incarnation, (None, 0))
        if pack is None or not pack.start <= position < pack.end:
            return None
        return pack if self._clock_ms() - found_ms <= MAX_AGE_MS else None
