"""The janitor's queue: the step for each kind of entry."""

from __future__ import annotations

from tidemark.janitor.sweep import STEPS
from tidemark.log.records import DueKind


def test_the_janitor_has_a_step_for_every_kind_of_entry() -> None:
    """A kind without a step would stop each run at its first entry."""
    assert set(STEPS) == set(DueKind)
