"""A table for each module, and scenes that end with their test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import Process, World
from tests.wake.scene import Scene
from tidemark.aws.clock import CLOCK
from tidemark.http.backend import threaded_backend
from tidemark.wake import queue


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated queue is ready at once, so no test waits for the first second of a new queue. In that
    second readers poll the log; without it only a message wakes them. Two tests turn it on again."""
    monkeypatch.setattr(queue, "SETTLING_SECONDS", 0.0)


@pytest.fixture
def writer(world: World) -> Process:
    return world.process(clock=CLOCK.now_ms)


@pytest.fixture
def make_scene(world: World) -> Iterator[Callable[..., Scene]]:
    """Each with a reading process of its own, which leaves no queue when it ends."""
    scenes: list[Scene] = []

    def make(way: Any = threaded_backend, **settings: Any) -> Scene:
        scenes.append(Scene(world, way, **settings))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()
        assert list(scene.queues.all()) == []
