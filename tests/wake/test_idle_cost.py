"""What a reader costs while it waits and nothing happens: calls to the table and to the queue, counted.

Almost everything runs five times as fast as it is deployed, clock included, so a minute takes twelve seconds.
A slow machine makes fewer calls in that time, never more: the numbers are upper bounds, and they are those of
`docs/live.md`, which puts prices to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.http.asgi import Exchange, make_scope
from tests.support import World
from tests.wake.scene import Scene, whole
from tests.wake.support import request
from tidemark.aws.sqs import MAX_RECEIVE_SECONDS
from tidemark.http.backend import many_at_once
from tidemark.service.stores import wall_clock_ms
from tidemark.settings import Settings

FASTER = 5
MINUTES = 2
SETTINGS = Settings(long_poll_seconds=25 / FASTER, sse_seconds=55 / FASTER)
RECEIVE_SECONDS = 20 // FASTER


BEGAN_MS = wall_clock_ms()


def fast_clock_ms() -> int:
    return BEGAN_MS + FASTER * (wall_clock_ms() - BEGAN_MS)


#: Calls in a minute. Receives count whether they bring something or not.
Bill = dict[str, float]
CALLS = ("GetItem", "Query", "PutItem", "ReceiveMessage")

#: What `docs/live.md` says. Of a hundred readers that come at once most share their looks; how many
#: do is up to chance, so here none does.
EXPECTED: dict[str, tuple[float, ...]] = {
    "long-poll, one reader": (2.4, 12, 2, 4.8),
    "SSE, one reader": (1.1, 6, 2, 4.1),
    "SSE over the HTTP API alone, one reader": (60, 240, 2, 60),
    "SSE, 100 readers of one process": (110, 224, 2, 4.1),
}

Reader = Callable[[Scene, float], Coroutine[Any, Any, None]]


def scene(world: World, make: Any) -> Scene:
    return Scene(world, make, RECEIVE_SECONDS, settings=SETTINGS, clock=fast_clock_ms)


def unhurried(world: World) -> Scene:
    return Scene(world, many_at_once, MAX_RECEIVE_SECONDS, settings=Settings(), clock=wall_clock_ms)


async def long_poller(scene: Scene, until: float) -> None:
    while time.monotonic() < until:
        async with request(scene.app, scene.target + "long-poll") as exchange:
            assert (await whole(exchange)).status == 204


async def listener(scene: Scene, until: float) -> None:
    while time.monotonic() < until:
        async with request(scene.app, scene.target + "sse") as exchange:
            await whole(exchange)


async def listener_at_the_api(scene: Scene, until: float) -> None:
    """At the HTTP API, which passes a response on only once it is complete: each takes a second."""
    api = {"aws.event": {"rawPath": scene.path, "requestContext": {"domainName": "api.example"}}}
    while time.monotonic() < until:
        exchange = Exchange([b""])
        await scene.app(make_scope("GET", scene.target + "sse", {}) | api, exchange.receive, exchange.send)
        assert exchange.status == 200


async def counted(scene: Scene, reader: Reader, readers: int = 1, faster: int = FASTER) -> Bill:
    """A minute's calls, averaged over some minutes, once the queue is past its first second."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(request(scene.app, scene.target + "sse"))
        await scene.waiting()
    scene.reader.calls.taken()
    scene.queues.begun = 0
    began = time.monotonic()
    until = began + MINUTES * 60 / FASTER
    await asyncio.gather(*(reader(scene, until) for _ in range(readers)))
    minutes = (time.monotonic() - began) * faster / 60
    calls = scene.reader.calls.taken() | {"ReceiveMessage": scene.queues.begun}
    await asyncio.to_thread(scene.close)
    return {kind: calls.get(kind, 0) / minutes for kind in CALLS}


@pytest.fixture(scope="module")
def bills(world: World) -> dict[str, Bill]:
    """All are counted at once, because they mostly wait."""

    async def count() -> dict[str, Bill]:
        counts = [
            counted(scene(world, many_at_once), long_poller),
            counted(scene(world, many_at_once), listener),
            # A receive takes a second at least, so these cannot be faster.
            counted(unhurried(world), listener_at_the_api, faster=1),
            counted(scene(world, many_at_once), listener, 100),
        ]
        return dict(zip(EXPECTED, await asyncio.gather(*counts), strict=True))

    return asyncio.run(count())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_waiting_minute_costs_no_more_than_the_documents_say(bills: dict[str, Bill], name: str) -> None:
    print(f"\n{name}: {bills[name]}")
    for call, expected in zip(CALLS, EXPECTED[name], strict=True):
        assert bills[name][call] <= expected * 1.15 + 0.6, call
