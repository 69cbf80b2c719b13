"""A process's memory of crowded streams: how an append begins, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: How long after a lost race, or a batch of several writers, others are expected.
CROWDED_MS: Final = 1_000
#: How long after its time a batch of several writers says so to a process whose clock may be 2 s ahead of its
#: writer's (`aws/clock.py` corrects what is further off).
CROWDED_APART_MS: Final = CROWDED_MS + 2_000
#: How long after a lost race other processes are expected to write now and then to the same streams.
SHARED_MS: Final = 60_000
#: A tail of a stream that others write to is read again when it is so old: a lost put costs more than a read.
STALE_MS: Final = 50
#: So many appends in a batch say that writers combine.
CROWD: Final = 2
_KEPT: Final = 0.9


@dataclass(slots=True)
class Crowd:
    """`sender` names the process; `size` is how many writers it has met lately, on whichever stream, and
    `lost_ms` when it last lost a race to them, or shared a batch with them."""

    sender: str = ""
    lost_ms: int = 0
    size: float = 0.0

    def has_lost_in(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - self.lost_ms < last_ms

    def meet(self, writers: int, now_ms: int) -> None:
        self.size = max(writers, self.size * _KEPT)
        if writers >= CROWD:
            self.lost_ms = now_ms
