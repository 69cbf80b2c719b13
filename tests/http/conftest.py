"""The application over real engines, in both ways it runs. A fresh table for each module."""

import asyncio
import itertools
import math
import uuid
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.http.asgi import HOST, Door
from tests.support import Clock, World
from tidemark.http.backend import lambda_backend, threaded_backend
from tidemark.log.read import read_page
from tidemark.service.read import SMALL
from tidemark.settings import Settings
from tidemark.wake.queue import WakeByQueue

_serial = itertools.count(1)


@pytest.fixture(
    scope="module", params=[threaded_backend, lambda_backend], ids=["many at once", "one at a time"]
)
def door(request: pytest.FixtureRequest, world: World) -> Iterator[Door]:
    """Its clock stands still until a test moves it. It does not wait unless it is told to."""
    settings = Settings(world.table_name, world.bucket_name, long_poll_seconds=0, sse_seconds=0)
    with asyncio.Runner() as runner:
        door = Door(world.process(), request.param, runner, settings)
        yield door
        door.close()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Door]:
    """The way that wakes its own readers: for whatever waits. It waits as long as it takes."""
    settings = Settings(world.table_name, world.bucket_name, long_poll_seconds=600, sse_seconds=600)
    with asyncio.Runner() as runner:
        door = Door(world.process(), threaded_backend, runner, settings)
        yield door
        door.close()


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits does not poll the log by itself: only an append in its own process wakes it."""
    monkeypatch.setattr(WakeByQueue, "ensure_registered", lambda *_: math.inf)


@pytest.fixture
def clock(world: World) -> Clock:
    return world.clock


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page ends at the first batch end behind ten bytes."""
    monkeypatch.setattr("tidemark.service.read.read_page", partial(read_page, limit_bytes=10))
    monkeypatch.setitem(SMALL, "limit_bytes", 10)
    monkeypatch.setattr("tidemark.wake.follow.SMALL_PAGE_BYTES", 10)


@pytest.fixture
def path() -> str:
    """A stream that nobody else uses."""
    return f"/v1/stream/test/{next(_serial)}"


@pytest.fixture
def make_bucket(door: Door) -> Callable[..., str]:
    """Create a bucket and return its path."""

    def make(**headers: str) -> str:
        bucket = f"/b-{uuid.uuid4().hex[:10]}"
        answer = door.put(bucket, {name.replace("_", "-"): value for name, value in headers.items()})
        assert (answer.status, answer["location"]) == (201, f"http://{HOST}{bucket}")
        return bucket

    return make


@pytest.fixture
def make_stream(door: Door, path: str) -> Callable[..., str]:
    """Create the test's stream and return its path."""

    def make(content_type: str = "text/plain", body: bytes = b"", **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = door.put(path, {"Content-Type": content_type, **named}, body)
        assert answer.status == 201, answer
        return path

    return make
