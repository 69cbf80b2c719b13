"""A process's memory of crowded streams: how an append begins, and how often it looks."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tidemark.protocol.errors import Busy

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
#: Where so many were met, who has just won alone combines as well: it would win again and again, before the
#: others have put a batch together.
SEVERAL: Final = 4
#: Streams that a process remembers; the one that it has met others on first leaves first.
_MOST_STREAMS: Final = 256
#: How long after storage has throttled it a process posts less, unless an append meets no throttling before.
THROTTLED_MS: Final = 10_000
#: Refused writers come back at different times.
_LATEST_SECONDS: Final = 5


def back_later() -> Busy:
    return Busy(random.randint(1, _LATEST_SECONDS))


@dataclass(slots=True)
class Meeting:
    """How many writers a process has met lately on a stream, when it last lost a race to them or shared a
    batch with them, and when storage last throttled it there."""

    size: float = 0.0
    lost_ms: int = 0
    throttled_ms: int = 0

    def was_throttled_in(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - self.throttled_ms < last_ms

    def was_in(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - self.lost_ms < last_ms


@dataclass(slots=True)
class Crowd:
    """`sender` names the process. Streams are named by their incarnations."""

    sender: str = ""
    _met: dict[str, Meeting] = field(default_factory=dict)

    def on(self, incarnation: str) -> Meeting:
        return self._met.get(incarnation) or Meeting()

    def lose(self, incarnation: str, now_ms: int) -> None:
        self._met.setdefault(incarnation, Meeting()).lost_ms = now_ms
        while len(self._met) > _MOST_STREAMS:
            self._met.pop(next(iter(self._met)), None)

    def throttle(self, incarnation: str, now_ms: int) -> None:
        self.lose(incarnation, now_ms)
        self._met[incarnation].throttled_ms = now_ms

    def flow(self, incarnation: str) -> None:
        """An append has met no throttling."""
        if (meeting := self._met.get(incarnation)) is not None:
            meeting.throttled_ms = 0

    def meet(self, incarnation: str, writers: int, now_ms: int) -> None:
        """In a batch of so many."""
        if writers >= CROWD:
            self.lose(incarnation, now_ms)
        if (meeting := self._met.get(incarnation)) is not None:
            meeting.size = max(writers, meeting.size * _KEPT)
