"""The proxy passes on what nothing happens to byte for byte, and does what each fault says to the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.chaos import proxy as proxy_module
from tests.chaos.client import Client, NoAnswer
from tests.chaos.exchange import read_request
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import CLIENTS, DYNAMODB, S3, Fault, Kind

PUT, GET, TRANSACTION = (
    {"X-Amz-Target": f"DynamoDB_20120810.{name}"} for name in ("PutItem", "GetItem", "TransactWriteItems")
)
PRODUCER = {"Producer-Id": "p"}
WRITE = b'{"ClientRequestToken":"t1","TransactItems":[{},{}]}'
BODY = b'{"answer":"' + b"x" * 500 + b'"}'
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


@dataclass
class Scene:
    """A service that answers every request with BODY and remembers the bodies that came, behind a proxy."""

    proxy: Proxy
    client: Client
    came: list[bytes]

    async def post(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """The status is 0 where there is no answer."""
        try:
            answer = await self.client.request("POST", "/", body, headers)
        except NoAnswer:
            return 0, b""
        return answer.status, answer.body


@asynccontextmanager
async def scene(link: str, *faults: Kind) -> AsyncIterator[Scene]:
    came: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader, writer):
                came.append(request.body)
                writer.write(REPLY)
        except EOFError:
            pass  # The request was cut.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = Proxy(link, random.Random(1), lambda _: None)
    await proxy.start()
    proxy.upstream_port = server.sockets[0].getsockname()[1]
    proxy.active = [Fault(0, 1, kind.value, link) for kind in faults]
    client = Client(proxy.port)
    try:
        yield Scene(proxy, client, came)
    finally:
        client.close()
        await proxy.close()
        server.close()


@pytest.mark.parametrize(
    ("link", "faults", "headers", "status", "at_once", "late"),
    [
        (DYNAMODB, [], PUT, 200, 1, 1),
        (DYNAMODB, [Kind.REPEAT], PUT, 200, 1, 2),
        (DYNAMODB, [Kind.HOLD], PUT, 0, 0, 1),
        (DYNAMODB, [Kind.HOLD, Kind.REPEAT], GET, 200, 1, 1),
        # DynamoDB knows its token for ten minutes; the local engine forgets it when it is killed.
        (DYNAMODB, [Kind.REPEAT], TRANSACTION, 200, 1, 1),
        (CLIENTS, [Kind.REPEAT], {}, 200, 1, 1),
        (CLIENTS, [Kind.REPEAT], PRODUCER, 200, 1, 2),
        (DYNAMODB, [Kind.CUT_REPLY], PUT, 0, 1, 1),
        (S3, [Kind.CUT_REQUEST], {}, 0, 0, 0),
        (S3, [Kind.SILENCE], {}, 0, 0, 0),
        (S3, [Kind.DELAY], {}, 200, 1, 1),
        (DYNAMODB, [Kind.THROTTLE], PUT, 400, 0, 0),
        (DYNAMODB, [Kind.THROTTLE], TRANSACTION, 400, 0, 0),
        (S3, [Kind.THROTTLE], {}, 503, 0, 0),
        (S3, [Kind.INTERNAL_ERROR], {}, 500, 1, 1),
    ],
)
def test_a_fault_does_to_a_request_what_its_name_says(  # noqa: PLR0917 - a row of the table
    monkeypatch: pytest.MonkeyPatch,
    link: str,
    faults: list[Kind],
    headers: dict[str, str],
    status: int,
    at_once: int,
    late: int,
) -> None:
    """What the client gets; how often the request has come then; how often in the end."""
    monkeypatch.setattr(proxy_module, "_SILENT_SECONDS", 0)
    monkeypatch.setattr(proxy_module, "DELAY_SECONDS", (0.01, 0.01))
    # What may be done or not, is done.
    monkeypatch.setattr(Proxy, "is_likely", lambda *_: True)

    async def play() -> None:
        async with scene(link, *faults) as made:
            answered, body = await made.post(WRITE, headers)
            assert (answered, made.came) == (status, [WRITE] * at_once)
            assert status != 200 or body == BODY
            await made.proxy.deliver_what_is_late()
            assert made.came == [WRITE] * late

    asyncio.run(play())


def test_without_a_fault_bodies_of_any_size_pass_byte_for_byte() -> None:
    async def play() -> None:
        async with scene(DYNAMODB) as made:
            for body in (b"one", b"", b"z" * 300_000):
                assert await made.post(body, PUT) == (200, BODY)
            assert made.came == [b"one", b"", b"z" * 300_000]

    asyncio.run(play())


@pytest.mark.parametrize("size", [0, 45, 400])
def test_a_reply_is_cut_at_the_byte_that_was_drawn(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender gets that many bytes and the end."""
    monkeypatch.setattr(Proxy, "cut_at", lambda *_: size)

    async def play() -> None:
        async with scene(DYNAMODB, Kind.CUT_REPLY) as made:
            reader, writer = await asyncio.open_connection("127.0.0.1", made.proxy.port)
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nwrite")
            assert await reader.read() == REPLY[:size]
            writer.close()

    asyncio.run(play())


@pytest.mark.parametrize("faults", [[], [Kind.DELAY], [Kind.CUT_REPLY], [Kind.SILENCE]])
def test_a_socket_passes_byte_for_byte_until_a_fault_ends_it(
    faults: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "DELAY_SECONDS", (0.01, 0.01))

    async def echo(client: ServerConnection) -> None:
        async for message in client:
            await client.send(message)

    async def play() -> None:
        async with scene(CLIENTS) as made, serve(echo, "127.0.0.1", 0) as server:
            made.proxy.upstream_port = server.sockets[0].getsockname()[1]
            async with connect(f"ws://127.0.0.1:{made.proxy.port}/", proxy=None) as client:
                await client.send("tides")
                assert await client.recv() == "tides"
                made.proxy.active = [Fault(0, 1, kind.value, CLIENTS) for kind in faults]
                await client.send("more")
                if faults in ([], [Kind.DELAY]):
                    assert await client.recv() == "more"
                else:
                    with pytest.raises(ConnectionClosed):
                        await client.recv()

    asyncio.run(play())
