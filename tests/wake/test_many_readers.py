"""Five hundred readers in one process share one queue, one receiver thread and one poll of the log."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from contextlib import AsyncExitStack
from typing import Any

from tests.http.asgi import Exchange
from tests.support import World
from tests.wake.scene import CountedQueues, Scene
from tests.wake.support import eventually, request
from tidemark.http.backend import many_at_once

READERS = 500
#: The ASGI application's part; the server's own part of a connection comes on top (`test_live_function.py`).
MEMORY_PER_READER = 64 * 1024


class WatchedQueues(CountedQueues):
    """Also counts how many receives are under way at once, and the queues made."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.made = 0
        self.under_way = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def create(self, now_ms: int) -> str:
        self.made += 1
        return super().create(now_ms)

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        with self._lock:
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            return super().receive(url, wait_seconds)
        finally:
            with self._lock:
                self.under_way -= 1


def test_five_hundred_readers_of_one_process(world: World) -> None:
    """Half of them long-poll, half use SSE. An append in another process reaches every one of them."""
    scene = Scene(world, many_at_once, receive_seconds=5, make_queues=WatchedQueues)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            before = memory()
            exchanges = [await open_reader(stack, scene, number) for number in range(READERS)]
            await scene.waiting(READERS)
            per_reader = (memory() - before) / READERS
            print(f"\n{per_reader / 1024:.1f} KiB for each of {READERS} waiting readers")
            assert per_reader < MEMORY_PER_READER
            assert scene.reader.calls.taken()["PutItem"] == 1, "one registration for all"
            await append_reaches_all(scene, exchanges)
        assert scene.wake.hub.listening == 0

    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()
    queues: Any = scene.queues
    assert queues.made == 1
    assert queues.most_at_once == 1
    scene.wake.close()


async def open_reader(stack: AsyncExitStack, scene: Scene, number: int) -> Exchange:
    live = "sse" if number % 2 else "long-poll"
    return await stack.enter_async_context(request(scene.app, scene.target + live))


async def append_reaches_all(scene: Scene, exchanges: list[Exchange]) -> None:
    """With one wake message, and far fewer reads than readers."""
    await scene.append(b"to all")
    scene.reader.calls.taken()
    await asyncio.to_thread(scene.notify, 0)
    await eventually(lambda: all(b"to all" in exchange.received for exchange in exchanges))
    reads = scene.reader.calls.taken().get("Query", 0)
    print(f"{reads} reads of the log for {READERS} readers")
    assert reads <= READERS / 50


def memory() -> int:
    if not tracemalloc.is_tracing():
        tracemalloc.start()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
