"""Batches this process has seen lately. A batch never changes, so what was read or written
once need not be read again; whether its stream still exists is read every time."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from tidemark.log.records import Batch

#: Roughly what a batch takes beside its bytes.
_OVERHEAD_BYTES: Final = 500
#: Each takes some 20 KB.
_MOST_PACKS: Final = 64


class RecentBatches:
    """The most recently used batches up to `capacity_bytes`; safe to share between threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._batches: OrderedDict[tuple[str, int], Batch] = OrderedDict()
        #: The pack that was read last, by incarnation: who reads on needs no query to find it.
        self._packs: OrderedDict[str, Batch] = OrderedDict()
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

    def keep_pack(self, incarnation: str, pack: Batch) -> None:
        with self._lock:
            self._packs[incarnation] = pack
            self._packs.move_to_end(incarnation)
            if len(self._packs) > _MOST_PACKS:
                self._packs.popitem(last=False)

    def chain(
        self, incarnation: str, start: int, limit_bytes: int, *, with_pack: bool = False
    ) -> list[Batch]:
        """Batches from `start` on without a gap, until `limit_bytes` are exceeded. `with_pack` takes in the
        pack that was read last, whose bytes are not there."""
        chain: list[Batch] = []
        position = start
        with self._lock:
            while position - start <= limit_bytes:
                batch = self._batches.get((incarnation, position))
                if batch is not None:
                    self._batches.move_to_end((incarnation, position))
                elif (
                    with_pack and (pack := self._packs.get(incarnation)) and pack.start <= position < pack.end
                ):
                    batch = pack
                else:
                    break
                chain.append(batch)
                position = batch.end
        return chain
