"""A fresh table for each module."""

from __future__ import annotations

import pytest

from tests.support import World, make_world
from tidemark.local.engines import LocalServices
from tidemark.wake import wake


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated queue is ready at once, so no test waits for the first second of a new queue. In that
    second readers poll the log; without it only a message wakes them. Two tests turn it on again."""
    monkeypatch.setattr(wake, "SETTLING_SECONDS", 0.0)


@pytest.fixture(scope="module")
def world(services: LocalServices) -> World:
    return make_world(services)
