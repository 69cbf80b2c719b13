"""No request holds the event loop: the CPU time of each callback, for the largest bodies of each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.http.asgi import Door
from tests.support import make_world
from tidemark.http.backend import Backend, many_at_once
from tidemark.local.engines import LocalServices
from tidemark.local.on_loop.stores import OnLoop
from tidemark.service.stores import Stores
from tidemark.settings import Settings

#: A callback's own CPU time, so that a busy machine does not make the test fail.
LIMIT_SECONDS = 0.02
MEGABYTES_4 = 4 * 1024 * 1024
JSON, TEXT, BYTES = ({"Content-Type": f"{kind}"} for kind in ("application/json", "text/plain", "image/png"))


@pytest.fixture(scope="module")
def door(services: LocalServices) -> Iterator[Door]:
    world = make_world(services)
    settings = Settings(world.table_name, world.bucket_name, long_poll_seconds=0, sse_seconds=5)

    def make(stores: Stores, settings: Settings) -> Backend:
        return many_at_once(stores, settings, on_loop=partial(OnLoop, stores, settings))

    with asyncio.Runner() as runner:
        door = Door(world.process(), make, runner, settings)
        yield door
        door.close()


@contextmanager
def longest_callback() -> Iterator[list[tuple[float, str]]]:
    """The CPU seconds of the callbacks that took longest, and what they were, longest first."""
    callbacks: list[tuple[float, str]] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        callbacks.append((time.thread_time() - began, repr(handle)))

    asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
    try:
        yield callbacks
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        callbacks.sort(reverse=True)


def filled(unit: bytes) -> bytes:
    return unit * (MEGABYTES_4 // len(unit))


BODIES = {
    "250,000 messages": (JSON, b"[" + b",".join([b'{"a":1}'] * 250_000) + b"]"),
    # The local S3 engine takes seconds for a larger body of brackets.
    "nested messages": (JSON, b"[[" + b"[[[[]]]]," * 60_000 + b"0]]"),
    "escapes": (JSON, b'["' + filled(b"\\n")[:-64] + b'"]'),
    "newlines": (TEXT, filled(b"\n")),
    "lines": (TEXT, filled(b"a line of a log, as they are\r\n")),
    "bytes": (BYTES, filled(bytes(range(256)))),
}


@pytest.mark.parametrize(("headers", "body"), BODIES.values(), ids=BODIES.keys())
def test_no_callback_holds_the_loop(door: Door, headers: dict[str, str], body: bytes) -> None:
    """Created with, appended, read, and read as events: the largest bodies that are accepted."""
    name = f"/v1/stream/lag/{time.monotonic_ns()}"
    slow: dict[str, tuple[float, str]] = {}

    def measured(what: str, method: str, target: str, content: bytes = b"") -> None:
        with longest_callback() as callbacks:
            assert door(method, target, headers, content).status < 300
        if callbacks[0][0] > LIMIT_SECONDS:
            slow[what] = callbacks[0]

    door.put(name + "/small", headers)
    measured("create", "PUT", name, body)
    measured("append", "POST", name + "/small", body)
    measured("read", "GET", name + "?offset=-1")
    measured("events", "GET", name + "?offset=-1&live=sse")
    assert not slow
