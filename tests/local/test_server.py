"""The server's end: a request that is nearly done finishes, one that waits is ended in order, nothing is
logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.local.polling import DEADLINE_SECONDS
from tidemark.server import Message, Receive, Scope, Send
from tidemark.server import http_server as server
from tidemark.server.http_server import HEALTH_PATH, NotHealthy, serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

LONG = 3600.0


class Application:
    """`/slow` answers once it is released, `/stream` sends one chunk and then nothing."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()
        self.health = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        path = scope["path"]
        if path == HEALTH_PATH:
            await _answer(send, self.health, b"")
            return
        if path == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"tide", "more_body": True})
        self.arrived.set()
        await self.released.wait()
        await _answer(send, 200, b"done")


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Callable[[Message], Awaitable[None]], status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _ask(port: int, path: str) -> tuple[int, bytes]:
    """Status and everything that came until the server closed the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer.split(b"\r\n\r\n", 1)[1]


async def _scenario(path: str, at_the_end: Callable[[Application], None]) -> tuple[int, bytes]:
    """Sends a request, ends the server once the request has arrived, and returns the response."""
    application, stopping, ready = Application(), asyncio.Event(), asyncio.Event()
    with listening_socket(LOOPBACK, 0) as listener:
        port = port_of(listener)
        serving = asyncio.create_task(serve(application, listener, ready.set, stopping))
        await ready.wait()
        asking = asyncio.create_task(_ask(port, path))
        await application.arrived.wait()
        stopping.set()
        await _until_refused(port)
        at_the_end(application)
        await serving
        return await asking


async def _until_refused(port: int) -> None:
    """Until the server, which has begun to end, takes no new connection."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, DEADLINE_SECONDS))


@pytest.fixture(autouse=True)
def _quiet(capfd: pytest.CaptureFixture[str]) -> Any:
    yield
    assert capfd.readouterr() == ("", "")


def test_a_request_in_flight_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that is under way at that moment is still acknowledged."""
    monkeypatch.setattr(server, "GRACE_SECONDS", LONG)
    monkeypatch.setattr(server, "BACKSTOP_SECONDS", LONG)
    assert run(_scenario("/slow", lambda application: application.released.set())) == (200, b"done")


def test_a_request_that_still_waits_gets_503() -> None:
    assert run(_scenario("/slow", lambda application: None)) == (503, b"")


def test_a_streaming_response_ends_with_its_last_chunk() -> None:
    """So the client knows that it is complete."""
    assert run(_scenario("/stream", lambda application: None)) == (200, b"4\r\ntide\r\n0\r\n\r\n")


def test_a_server_that_is_not_healthy_does_not_become_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READY_SECONDS", 0.2)
    called: list[bool] = []

    async def scenario() -> None:
        application = Application()
        application.health = 503
        with listening_socket(LOOPBACK, 0) as listener:
            await serve(application, listener, lambda: called.append(True), asyncio.Event())

    with pytest.raises(NotHealthy, match="responds with 503"):
        run(scenario())
    assert called == []
