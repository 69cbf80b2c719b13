"""The proxy passes on what nothing happens to byte for byte, and does what each fault says to the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.chaos import proxy as proxy_module
from tests.chaos.client import Answer, Client, NoAnswer
from tests.chaos.proxy import Event, Proxy
from tests.chaos.schedule import DYNAMODB, S3, Fault, Kind

PUT = {"X-Amz-Target": "DynamoDB_20120810.PutItem"}
TRANSACTION = {"X-Amz-Target": "DynamoDB_20120810.TransactWriteItems"}
BODY = b'{"answer":"' + b"x" * 500 + b'"}'


class Service:
    """Answers every request with BODY, and remembers the bodies that came."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.came.append(await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


@asynccontextmanager
async def scene(link: str, *faults: Kind) -> AsyncIterator[tuple[Service, Proxy, Client, list[Event]]]:
    service, events = Service(), list[Event]()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    proxy = Proxy(link, random.Random(1), events.append)
    await proxy.start()
    proxy.upstream_port = server.sockets[0].getsockname()[1]
    proxy.active = [Fault(0, 1, kind.value, link) for kind in faults]
    client = Client(proxy.port)
    try:
        yield service, proxy, client, events
    finally:
        client.close()
        await proxy.close()
        server.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await test()

    asyncio.run(whole())


async def post(client: Client, body: bytes, headers: dict[str, str]) -> Answer:
    return await client.request("POST", "/", body, headers)


def test_without_a_fault_requests_and_replies_pass_byte_for_byte() -> None:
    async def test() -> None:
        async with scene(DYNAMODB) as (service, _, client, events):
            for body in (b"one", b"", b"z" * 300_000):
                assert (await post(client, body, PUT)).body == BODY
            assert service.came == [b"one", b"", b"z" * 300_000]
            assert events == []

    run(test)


def test_a_repeated_write_arrives_once_more_after_its_reply() -> None:
    async def test() -> None:
        async with scene(DYNAMODB, Kind.REPEAT) as (service, proxy, client, _):
            assert (await post(client, b"write", PUT)).status == 200
            assert service.came == [b"write"]
            await proxy.deliver_what_is_late()
            assert service.came == [b"write", b"write"]

    run(test)


def test_a_held_write_gets_no_reply_and_arrives_late() -> None:
    async def test() -> None:
        async with scene(DYNAMODB, Kind.HOLD) as (service, proxy, client, _):
            with pytest.raises(NoAnswer):
                await post(client, b"write", PUT)
            assert service.came == []
            await proxy.deliver_what_is_late()
            assert service.came == [b"write"]

    run(test)


def test_a_read_is_neither_held_nor_repeated() -> None:
    async def test() -> None:
        async with scene(DYNAMODB, Kind.HOLD, Kind.REPEAT) as (service, proxy, client, _):
            headers = {"X-Amz-Target": "DynamoDB_20120810.GetItem"}
            assert (await post(client, b"read", headers)).status == 200
            await proxy.deliver_what_is_late()
            assert service.came == [b"read"]

    run(test)


def test_a_transaction_that_was_carried_out_is_absorbed_by_its_token() -> None:
    """DynamoDB knows it for ten minutes; the local engine forgets it when it is killed."""

    async def test() -> None:
        async with scene(DYNAMODB, Kind.REPEAT) as (service, proxy, client, events):
            await post(client, b'{"ClientRequestToken":"t1"}', TRANSACTION)
            await proxy.deliver_what_is_late()
            assert len(service.came) == 1
            assert "absorbed" in events[0].detail

    run(test)


@pytest.mark.parametrize("size", [0, 1, 12, 30, 45, 100, 400])
def test_a_reply_is_cut_at_the_byte_that_was_drawn(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request was carried out, and its sender gets that many bytes and the end."""

    async def test() -> None:
        monkeypatch.setattr(proxy_module.Proxy, "cut_at", lambda *_: size)
        async with scene(DYNAMODB, Kind.CUT_REPLY) as (service, proxy, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nwrite")
            whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
            assert await reader.read() == whole[:size]
            assert service.came == [b"write"]
            writer.close()

    run(test)


def test_places_to_cut_lie_in_the_head_and_in_the_body() -> None:
    proxy = Proxy(DYNAMODB, random.Random(1), lambda _: None)
    places = {proxy.cut_at(10, 20) for _ in range(1000)}
    assert places == set(range(20))


def test_a_cut_request_is_not_carried_out() -> None:
    async def test() -> None:
        async with scene(S3, Kind.CUT_REQUEST) as (service, _, client, _):
            with pytest.raises(NoAnswer):
                await client.request("PUT", "/bucket/key", b"x" * 1000)
            assert service.came == []

    run(test)


def test_a_throttled_write_is_refused_as_dynamodb_refuses_it() -> None:
    async def test() -> None:
        async with scene(DYNAMODB, Kind.THROTTLE) as (service, _, client, _):
            codes = set()
            for _ in range(30):
                answer = await post(client, b"{}", PUT)
                assert answer.status == 400
                assert "x-amz-crc32" in answer.headers
                codes.add(answer.body.split(b"#")[1].split(b'"')[0])
            assert codes == {b"TransactionConflictException", b"ProvisionedThroughputExceededException"}
            items = b'{"TransactItems":[{},{}]}'
            assert b'"TransactionConflict"' in (await post(client, items, TRANSACTION)).body
            assert service.came == []

    run(test)


def test_s3_slows_down_and_fails_inside() -> None:
    async def test() -> None:
        async with scene(S3, Kind.THROTTLE) as (_, proxy, client, _):
            slow = await client.request("PUT", "/bucket/key", b"x")
            assert (slow.status, b"SlowDown" in slow.body) == (503, True)
            proxy.active = [Fault(0, 1, Kind.INTERNAL_ERROR.value, S3)]
            broken = await client.request("PUT", "/bucket/key", b"x")
            assert (broken.status, b"InternalError" in broken.body) == (500, True)

    run(test)
