"""WebSockets over real connections: a silent one is kept, one that does not read is cut off, and one that
breaks the protocol is closed with a code that says why."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.server import test_connections
from tests.server.test_connections import GET, LONG, Application, ask, assert_no_backstop, begin, play, skip
from tidemark.protocol.socket import MAX_FRAME_BYTES
from tidemark.server import Receive, Scope, Send
from tidemark.server.http_server import SocketConnection
from tidemark.server.ports import LOOPBACK

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: t\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: %b\r\n\r\n" % base64.b64encode(os.urandom(16))
)
#: Frames masked with zeros (RFC 6455 §5.3).
FLOOD, NO_UTF_8 = b"\x81\x85\x00\x00\x00\x00flood", b"\x81\x81\x00\x00\x00\x00\xff"
BEGUN, GOES_ON, PING = (bytes((kind, 0x80, 0, 0, 0, 0)) for kind in (0x01, 0x00, 0x89))
_no_traceback = test_connections._no_traceback


@pytest.fixture(autouse=True)
def _with_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application echoes what a socket says; `flood` is answered without an end, `stuck` never."""
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
                if message["text"] == "stuck":
                    self.arrived.clear()
                    await self.released.wait()
                await send({"type": "websocket.send", "text": message["text"]})
                while message["text"] == "flood":
                    await send({"type": "websocket.send", "text": "x" * 30_000})
                    await asyncio.sleep(0)
        finally:
            self.gone.set()

    monkeypatch.setattr(Application, "__call__", serve)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Transport]:
    """The transports whose clients have left much unread."""
    transports: list[asyncio.Transport] = []
    pause = SocketConnection.pause_writing

    def pause_writing(self: SocketConnection) -> None:
        transports.append(self.transport)
        pause(self)

    monkeypatch.setattr(SocketConnection, "pause_writing", pause_writing)
    return transports


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{LOOPBACK}:{port}/", proxy=None) as client:
        yield client


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"cookie: %b\r\n" % (b"x" * 9000), 431),
        (b"a: b\r\n" * 200, 431),
        (b"content-length: 4\r\n", 400),
        (b"transfer-encoding: chunked\r\n", 400),
        (b"sec-websocket-key: another\r\n", 400),
        (b"sec-websocket-version: 12\r\n", 400),
    ],
)
def test_a_handshake_that_cannot_be_read_gets_an_answer(more: bytes, status: int) -> None:
    """Or it would hold its connection for ever."""

    async def scenario(port: int, _: Application) -> None:
        answer = await ask(port, HANDSHAKE.removesuffix(b"\r\n") + more + b"\r\n")
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"content-type: application/json" in head.lower()
        assert json.loads(body)["error"].startswith("Failed to open a WebSocket connection: ")

    play(scenario)


def test_a_handshake_that_is_too_early_or_of_http_1_0_is_a_plain_request() -> None:
    """RFC 9110 §7.8. What a socket says must not be mixed with the response to an earlier request."""

    async def scenario(port: int, application: Application) -> None:
        answer = await ask(port, HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert answer.startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GET.replace(b"/", b"/slow", 1) + HANDSHAKE)
        application.arrived.clear()
        await application.arrived.wait()
        application.released.set()
        for _ in range(2):
            assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    play(scenario)


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
        writer.write(FLOOD)
        await application.gone.wait()
        writer.close()

    play(scenario, send_seconds=0.05)


def test_a_client_that_leaves_the_answers_to_its_pings_unread_makes_nobody_hold_them(
    paused: list[asyncio.Transport], monkeypatch: pytest.MonkeyPatch
) -> None:
    handled, handle = 0, SocketConnection.handle_ping

    def handle_ping(self: SocketConnection) -> None:
        nonlocal handled
        handled += 1
        handle(self)

    monkeypatch.setattr(SocketConnection, "handle_ping", handle_ping)

    async def scenario(port: int, _: Application) -> None:
        _reader, writer, _head = await begin(port, HANDSHAKE)
        large = b"\x89\xfd" + bytes(4 + 125)
        while not paused:
            writer.write(large * 100)
            await writer.drain()
        enough, held = handled + 10_000, paused[0].get_write_buffer_size()
        while handled < enough:
            writer.write(large * 100)
            await writer.drain()
        assert paused[0].get_write_buffer_size() < held + 100_000
        writer.close()

    play(scenario)


@pytest.mark.parametrize(
    ("sent", "code"),
    [(BEGUN + GOES_ON * 1000, 1009), (NO_UTF_8, 1007)],
    ids=["a message in countless pieces", "no UTF-8"],
)
def test_what_cannot_be_a_message_closes_its_socket(sent: bytes, code: int) -> None:
    """RFC 6455 §7.4.1."""

    async def scenario(port: int, _: Application) -> None:
        reader, writer, _head = await begin(port, HANDSHAKE)
        writer.write(sent)
        assert (await reader.read())[:4] == b"\x88\x02" + code.to_bytes(2, "big")
        writer.close()

    play(scenario)


def test_a_socket_with_many_small_frames_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All frames of one read are parsed at once, so a read is small."""
    sizes: list[int] = []
    received = SocketConnection.data_received

    def data_received(self: SocketConnection, data: bytes) -> None:
        sizes.append(len(data))
        received(self, data)

    monkeypatch.setattr(SocketConnection, "data_received", data_received)

    async def scenario(port: int, _: Application) -> None:
        reader, writer, _head = await begin(port, HANDSHAKE)
        writer.write(PING * 100_000)
        await reader.readexactly(len(b"\x8a\x00") * 100_000)
        writer.close()

    play(scenario)
    assert max(sizes) < 100_000


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


def test_what_is_told_to_a_socket_that_is_closed_for_its_frame_is_lost_without_a_traceback() -> None:
    async def scenario(port: int, application: Application) -> None:
        reader, writer, _head = await begin(port, HANDSHAKE)
        writer.write(FLOOD)
        await reader.readexactly(100_000)
        writer.write(NO_UTF_8)
        while await reader.read(100_000):
            pass
        await application.gone.wait()
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


def test_the_server_ends_without_waiting_for_a_socket_whose_client_does_not_read(
    paused: list[asyncio.Transport], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(port: int, application: Application) -> asyncio.Task[None]:
        _reader, writer, _head = await begin(port, HANDSHAKE)
        writer.write(FLOOD)
        while not paused:  # noqa: ASYNC110 - a transport sets no event
            await asyncio.sleep(0.01)
        return asyncio.create_task(is_cut_off(application, writer))

    async def is_cut_off(application: Application, writer: asyncio.StreamWriter) -> None:
        await application.gone.wait()
        writer.close()

    play(scenario)
    assert_no_backstop(caplog)


def test_the_server_ends_while_a_socket_waits_for_something(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(port: int, application: Application) -> asyncio.Task[None]:
        client = await connect(f"ws://{LOOPBACK}:{port}/", proxy=None)
        await client.send("stuck")
        while application.arrived.is_set():  # noqa: ASYNC110 - it is cleared, not set
            await asyncio.sleep(0.01)
        return asyncio.create_task(client.wait_closed())

    play(scenario)
    assert_no_backstop(caplog)
