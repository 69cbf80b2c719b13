"""The loop's own way to AWS: whole answers, whatever the pieces they come in, and
NoAnswer for everything that leaves it open whether the request arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import World, a_key
from tidemark.aws.retry import NoAnswer
from tidemark.aws.sigv4 import AwsRequest
from tidemark.local.on_loop.greenlets import greenlet_spawn
from tidemark.local.on_loop.http import LoopHttp
from tidemark.service.append import INLINE_BYTES
from tidemark.service.read import read

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"


REQUEST = AwsRequest("POST", "/", {"X-Amz-Target": "PutItem"}, b"{}")


@dataclass
class Unsigned:
    endpoint: str

    def sign(self, request: AwsRequest) -> dict[str, str]:
        return dict(request.headers)


def http_to(port: int, answer_seconds: float) -> LoopHttp:
    return LoopHttp(Unsigned(f"http://127.0.0.1:{port}"), answer_seconds)  # type: ignore[arg-type]


def exchange(serve: Serve, times: int = 1, answer_seconds: float = 30) -> list[Any]:
    """What `times` calls in a row get from a server; failures as they are. Only the first is as hasty."""

    async def run() -> list[Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        http = http_to(port, answer_seconds)
        answers: list[Any] = []
        for _ in range(times):
            try:
                answers.append(await greenlet_spawn(lambda: http(REQUEST)))
            except NoAnswer as failure:
                answers.append(failure)
            http._answer_seconds = 30
        await http.close()
        server.close()
        await end_all_others()
        return answers

    return asyncio.run(run())


async def end_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)


async def take_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)


def answering(*pieces: bytes, close: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await take_request(reader)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    return serve


@pytest.mark.parametrize(
    "pieces",
    [
        [OK + b'{"a": 1}'],
        [OK, b'{"a"', b": 1}"],
        [bytes([byte]) for byte in OK + b'{"a": 1}'],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b'3\r\n{"a\r\n5\r\n": 1}\r\n0\r\n\r\n'],
    ],
    ids=["whole", "in pieces", "byte by byte", "chunked"],
)
@pytest.mark.parametrize("close", [False, True])
def test_a_whole_reply_is_returned_however_it_is_cut_into_pieces(pieces: list[bytes], close: bool) -> None:
    answers = exchange(answering(*pieces, close=close), times=3)
    # A connection that the server closed may be found closed only when it is used again.
    whole = [answer for answer in answers if not isinstance(answer, NoAnswer)]
    assert whole[0] == (200, b'{"a": 1}')
    assert len(whole) == 3 or close


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200"], [OK, b'{"a"'], [b"nonsense\r\n\r\n"]])
def test_half_a_reply_is_no_answer(pieces: list[bytes]) -> None:
    assert isinstance(exchange(answering(*pieces, close=True))[0], NoAnswer)


def test_silence_is_no_answer() -> None:
    assert isinstance(exchange(answering(), answer_seconds=0.05)[0], NoAnswer)


def test_a_late_reply_is_not_returned_to_the_next_request() -> None:
    """The first connection answers once the second one is there."""
    connections: list[int] = []
    asked_again = asyncio.Event()

    async def late_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        is_first = connections[-1] == 0
        try:
            if not is_first:
                asked_again.set()
            while True:
                await take_request(reader)
                await asked_again.wait()
                writer.write(OK + (b'"first!"' if is_first else b'"second"'))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    first, second = exchange(late_once, times=2, answer_seconds=0.2)
    assert isinstance(first, NoAnswer)
    assert second == (200, b'"second"')


@pytest.mark.parametrize("more", [OK + b'"second"', OK[:20], b"nonsense"], ids=["all", "half", "nonsense"])
def test_a_connection_with_bytes_behind_a_reply_is_closed(more: bytes) -> None:
    """What is left of a second reply would be taken for the beginning of the next one."""
    connections = []
    serve = answering(OK + b'{"a": 1}' + more)

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        await serve(reader, writer)

    assert exchange(counting, times=3) == [(200, b'{"a": 1}')] * 3
    assert len(connections) == 3


def test_a_refused_connection_is_no_answer() -> None:
    with pytest.raises(NoAnswer):
        asyncio.run(greenlet_spawn(lambda: http_to(9, 30)(REQUEST)))


def test_use_cases_run_on_the_loop_as_on_threads(world: World) -> None:
    """Create, append (inline and through S3), read in parallel parts, many at once."""
    process = world.process()
    loop = process.on_loop()
    process.stores = loop.stores
    key, body = a_key(), bytes(INLINE_BYTES + 1)

    async def scenario() -> bytes:
        await loop.run(lambda: process.create(key))
        await loop.run(lambda: process.append(key, b"<"))
        await loop.run(lambda: process.append(key, body))
        await loop.run(lambda: process.append(key, body))
        cold = world.process()
        other = cold.on_loop()
        reads = (other.run(lambda: read(other.stores, key, 0)) for _ in range(10))
        readings = await asyncio.gather(*reads)
        await loop.close()
        await other.close()
        assert len({reading.page.end for reading in readings}) == 1
        return readings[0].data

    assert asyncio.run(scenario()) == b"<" + body + body
