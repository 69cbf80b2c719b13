"""Frames of sockets with anything in them, to a server's session and to the function behind API Gateway."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from tests.fuzz.published import NAMES
from tests.fuzz.subject import Subject, play
from tests.http.test_socket import OpenSocket, handshake
from tests.support import create_request
from tidemark.http import socket_session
from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.http.socket import create_socket_handler
from tidemark.http.socket_session import Sockets
from tidemark.protocol.socket import PATH
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.create import create
from tidemark.settings import Settings

ANYTHING: Final = st.text(max_size=40)
PATHS: Final = (
    st.sampled_from([f"/v1/stream/{name}" for name in NAMES])
    | st.sampled_from(
        ["/v1/stream/a?b", "/v1/streams/a", "/agents/a", "/agents/streams", "//", "/v1/stream/%"]
    )
    | ANYTHING
    | ANYTHING.map(lambda text: f"/v1/stream/{text}")
)
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANYTHING, inner, max_size=4),
    max_leaves=10,
)
WANTED: Final = st.fixed_dictionaries(
    {},
    optional={
        "watch": st.lists(PATHS, max_size=8) | VALUES,
        "unwatch": st.lists(PATHS, max_size=8) | VALUES,
        "token": st.none() | ANYTHING | VALUES,
        "action": VALUES,
    },
)
FRAMES: Final = (
    WANTED.map(json.dumps) | VALUES.map(json.dumps) | st.text(max_size=200) | st.binary(max_size=50)
)

Ask = Callable[[str | bytes], Awaitable[list[dict[str, Any]]]]


def check(messages: list[dict[str, Any]], outcomes: Counter[int]) -> None:
    """Every message is one that the reference has."""
    for message in messages:
        outcomes[message.get("status", 200)] += 1
        if "status" in message:
            assert 400 <= message["status"] < 500, message
            assert message["error"], message
        else:
            assert isinstance(message["stream"], str)
            assert re.fullmatch(r"\d{16}", message["offset"])


async def ask_session(client: OpenSocket, frame: str | bytes) -> list[dict[str, Any]]:
    """All that is told before the answer to what was sent behind it."""
    kind = "bytes" if isinstance(frame, bytes) else "text"
    await client.received.put({"type": "websocket.receive", kind: frame})
    await client.say(watch=["behind it"])
    told: list[dict[str, Any]] = []
    while not told or told[-1].get("stream") != "behind it":
        told += await client.told()
    return told[:-1]


def event_of(frame: str | bytes) -> dict[str, Any]:
    context = {"connectionId": "L0SM9cOFvHcCIhw=", "requestTimeEpoch": 1_800_000_000_000}
    return {"requestContext": context, "body": frame if isinstance(frame, str) else frame.hex()}


def fuzz(subject: Subject, own: Settings, count: int, first_seed: int) -> Counter[int]:
    """What was told, by status; 200 is a tail."""
    outcomes: Counter[int] = Counter()
    own = replace(own, socket_url=PATH)
    for name in ("a", "b/c"):
        create(subject.stores, StreamKey(PLAIN_BUCKET, name), create_request())

    async def answer(frames: list[str | bytes]) -> None:
        backend = threaded_backend(subject.stores, own)
        async with handshake(Sockets(create_app(backend), backend)) as client:
            await client.next()
            for frame in frames:
                check(await ask_session(client, frame), outcomes)
        await backend.close()

    def answer_events(frames: list[str | bytes]) -> None:
        for frame in frames:
            told = json.loads(handler(event_of(frame), None)["body"])
            check(told if isinstance(told, list) else [told], outcomes)

    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        loop, handler = runner.get_loop(), create_socket_handler(own)
        patch.setattr(socket_session, "MESSAGES_PER_SECOND", 1e9)

        def run(frames: list[str | bytes]) -> None:
            answer_events(frames)
            loop.run_until_complete(answer(frames))

        play(run, max(1, count // 20), first_seed, st.lists(FRAMES, min_size=10, max_size=10))
    return outcomes
