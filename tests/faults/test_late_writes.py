"""A write that arrives late changes nothing.

A request that timed out may still be carried out after its retry, and after whatever came next. Each
scenario here is a life of some streams: every write of every use case is recorded, and sent once more
after each use case that follows. The whole table must look as if it had not been sent.

A transaction is repeated twice: with its token, as it was sent, and with another one, as if the ten
minutes were over for which DynamoDB remembers it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.lives import LIVES, Life, Place
from tests.support import World
from tidemark.janitor.sweep import sweep
from tidemark.service.snapshots import LAPSES_AFTER_MS


def is_harmless(life: Life, pk: str, item: Any) -> bool:
    """What a late write may leave where nobody looks: an item of a log that was given back, which no
    stream leads to any more, or of what is no longer retained; and an entry in the janitor's queue, which
    looks for itself whether there is anything to do (`docs/design.md`, the table of writes)."""
    if pk.startswith("due/"):
        harmless = {"expire", "trim", "retain", "settled", "upload", "orphan", "pack", "replaced"}
        return item["kd"]["S"] in harmless
    return (pk, item["sk"]["S"]) in life.vacated


@pytest.mark.parametrize("name", list(LIVES))
def test_a_write_that_is_sent_again_at_any_later_time_changes_nothing(world: World, name: str) -> None:
    life = Life(world.process(), world)
    seen: set[Place] = set()
    left_behind: set[Place] = set()
    for number, step in enumerate(LIVES[name]):
        step(life)
        before, visible = life.table(), life.visible()
        life.vacated |= seen - before.keys()
        seen |= before.keys()
        for sent in life.recorded:
            was_accepted = life.repeat(sent)
            # What DynamoDB refuses changes nothing; the table behind the last write shows that, too.
            if not was_accepted and sent is not life.recorded[-1]:
                continue
            after = life.table()
            for place in before.keys() | after.keys():
                if before.get(place) == after.get(place) or place in left_behind:
                    continue
                item = after.get(place)
                assert item is not None, f"step {number}, {step.__name__}: {sent} removes {before[place]}"
                assert is_harmless(life, place[0], item), (
                    f"step {number}, {step.__name__}: {sent} leaves {item}"
                )
                left_behind.add(place)
        assert life.visible() == visible
    visible = life.visible()
    for _ in range(3):
        world.clock.advance(LAPSES_AFTER_MS)
        sweep(life.process.stores)
        assert life.visible() == visible, "the janitor acts on nothing that was left behind"
