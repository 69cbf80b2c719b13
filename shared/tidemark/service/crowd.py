"""A process's memory of crowded streams: how an append begins, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: How long after a lost race, or a batch of several writers, others are expected.
CROWDED_MS: Final = 1_000
#: So many appends in a batch say that writers combine.
CROWD: Final = 2
_KEPT: Final = 0.9


@dataclass(slots=True)
class Crowd:
    """`sender` names the process; `size` is how many writers it has met lately, on whichever stream."""

    sender: str = ""
    lost_ms: int = 0
    size: float = 0.0

    def has_lost_lately(self, now_ms: int) -> bool:
        return now_ms - self.lost_ms < CROWDED_MS

    def meet(self, writers: int) -> None:
        self.size = max(writers, self.size * _KEPT)
