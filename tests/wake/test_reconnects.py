"""Clients that hang up at random moments and reconnect get every message once, in order.

Appends go on all the time, half of them in the readers' own process, half in another one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import pytest

from tests.http.asgi import Answer, make_scope
from tests.support import BYTES, JSON, TEXT, World, a_key
from tests.wake.scene import Scene
from tests.wake.support import PATIENCE_SECONDS, eventually, pumping, request
from tidemark.http.backend import many_at_once, one_at_a_time
from tidemark.settings import Settings

MESSAGES = 150
RECONNECTS = 60
SEED = 20_261_120

TYPES = {"json": JSON, "text": TEXT, "binary": BYTES}


def message(kind: str, number: int) -> bytes:
    """Messages have different lengths, and text has characters of several bytes."""
    if kind == "json":
        return json.dumps({"n": number, "fill": "x" * (number % 7)}).encode()
    if kind == "text":
        return f"{number}:{'ü🌊' * (number % 4)}\n".encode()
    return bytes([number % 256, 0, 255]) * (1 + number % 5)


@dataclass
class Client(ABC):
    """Reads on from its offset, over and over, and remembers everything it got."""

    scene: Scene
    kind: str
    chance: random.Random
    offset: str = "-1"
    cursor: str | None = None
    got: list[Any] = field(default_factory=list)
    reconnects: int = 0
    cut: int = 0

    live: ClassVar[str]

    @abstractmethod
    def take(self, answer: Answer) -> None:
        """What the connection brought, whole or cut off."""

    @property
    def target(self) -> str:
        cursor = f"&cursor={self.cursor}" if self.cursor else ""
        path = f"/v1/stream/{self.scene.key.stream_id}"
        return f"{path}?offset={self.offset}&live={self.live}{cursor}"

    async def connect_once(self) -> None:
        """Until the response is complete or, mostly, until this client hangs up."""
        self.reconnects += 1
        patience = self.chance.choice([0.0, 0.002, 0.01, 0.03, 0.2])
        async with request(self.scene.app, self.target) as exchange:
            try:
                async with asyncio.timeout(patience):
                    await exchange.until(lambda _: exchange.done)
            except TimeoutError:
                self.cut += 1
            seen = exchange.answer
            complete = exchange.done
        if complete or self.live == "sse":
            assert seen.status in {0, 200, 204}, seen
            self.take(seen)

    async def run(self, is_complete: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (self.reconnects >= RECONNECTS and is_complete()):
                await self.connect_once()


class LongPoller(Client):
    live: ClassVar[str] = "long-poll"

    def take(self, answer: Answer) -> None:
        self.offset, self.cursor = answer.next_offset, answer["stream-cursor"]
        if answer.status == 200:
            self.got.append(json.loads(answer.body) if self.kind == "json" else answer.body)


class Listener(Client):
    """As the protocol says, data after the last control event comes again."""

    live: ClassVar[str] = "sse"

    def take(self, answer: Answer) -> None:
        pending: list[Any] = []
        for event in answer.events:
            if event.type == "data":
                pending.append(self.decode(event.data))
            elif event.type == "control":
                control = json.loads(event.data)
                self.offset, self.cursor = control["streamNextOffset"], control["streamCursor"]
                self.got += pending
                pending = []

    def decode(self, data: str) -> Any:
        if self.kind == "json":
            return json.loads(data)
        return data.encode() if self.kind == "text" else base64.b64decode(data)


def received(client: Client) -> Any:
    """Everything that the client got, joined as its content type requires."""
    if client.kind == "json":
        return [each for part in client.got for each in part]
    return b"".join(client.got)


def written(kind: str) -> Any:
    messages = [message(kind, number) for number in range(MESSAGES)]
    return [json.loads(each) for each in messages] if kind == "json" else b"".join(messages)


async def write(scene: Scene, kind: str, chance: random.Random) -> None:
    """Messages one after another, in alternating processes."""
    for number in range(MESSAGES):
        body = message(kind, number)
        if chance.random() < 0.5:
            await append_here(scene, kind, body)
        else:
            await asyncio.to_thread(scene.writer.append, scene.key, body, content_type=TYPES[kind])
        await asyncio.sleep(chance.choice([0, 0, 0.01]))


async def append_here(scene: Scene, kind: str, body: bytes) -> None:
    done = asyncio.Event()
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(sent: Any) -> None:
        if sent["type"] == "http.response.start":
            statuses.append(sent["status"])
        else:
            done.set()

    headers = {"Content-Type": TYPES[kind].value}
    path = f"/v1/stream/{scene.key.stream_id}"
    await scene.app(make_scope("POST", path, headers), receive, send)
    await done.wait()
    assert statuses == [204]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("make", [many_at_once, one_at_a_time], ids=["many at once", "one at a time"])
def test_a_client_that_reconnects_gets_every_message_once_and_in_order(
    world: World, kind: str, make: Any
) -> None:
    settings = Settings(long_poll_seconds=5, sse_seconds=5)
    scene = Scene(world, make, settings=settings, key=a_key(kind), content_type=TYPES[kind])
    chance = random.Random(SEED)
    kinds: list[Callable[..., Client]] = [LongPoller, Listener, LongPoller, Listener]
    clients = [one(scene, kind, random.Random(SEED + number)) for number, one in enumerate(kinds)]

    async def scenario() -> None:
        expected = written(kind)
        runs = [client.run(partial(has_all, client, expected)) for client in clients]
        await asyncio.gather(write(scene, kind, chance), *runs)
        await eventually(lambda: scene.wake.hub.listening == 0)

    with pumping(world, scene.prefix):
        asyncio.run(scenario())
    scene.wake.close()
    for client in clients:
        assert received(client) == written(kind), f"seed {SEED}"
    total, cut = sum(each.reconnects for each in clients), sum(each.cut for each in clients)
    print(f"\n{total} connections, {cut} of them cut off")
    assert total >= 4 * RECONNECTS
    assert cut > RECONNECTS


def has_all(client: Client, expected: Any) -> bool:
    return len(received(client)) >= len(expected)
