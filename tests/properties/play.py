"""A model played against the real code: how, and with which bodies."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support import HOUR_MS, make_world
from tidemark.local.engines import LocalServices
from tidemark.protocol.packing import Packing

#: Long enough to be stored deflated.
_LONG = b"the tide comes in; " * 60


#: Whatever is an hour old is packed, in small packs of small blocks; most of those are packed again.
PACKING = Packing(
    HOUR_MS, every_bytes=1, pack_bytes=200, min_batches=2, block_bytes=16, keep_replaced_ms=HOUR_MS
)


def bodies(min_size: int = 0) -> st.SearchStrategy[bytes]:
    """A few bytes, and now and then what the table holds in another form."""
    few = st.binary(min_size=min_size, max_size=5)
    return few | few | few | st.just(_LONG)


def play(services: LocalServices, machine: type[RuleBasedStateMachine], games: int, steps: int) -> None:
    """In a table and a bucket of their own, which the machine finds as its `world`."""
    in_its_world = type(machine.__name__, (machine,), {"world": make_world(services)})
    run_state_machine_as_test(
        in_its_world,
        settings=settings(
            max_examples=games,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
