"""Clients that hang up at random moments and reconnect get every message once, in order.

Appends go on all the time, half of them in the readers' own process, half in another one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.http.asgi import Answer
from tests.support import BYTES, JSON, TEXT
from tests.wake.scene import Scene, whole
from tests.wake.support import PATIENCE_SECONDS, on_a_loop, pumping, request
from tidemark.protocol.messages import ContentType
from tidemark.settings import Settings

MESSAGES = 100
RECONNECTS = 60
SEED = 20_261_120


def message(content_type: ContentType, number: int) -> bytes:
    """Messages have different lengths, and text has characters of several bytes."""
    if content_type is JSON:
        return json.dumps({"n": number, "fill": "x" * (number % 7)}).encode()
    if content_type is TEXT:
        return f"{number}:{'ü🌊' * (number % 4)}\n".encode()
    return bytes([number % 256, 0, 255]) * (1 + number % 5)


class Client:
    """Reads on from its offset, over and over, and remembers everything it got: stored bytes, or messages."""

    def __init__(self, scene: Scene, live: str, chance: random.Random) -> None:
        self.scene, self.live, self.chance = scene, live, chance
        self.is_json = scene.content_type is JSON
        self.place = "offset=-1"
        self.got: list[Any] = []
        self.reconnects = self.cut = 0

    async def run(self, expected: list[Any]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.reconnects < RECONNECTS or len(self.got) < len(expected):
                await self.connect_once()

    async def connect_once(self) -> None:
        """Until the response is complete or, mostly, until this client hangs up."""
        self.reconnects += 1
        patience = self.chance.choice([0.0, 0.002, 0.01, 0.03, 0.2])
        target = f"{self.scene.path}?{self.place}&live={self.live}"
        async with request(self.scene.app, target) as exchange:
            try:
                async with asyncio.timeout(patience):
                    await whole(exchange)
            except TimeoutError:
                self.cut += 1
            seen, is_whole = exchange.answer, exchange.done
        assert seen.status in {0, 200, 204}, seen
        if self.live == "sse":
            self.take_events(seen)
        elif is_whole:
            self.place = f"offset={seen.next_offset}&cursor={seen['stream-cursor']}"
            self.got += (json.loads(seen.body) if self.is_json else seen.body) if seen.status == 200 else []

    def take_events(self, answer: Answer) -> None:
        """As the protocol says, data after the last control event comes again."""
        pending: list[Any] = []
        for event in answer.events:
            if event.type == "data":
                pending += self.decode(event.data)
            elif event.type == "control":
                control = json.loads(event.data)
                self.place = f"offset={control['streamNextOffset']}&cursor={control['streamCursor']}"
                self.got += pending
                pending = []

    def decode(self, data: str) -> Any:
        if self.is_json:
            return json.loads(data)
        return data.encode() if self.scene.content_type is TEXT else base64.b64decode(data)


async def write(scene: Scene, chance: random.Random) -> None:
    """Messages one after another, in alternating processes."""
    for number in range(MESSAGES):
        body = message(scene.content_type, number)
        if chance.random() < 0.5:
            content_type = scene.content_type.value
            async with request(scene.app, scene.path, "POST", body, content_type) as exchange:
                assert (await whole(exchange)).status == 204
        else:
            await scene.append(body)
        await asyncio.sleep(chance.choice([0, 0, 0.01]))


@pytest.mark.parametrize("content_type", [JSON, TEXT, BYTES], ids=lambda each: each.value)
@on_a_loop
async def test_a_client_that_reconnects_gets_every_message_once_and_in_order(
    make_scene: Callable[..., Scene], content_type: ContentType
) -> None:
    scene = make_scene(
        settings=Settings(long_poll_seconds=5, sse_seconds=5), content_type=content_type, receive_seconds=1
    )
    written = [message(content_type, number) for number in range(MESSAGES)]
    expected = [json.loads(each) for each in written] if content_type is JSON else list(b"".join(written))
    kinds = enumerate(["long-poll", "sse"] * 2)
    clients = [Client(scene, live, random.Random(SEED + number)) for number, live in kinds]
    with pumping(scene.world, scene.prefix):
        await asyncio.gather(write(scene, random.Random(SEED)), *(client.run(expected) for client in clients))
    assert scene.wake.hub.listening == 0
    for client in clients:
        assert client.got == expected, f"seed {SEED}"
    assert sum(client.cut for client in clients) > RECONNECTS
