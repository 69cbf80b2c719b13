"""WebSockets over real connections: a silent one is kept, one that does not read is cut off, and one that
breaks the protocol is closed with a code that says why."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.local import test_connections
from tests.local.test_connections import LONG, Application, begin, play, skip
from tidemark.protocol.socket import MAX_FRAME_BYTES
from tidemark.server import Receive, Scope, Send
from tidemark.server.ports import LOOPBACK

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: %b\r\n\r\n" % base64.b64encode(os.urandom(16))
)
_no_traceback = test_connections._no_traceback


@pytest.fixture(autouse=True)
def _with_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application echoes what a socket says; `flood` is answered without an end."""
    respond = Application.__call__

    async def serve(self: Application, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await respond(self, scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        self.arrived.set()
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
                while message["text"] == "flood":
                    await send({"type": "websocket.send", "text": "x" * 30_000})
                    await asyncio.sleep(0)
        except OSError:
            self.gone.set()

    monkeypatch.setattr(Application, "__call__", serve)


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{LOOPBACK}:{port}/", proxy=None) as client:
        yield client


def test_a_silent_socket_outlives_every_limit_of_a_request() -> None:
    async def scenario(port: int, _: Application) -> None:
        async with opened(port) as client:
            skip(2 * LONG)
            await client.send("still here")
            assert await client.recv() == "still here"

    play(scenario)


def test_a_client_that_does_not_read_what_it_is_told_is_cut_off() -> None:
    async def scenario(port: int, application: Application) -> None:
        _reader, writer, head = await begin(port, HANDSHAKE)
        assert head.startswith(b"HTTP/1.1 101")
        # "flood", masked with zeros (RFC 6455 §5.3).
        writer.write(b"\x81\x85\x00\x00\x00\x00flood")
        await application.gone.wait()
        writer.close()

    play(scenario, send_seconds=0.05)


def test_a_frame_that_is_too_large_closes_its_socket_and_no_other() -> None:
    async def scenario(port: int, _: Application) -> None:
        async with opened(port) as client, opened(port) as other:
            await client.send("x" * MAX_FRAME_BYTES)
            assert await client.recv() == "x" * MAX_FRAME_BYTES
            await client.send("x" * (MAX_FRAME_BYTES + 1))
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
            await other.send("here")
            assert await other.recv() == "here"

    play(scenario)


def test_a_frame_that_is_no_utf_8_closes_its_socket() -> None:
    async def scenario(port: int, _: Application) -> None:
        reader, writer, _head = await begin(port, HANDSHAKE)
        writer.write(b"\x81\x81\x00\x00\x00\x00\xff")
        assert (await reader.read())[:4] == b"\x88\x02\x03\xef", "closed with 1007 (RFC 6455 §7.4.1)"
        writer.close()

    play(scenario)


def test_a_socket_counts_as_a_connection() -> None:
    async def scenario(port: int, _: Application) -> None:
        async with opened(port):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
            writer.close()

    play(scenario, max_connections=1)


def test_at_the_end_a_socket_is_closed_with_a_code_that_says_to_come_again() -> None:
    async def ends(client: ClientConnection) -> int | None:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        return closed.value.rcvd.code if closed.value.rcvd else None

    async def scenario(port: int, _: Application) -> asyncio.Task[int | None]:
        client = await connect(f"ws://{LOOPBACK}:{port}/", proxy=None)
        return asyncio.create_task(ends(client))

    assert play(scenario, grace_seconds=LONG) == 1012
