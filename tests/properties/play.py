"""A model played against the real code: how, and with which bodies.

Most games are played in memory, where one takes a twentieth of the processor time; `simulation/test_table.py`
compares the table there with an engine. A few are played on an engine, over HTTP and with threads."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support import HOUR_MS, World
from tidemark.log.due import Packing

#: Long enough to be stored deflated.
_LONG = b"the tide comes in; " * 60


#: Whatever is an hour old is packed, in small packs of small blocks; most of those are packed again.
PACKING = Packing(
    HOUR_MS, every_bytes=1, pack_bytes=200, min_batches=2, block_bytes=16, keep_replaced_ms=HOUR_MS
)


def bodies() -> st.SearchStrategy[bytes]:
    """A few bytes, and now and then what the table holds in another form."""
    few = st.binary(max_size=5)
    return few | few | few | st.just(_LONG)


def play(machine: type[RuleBasedStateMachine], world: World, *, games: int, steps: int) -> None:
    """The machine finds the table and the bucket as its `world`."""
    in_its_world = type(machine.__name__, (machine,), {"world": world})
    run_state_machine_as_test(
        in_its_world,
        settings=settings(
            max_examples=games,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
