"""Long-polls (§5.7): data at once, data when it comes, or 204 without data."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, JSON, TEXT, Door, by_the_server
from tidemark.service.read import read
from tidemark.wake import follow

POLL = "&live=long-poll"

pytestmark = [pytest.mark.usefixtures("no_polling"), pytest.mark.each_way]


# --- without waiting ----------------------------------------------------------------


# --- waiting ------------------------------------------------------------------------


@pytest.fixture
def looked(server: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """Set once a waiting request has made its first read: what is written from then on must wake it."""
    first_read = asyncio.Event()
    loop = server.runner.get_loop()

    def read_and_tell(*arguments: Any) -> Any:
        reading = read(*arguments)
        loop.call_soon_threadsafe(first_read.set)
        return reading

    monkeypatch.setattr(follow, "read", read_and_tell)
    yield first_read
    assert first_read.is_set()


async def poll_while(
    server: Door, looked: asyncio.Event, target: str, happening: Callable[[], Any]
) -> Answer:
    async with server.open("GET", target) as exchange:
        await looked.wait()
        assert not exchange.done
        await happening()
        return await exchange.until(lambda _: exchange.done)


@pytest.mark.parametrize("offset", ["0000000000000002", "now"])
def test_an_append_wakes_a_long_poll(server: Door, looked: asyncio.Event, path: str, offset: str) -> None:
    """§8, §10.1: `now` is another offset at every moment. A cache that kept the response would give old data
    to a later reader. So the response has no ETag either."""
    server.put(path, JSON, b"[1]")
    target = f"{path}?offset={offset}{POLL}"
    answer = server.run(poll_while(server, looked, target, lambda: server.ask("POST", path, JSON, b"[2]")))
    assert (answer.status, answer.json) == (200, [2])
    assert (answer.next_offset, answer["stream-up-to-date"]) == ("0000000000000004", "true")
    assert answer["stream-cursor"]
    assert answer["stream-closed"] is None
    if offset == "now":
        assert (answer["cache-control"], answer["etag"]) == ("no-store", None)


@pytest.mark.parametrize(
    ("method", "headers", "body", "status", "closed"),
    [
        ("POST", CLOSE, b"", 204, "true"),
        ("POST", TEXT | CLOSE, b"end", 200, "true"),
        ("DELETE", {}, b"", 404, None),
    ],
)
def test_the_end_of_a_stream_wakes_a_long_poll(  # noqa: PLR0917 - fixtures and a case
    server: Door,
    looked: asyncio.Event,
    path: str,
    method: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
    closed: str | None,
) -> None:
    server.put(path, TEXT, b"old")
    target = f"{path}?offset=now{POLL}"
    answer = server.run(poll_while(server, looked, target, lambda: server.ask(method, path, headers, body)))
    assert (answer.status, answer["stream-closed"], answer["stream-up-to-date"]) == (status, closed, closed)
    if status != 404:
        assert (answer.body, answer.next_offset) == (body, f"{3 + len(body):016d}")


@by_the_server
async def test_a_client_that_leaves_ends_its_request(server: Door, looked: asyncio.Event, path: str) -> None:
    """The stream and the other waiting readers are not affected."""
    await server.ask("PUT", path, TEXT)
    async with server.configured(long_poll_seconds=0.05).open("GET", f"{path}?offset=now{POLL}"):
        await looked.wait()
    assert (await server.ask("POST", path, TEXT, b"x")).status == 204
