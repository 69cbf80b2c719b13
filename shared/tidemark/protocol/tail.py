"""The tail: the state that a writer needs to decide about the next append.

Each batch carries this state forward. A write that takes the place right after a batch therefore proves that
it was decided on the latest state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.producer import Claim, ProducerState

#: The producers in a batch; all others have items of their own.
RECENT_PRODUCERS: Final = 8
#: The most producers in a batch while displaced ones return: another lookup costs more than carrying them.
MOST_PRODUCERS: Final = 192
#: The most bytes of ids, so that a batch with few producers stays within its first kilobyte.
RECENT_PRODUCERS_BYTES: Final = 512
MOST_PRODUCERS_BYTES: Final = 6144
#: The most producers that leave with one batch: its transaction writes their items, at most 100 in all.
MOST_PUSHED_OUT: Final = 90
#: A large transaction takes a partition's write units at once, so few leave while the list is not very long.
_FEW_PUSHED_OUT: Final = 16
#: While a batch carries more than 8 producers, every 16th append drops one.
_FORGETS_EVERY: Final = 16


@dataclass(slots=True, unsafe_hash=True)
class Tail:
    """The state of a stream after its last batch.

    `producers` holds the most recent ones, the latest last. `overflowed`: a producer was pushed out, so an
    unknown one may have an item of its own. Never changed, but not frozen, for the same reason as
    `log.records.Batch`.
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
    """Return the number of producers that a batch carries after an append of `latest`.

    `is_back`: `latest` was pushed out before, so more producers are active than are carried, and the room
    grows by one. A batch shared by `at_once` producers has room for twice as many. While only the latest few
    write, the others leave one by one.
    """
    room = max(RECENT_PRODUCERS, len(producers))
    if is_back or 2 * at_once > room:
        return max(min(max(room + is_back, 2 * at_once), MOST_PRODUCERS), RECENT_PRODUCERS)
    few = producers[-RECENT_PRODUCERS:]
    is_among_few = any(state.producer_id == latest.producer_id for state in few)
    leaves = is_among_few and latest.seq % _FORGETS_EVERY == 0
    return max(RECENT_PRODUCERS, room - leaves)


def most_pushed_out(carried: int) -> int:
    """Return the most producers that may leave with one batch, if the batch before carries `carried`."""
    return _FEW_PUSHED_OUT if carried <= 2 * MOST_PRODUCERS else MOST_PUSHED_OUT


def remember(
    producers: Sequence[ProducerState], latest: ProducerState, room: int, most_out: int = MOST_PUSHED_OUT
) -> tuple[tuple[ProducerState, ...], tuple[ProducerState, ...]]:
    """Return the producers with `latest`, and the ones pushed out to keep to `room`: at most `most_out`."""
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
