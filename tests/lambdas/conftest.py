"""The functions on a fresh table, and the application as a server runs it on the same table."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.http.asgi import Door
from tests.http.conftest import path  # noqa: F401 - a fixture
from tests.lambdas.functions import Functions
from tests.support import World
from tidemark.aws.clock import CLOCK
from tidemark.http.backend import threaded_backend
from tidemark.settings import Settings


@pytest.fixture(scope="module")
def functions(world: World) -> Iterator[Functions]:
    """They do not wait: a live read returns what is there."""
    environment = world.variables | {"LONG_POLL_SECONDS": "0", "SSE_BUFFERED_SECONDS": "0"}
    running = Functions()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        running.start()
        yield running
        running.stop()


@pytest.fixture(scope="module")
def door(world: World) -> Iterator[Door]:
    """The server's application, over the same table."""
    settings = Settings(world.table_name, world.bucket_name, long_poll_seconds=0, sse_seconds=0)
    with asyncio.Runner() as runner:
        door = Door(world.process(clock=CLOCK.now_ms), threaded_backend, runner, settings)
        yield door
        door.close()
