"""The tail: everything a writer must know to decide about the next append.

Each batch carries this state forward, so a write that takes the place right after a batch
proves that it was decided on the latest state there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.producer import Claim, ProducerState

#: How many producers a batch carries; the rest have an item of their own.
RECENT_PRODUCERS: Final = 8
#: Long ids displace others earlier: a batch should stay within its first kilobyte.
RECENT_PRODUCERS_BYTES: Final = 512


@dataclass(slots=True, unsafe_hash=True)
class Tail:
    """The state of a stream after its last batch.

    `producers` holds the most recent ones, the latest last. `overflowed` says that some
    producer was pushed out of it, so that an unknown one may have an item of its own.
    Never changed once it is made; not frozen for the same reason as `log.records.Batch`.
    """

    offset: int = 0
    closed: bool = False
    stream_seq: str | None = None
    producers: tuple[ProducerState, ...] = ()
    overflowed: bool = False
    closed_by: Claim | None = None

    def producer(self, producer_id: str) -> ProducerState | None:
        for state in reversed(self.producers):
            if state.producer_id == producer_id:
                return state
        return None


EMPTY: Final = Tail()


def remember(
    producers: Iterable[ProducerState], latest: ProducerState
) -> tuple[tuple[ProducerState, ...], tuple[ProducerState, ...]]:
    """The recent producers with `latest` added, and those it pushes out."""
    kept = [state for state in producers if state.producer_id != latest.producer_id]
    kept.append(latest)
    id_bytes = sum(len(state.producer_id) for state in kept)
    pushed_out = []
    while len(kept) > 1 and (len(kept) > RECENT_PRODUCERS or id_bytes > RECENT_PRODUCERS_BYTES):
        pushed_out.append(kept.pop(0))
        id_bytes -= len(pushed_out[-1].producer_id)
    return tuple(kept), tuple(pushed_out)
