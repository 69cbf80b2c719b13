"""Batches this process has seen lately. A batch never changes, so what was read or written
once need not be read again; whether its stream still exists is read every time."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from tidemark.log.records import Batch

#: Roughly what a batch takes beside its bytes.
_OVERHEAD_BYTES: Final = 500


class RecentBatches:
    """The most recently used batches up to `capacity_bytes`; safe to share between threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._batches: OrderedDict[tuple[str, int], Batch] = OrderedDict()
        self._lock = Lock()

    def keep(self, incarnation: str, *batches: Batch) -> tuple[Batch, ...]:
        """Keep the batches that have all their data, and return all of them: those that were kept before
        as they were, so that many readers share the same bytes. Empty ones are not kept: they say how a
        stream ends, and that is read every time."""
        shared = []
        with self._lock:
            for batch in batches:
                place = (incarnation, batch.start)
                known = self._batches.get(place)
                if known is not None:
                    shared.append(known)
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

    def chain(self, incarnation: str, start: int, limit_bytes: int) -> list[Batch]:
        """Batches from `start` on without a gap, until `limit_bytes` are exceeded."""
        chain: list[Batch] = []
        position = start
        with self._lock:
            while position - start <= limit_bytes:
                batch = self._batches.get((incarnation, position))
                if batch is None:
                    break
                self._batches.move_to_end((incarnation, position))
                chain.append(batch)
                position = batch.end
        return chain
