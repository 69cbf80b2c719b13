"""No request holds the event loop: the CPU time of each callback, for the largest bodies of each kind."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from unittest.mock import Mock

import pytest

from tests.answers import Answer
from tests.http.asgi import Door, Exchange
from tidemark.cold_start import spare_what_is_loaded
from tidemark.engine import database, turns
from tidemark.server.system import EmbeddedSystem
from tidemark.service import group_commit
from tidemark.settings import Settings

pytestmark = pytest.mark.slow

MEGABYTES_4 = 4 * 1024 * 1024
#: What blocks the event loop does so every time. What else runs on the machine's cores makes a callback slow
#: now and then: so many times in a row only where there is a reason.
_ROUNDS = 10
JSON, TEXT, BYTES = ({"Content-Type": f"{kind}"} for kind in ("application/json", "text/plain", "image/png"))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A server's, with the embedded engine in memory, for which a request waits as long as it takes."""
    settings = Settings(long_poll_seconds=0, sse_seconds=5)
    system = EmbeddedSystem(settings, None, tmp_path_factory.mktemp("lag"))

    async def begin() -> None:
        stack.enter_context(system.database.serving())

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack, asyncio.Runner() as runner:
        patch.setattr(turns, "PATIENCE_SECONDS", 600.0)
        patch.setattr(database, "SLOW_SECONDS", 600.0)
        patch.setattr(group_commit, "TURN_SECONDS", 600.0)
        runner.run(begin())
        door = Door(Mock(), lambda *_: system.backend, runner, settings)
        yield door
        door.close()


def limit_seconds() -> float:
    """What a callback may take: some 20 ms of CPU time. It is measured beside the callback, as a multiple of
    some fixed work, because CPU time depends on the machine and on what else runs on its cores."""
    numbers, passes = bytes(range(256)) * 64, []
    for _ in range(5):
        began = time.thread_time()
        assert sum(numbers[each] for each in range(len(numbers))) == 64 * 32_640
        passes.append(time.thread_time() - began)
    return 36 * median(passes)


@contextmanager
def longest_callback() -> Iterator[list[tuple[float, str]]]:
    """The CPU seconds of the callbacks that took longest, and what they were, longest first. Garbage is
    collected as in a server, not as in a process that holds thousands of tests."""
    thresholds = gc.get_threshold()
    spare_what_is_loaded()
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
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        callbacks.sort(reverse=True)


def filled(unit: bytes, size: int = MEGABYTES_4) -> bytes:
    return unit * (size // len(unit))


#: Nested messages take seconds of CPU time for each megabyte, so that one of them shows what four would.
BODIES = {
    "250,000 messages": (JSON, b"[" + b",".join([b'{"a":1}'] * 250_000) + b"]"),
    "nested messages": (
        JSON,
        b"[[" + filled(b"[[[[]]]],", MEGABYTES_4 // 4)[:-64].rpartition(b",")[0] + b"]]",
    ),
    "deeply nested messages": (JSON, b"[" + b",".join([b"[" * 499 + b"]" * 499] * 1_000) + b"]"),
    "escapes": (JSON, b'["' + filled(b"\\n")[:-64] + b'"]'),
    "newlines": (TEXT, filled(b"\n")),
    "lines": (TEXT, filled(b"a line of a log, as they are\r\n")),
    "bytes": (BYTES, filled(bytes(range(256)))),
}


class Lag:
    """Requests whose longest callback is kept, where it is over the limit."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.slow: dict[str, tuple[float, str]] = {}

    def __call__(
        self, what: str, method: str, target: str, headers: dict[str, str], content: bytes = b""
    ) -> Answer:
        async def ask() -> Exchange:
            """What the client does with the answer is no callback of the server's."""
            async with self.door.open(method, target, headers, content) as exchange:
                await exchange.until_done()
            return exchange

        with longest_callback() as callbacks:
            answer = self.door.run(ask()).answer
        assert answer.status < 400, answer
        self.judge(what, callbacks)
        return answer

    def judge(self, what: str, callbacks: list[tuple[float, str]]) -> None:
        if callbacks[0][0] > limit_seconds():
            self.slow[what] = callbacks[0]


def check_lag(door: Door, ask: Callable[[Lag], object]) -> None:
    """Asserts that no request of `ask` has a callback over the limit in each of the rounds."""
    slow: dict[str, tuple[float, str]] | None = None
    for _ in range(_ROUNDS):
        lag = Lag(door)
        ask(lag)
        slow = {what: lag.slow[what] for what in (lag.slow if slow is None else slow) if what in lag.slow}
        if not slow:
            return
    assert not slow


@pytest.mark.parametrize(("headers", "body"), BODIES.values(), ids=BODIES.keys())
def test_no_callback_blocks_the_event_loop(door: Door, headers: dict[str, str], body: bytes) -> None:
    """Created with, appended, read, and read as events: the largest bodies that are accepted."""

    def ask(lag: Lag) -> None:
        name = f"/v1/stream/lag/{time.monotonic_ns()}"
        door.put(name + "/small", headers)
        lag("create", "PUT", name, headers, body)
        lag("append", "POST", name + "/small", headers, body)
        lag("read", "GET", name + "?offset=-1", headers)
        lag("events", "GET", name + "?offset=-1&live=sse", headers)

    check_lag(door, ask)


@pytest.fixture
def bucket(door: Door) -> str:
    name = f"/lag-{time.monotonic_ns()}"
    assert door.put(name).status == 201
    return name


@pytest.mark.parametrize("kind", ["250,000 messages", "deeply nested messages", "lines", "bytes"])
def test_no_snapshot_and_no_bootstrap_blocks_the_event_loop(door: Door, bucket: str, kind: str) -> None:
    """Of a stream with the largest body, before a snapshot is there and after one of the largest size."""
    headers, body = BODIES[kind]

    def ask(lag: Lag) -> None:
        stream = f"{bucket}/{time.monotonic_ns()}"
        tail = lag("create", "PUT", stream, headers, body).next_offset
        lag("bootstrap of updates", "GET", f"{stream}/bootstrap", {})
        lag("publish", "PUT", f"{stream}/snapshot/{tail}", BYTES, filled(bytes(range(256))))
        assert len(lag("read the snapshot", "GET", f"{stream}/snapshot/{tail}", {}).body) == MEGABYTES_4
        lag("bootstrap of a snapshot", "GET", f"{stream}/bootstrap", {})

    check_lag(door, ask)


def test_no_listing_blocks_the_event_loop(door: Door, bucket: str) -> None:
    """A page of the most streams, whose names are as long as they may be."""
    for number in range(1000):
        assert door.put(f"{bucket}/{number:04d}{'%C3%A9' * 40}", TEXT).status == 201

    def ask(lag: Lag) -> None:
        assert lag("list", "GET", f"{bucket}/streams?limit=1000", {}).json["stream_count"] == 1000

    check_lag(door, ask)


@pytest.mark.parametrize("count", [2, 5])
def test_no_group_of_small_bodies_blocks_the_event_loop(door: Door, count: int) -> None:
    """Appends that wait together are parsed one after another: each is small enough to be parsed on the
    spot, and is what takes longest for its size."""
    path = f"/v1/stream/lag/{time.monotonic_ns()}"
    door.put(path, JSON)
    body = b"[" + b",".join([b'{"a":' * 499 + b"1" + b"}" * 499] * count) + b"]"
    assert len(body) <= 16 * 1024

    async def crowd() -> list[Answer]:
        return await asyncio.gather(*(door.ask("POST", path, JSON, body) for _ in range(64)))

    def ask(lag: Lag) -> None:
        with longest_callback() as callbacks:
            assert {answer.status for answer in door.run(crowd())} == {204}
        lag.judge("crowd", callbacks)

    check_lag(door, ask)
