"""The janitor's queue: the step for each kind of entry, and how much is done in a round."""

from __future__ import annotations

import random

from tests.simulation.world import SimulatedWorld
from tidemark.janitor.sweep import STEPS, sweep
from tidemark.log.due import schedule
from tidemark.log.records import Due, DueKind
from tidemark.protocol.stream_key import StreamKey


def test_the_janitor_has_a_step_for_every_kind_of_entry() -> None:
    """A kind without a step would stop each run at its first entry."""
    assert set(STEPS) == set(DueKind)


def test_a_round_goes_on_until_nothing_is_due_or_time_is_short() -> None:
    """However many entries lie in one partition; and another partition's do not wait for them."""
    world = SimulatedWorld(random.Random(7), None)
    stores = world.process()[1]
    for number in range(450):
        incarnation = "the-one" if number < 400 else f"another-{number}"
        due = Due(DueKind.SETTLED, StreamKey("v1", "a"), incarnation, world.now_ms, f"m{number % 400}")
        schedule(stores.table, due)
    left = iter(range(300))
    assert sweep(stores, lambda: next(left, None) is not None).cut_short == 1
    first = [item["sk"]["S"] for item in world.table.items()]
    assert 0 < len(first) < 450
    assert not [key for key in first if "another" in key]
    assert sweep(stores).cut_short == 0
    assert list(world.table.items()) == []
