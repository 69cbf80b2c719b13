"""A model played against the real code.

Most games are played in memory, where one takes a twentieth of the processor time; `simulation/test_table.py`
compares the table there with an engine. A few are played on an engine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support import World


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
