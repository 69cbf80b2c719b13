"""Sockets of a process beside others, as the container: appends of the others wake them by the trigger."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.http.test_socket import OpenSocket, handshake, tail
from tests.waiting import on_a_loop
from tests.wake.scene import WAITS_LONG, MakeScene, Scene, SilentQueues
from tidemark.http.backend import threaded_backend
from tidemark.http.socket_session import Sockets
from tidemark.protocol.socket import PATH

SETTINGS = replace(WAITS_LONG, socket_url=PATH)


@asynccontextmanager
async def watching(scene: Scene) -> AsyncIterator[OpenSocket]:
    async with handshake(Sockets(scene.app, scene.backend)) as client:
        await client.next()
        assert await client.watch(scene.path) == [tail(scene.path, 0, seconds=3600)]
        await scene.waiting()
        yield client
    assert scene.wake.hub.following == 0
    assert not scene.wake.hub._waiting


@on_a_loop
async def test_an_append_of_another_process_wakes_a_socket_by_the_trigger(make_scene: MakeScene) -> None:
    scene = make_scene(threaded_backend, receive_seconds=20, settings=SETTINGS)
    async with watching(scene) as client:
        assert scene.reader.calls.taken() == {"GetItem": 1, "PutItem": 1, "Query": 1}
        await scene.append(b"news")
        await scene.tell(0)
        assert await client.told() == [tail(scene.path, 4)]
        assert scene.reader.calls.taken() == {"Query": 1}


@on_a_loop
async def test_without_a_trigger_a_socket_is_told_after_one_receive(make_scene: MakeScene) -> None:
    """Whatever has happened to the wake message: after a receive that ends empty, the tail is looked at."""
    scene = make_scene(threaded_backend, settings=SETTINGS)
    async with watching(scene) as client:
        await scene.append(b"news")
        assert await client.told() == [tail(scene.path, 4)]


@on_a_loop
async def test_while_a_socket_watches_nothing_no_receive_is_made(make_scene: MakeScene) -> None:
    scene = make_scene(threaded_backend, settings=SETTINGS)
    async with watching(scene) as client:
        await client.say(unwatch=[scene.path])
        assert await client.told() == []
        assert not scene.wake.hub._waiting


@on_a_loop
async def test_where_no_receive_ends_a_socket_looks_by_itself(make_scene: MakeScene) -> None:
    scene = make_scene(threaded_backend, settings=SETTINGS, make_queues=SilentQueues, receive_seconds=-3)
    async with watching(scene) as client:
        for offset in (4, 8):
            await scene.append(b"news")
            assert await client.told() == [tail(scene.path, offset)]
