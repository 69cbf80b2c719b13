"""The tail: everything a writer must know to decide about the next append.

Each batch carries this state forward, so a write that takes the place right after a batch
proves that it was decided on the latest state there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.producer import Claim, ProducerState

#: A batch carries this many producers; the rest have an item of their own.
RECENT_PRODUCERS: Final = 8
#: A batch carries this many while displaced producers come back: displacing and looking up again costs more
#: than carrying.
MOST_PRODUCERS: Final = 192
#: Long ids displace others earlier. A batch that carries few should stay within its first kilobyte.
RECENT_PRODUCERS_BYTES: Final = 512
MOST_PRODUCERS_BYTES: Final = 6144
#: At most this many leave with one batch: its transaction writes their items, and takes 100 in all.
MOST_PUSHED_OUT: Final = 90
#: A large transaction takes a partition's write units at once, so few leave while the list is a little long.
_FEW_PUSHED_OUT: Final = 16
#: A batch that carries too many loses one of the latest few in this many appends.
_FORGETS_EVERY: Final = 16


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


def room_for(
    producers: Sequence[ProducerState], latest: ProducerState, *, is_back: bool, at_once: int
) -> int:
    """How many producers a batch carries behind an append of `latest`.

    `is_back` says that it was pushed out: then more are active than are carried, and there is room for it
    beside them. So there is for those who share a batch, `at_once` of them, and for as many who do not yet.
    Where only the latest few write, the others leave one by one.
    """
    room = max(RECENT_PRODUCERS, len(producers))
    if is_back or 2 * at_once > room:
        return max(min(max(room + is_back, 2 * at_once), MOST_PRODUCERS), RECENT_PRODUCERS)
    few = producers[-RECENT_PRODUCERS:]
    is_among_few = any(state.producer_id == latest.producer_id for state in few)
    leaves = is_among_few and latest.seq % _FORGETS_EVERY == 0
    return max(RECENT_PRODUCERS, room - leaves)


def most_pushed_out(carried: int) -> int:
    """How many producers may leave with one batch, behind one that carries so many."""
    return _FEW_PUSHED_OUT if carried <= 2 * MOST_PRODUCERS else MOST_PUSHED_OUT


def remember(
    producers: Sequence[ProducerState], latest: ProducerState, room: int, most_out: int = MOST_PUSHED_OUT
) -> tuple[tuple[ProducerState, ...], tuple[ProducerState, ...]]:
    """The recent producers with `latest` added, and those it pushes out, `most_out` of them at most, so that
    there are no more than `room`."""
    most_bytes = RECENT_PRODUCERS_BYTES if room <= RECENT_PRODUCERS else MOST_PRODUCERS_BYTES
    kept = [state for state in producers if state.producer_id != latest.producer_id]
    kept.append(latest)
    id_bytes = sum(len(state.producer_id) for state in kept)
    pushed_out: list[ProducerState] = []
    most_out = min(most_out, len(kept) - 1)
    while len(pushed_out) < most_out and (len(kept) > room or id_bytes > most_bytes):
        pushed_out.append(kept.pop(0))
        id_bytes -= len(pushed_out[-1].producer_id)
    return tuple(kept), tuple(pushed_out)
