"""`/v1/socket` of a server: what a client that watches streams is told, and what it may ask for."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from tests.authorization.tokens import SECRET, token
from tests.engine.serving import serving
from tests.http.asgi import CLOSE, HOST, TEXT, Door, by_the_server, make_scope
from tests.support import Clock
from tests.waiting import PATIENCE_SECONDS, eventually
from tidemark.http import error_handlers, socket_session
from tidemark.http.app import create_app
from tidemark.http.limits import TokenBucket
from tidemark.http.security.authorization import LEEWAY_SECONDS, Tokens
from tidemark.http.security.origin import own_pages_only
from tidemark.http.socket_session import Sockets
from tidemark.observability.metrics import FAULTS, Meter
from tidemark.protocol import socket
from tidemark.protocol.authorization import Access
from tidemark.protocol.errors import Busy
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import AuthorizationSettings, Settings

pytestmark = pytest.mark.usefixtures("no_polling")


class OpenSocket:
    """A client that hands the application exact frames."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: asyncio.Queue[Message] = asyncio.Queue()

    async def next(self) -> Message:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.sent.get()

    async def told(self) -> list[dict[str, Any]]:
        """The messages of the next frame."""
        message = await self.next()
        assert message["type"] == "websocket.send", message
        messages = json.loads(message["text"])
        return messages if isinstance(messages, list) else [messages]

    async def say(self, **frame: Any) -> None:
        await self.received.put({"type": "websocket.receive", "text": json.dumps(frame)})

    async def watch(self, *names: str, **more: Any) -> list[dict[str, Any]]:
        await self.say(watch=list(names), **more)
        return await self.told()

    async def is_silent(self) -> bool:
        """Whether all that was said and written before has been told: an answer comes behind it."""
        await self.say(watch=["behind it"])
        return [each["stream"] for each in await self.told()] == ["behind it"]


@asynccontextmanager
async def handshake(
    app: ASGIApp, path: str = socket.PATH, headers: dict[str, str] | None = None
) -> AsyncIterator[OpenSocket]:
    client = OpenSocket()
    scope = {**make_scope("GET", path, headers or {}), "type": "websocket", "subprotocols": []}
    del scope["method"]
    await client.received.put({"type": "websocket.connect"})
    serving = asyncio.create_task(app(scope, client.received.get, client.sent.put))  # type: ignore[arg-type, var-annotated]
    try:
        yield client
    finally:
        await client.received.put({"type": "websocket.disconnect", "code": 1000})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await serving


def sockets_of(server: Door, **settings: Any) -> Sockets:
    own = replace(server.settings, socket_url=socket.PATH, public_url=f"http://{HOST}", **settings)
    backend = replace(server.backend, settings=own)
    return Sockets(create_app(backend, own_pages_only(own)), backend)


@asynccontextmanager
async def open_socket(server: Door, **settings: Any) -> AsyncIterator[OpenSocket]:
    async with handshake(sockets_of(server, **settings)) as client:
        assert (await client.next())["type"] == "websocket.accept"
        yield client


async def create(door: Door, path: str, headers: dict[str, str] = TEXT) -> None:
    assert (await door.ask("PUT", path, headers)).status == 201


async def append(door: Door, path: str, body: bytes = b"12345", headers: dict[str, str] = TEXT) -> None:
    assert (await door.ask("POST", path, headers, body)).status == 204


def tail(path: str, offset: int, **more: Any) -> dict[str, Any]:
    return {"stream": path, "offset": f"{offset:016}", **more}


@by_the_server
async def test_each_watch_is_answered_with_the_tail_or_with_what_a_read_would_be_refused_with(
    server: Door, path: str
) -> None:
    await create(server, path)
    await append(server, path)
    async with open_socket(server) as client:
        told = await client.watch(path, path + "/absent", "/v1/other", "/v1/stream/", "plain", "/b/c?x")
    assert told[0] == tail(path, 5, seconds=3600)
    assert [each["status"] for each in told[1:]] == [404, 400, 400, 400, 400]
    assert all(each["error"] for each in told[1:])


@pytest.mark.parametrize("embedded", [False, True])
def test_a_client_is_told_where_the_tail_is_whenever_it_moves(
    server: Door, path: str, tmp_path: Path, embedded: bool
) -> None:
    """The embedded engine names the batch that wakes, so that who has read further is not woken."""

    async def scenario(server: Door) -> None:
        await create(server, path)
        async with open_socket(server) as client:
            assert await client.watch(path) == [tail(path, 0, seconds=3600)]
            for offset in (5, 10, 15):
                await append(server, path)
                assert await client.told() == [tail(path, offset)]
            assert await client.is_silent()

    if not embedded:
        server.run(scenario(server))
        return
    with closing(EmbeddedSystem(Settings(), None, tmp_path / "blobs")) as system, serving(system) as own:
        own.run(scenario(own))


@by_the_server
async def test_what_nobody_watches_is_not_told(server: Door, path: str) -> None:
    await create(server, path)
    await create(server, path + "/other")
    async with open_socket(server) as client:
        await client.watch(path, path + "/other")
        await client.say(unwatch=[path, "/v1/stream/never-watched"])
        await client.say(action="ping")
        assert [await client.told(), await client.told()] == [[], []]
        assert await client.is_silent()
        await append(server, path)
        await append(server, path + "/other")
        assert await client.told() == [tail(path + "/other", 5)]


@pytest.mark.parametrize("body", [b"", b"last"])
@by_the_server
async def test_a_closed_stream_ends_its_watch(server: Door, path: str, body: bytes) -> None:
    await create(server, path)
    async with open_socket(server) as client:
        await client.watch(path)
        await append(server, path, body, TEXT | CLOSE)
        closed = tail(path, len(body), closed=True)
        assert await client.told() == [closed]
        assert server.backend.wake.hub.following == 0
        assert await client.watch(path) == [closed]
        assert server.backend.wake.hub.following == 0


@by_the_server
async def test_a_deleted_stream_ends_its_watch_and_the_next_one_of_its_name_is_watched_anew(
    server: Door, path: str
) -> None:
    await create(server, path)
    await append(server, path)
    async with open_socket(server) as client:
        await client.watch(path)
        assert (await server.ask("DELETE", path)).status == 204
        [ended] = await client.told()
        assert (ended["stream"], ended["status"]) == (path, 404)
        await create(server, path)
        assert await client.watch(path) == [tail(path, 0, seconds=3600)]
        await append(server, path)
        assert await client.told() == [tail(path, 5)]


@by_the_server
async def test_a_stream_is_watched_once_under_the_name_that_was_used_last(server: Door, path: str) -> None:
    alias, spelled = path.replace("/v1/stream/", "/v1/streams/"), path[:-1] + f"%{ord(path[-1]):02x}"
    await create(server, path)
    async with open_socket(server) as client:
        told = await client.watch(path, alias, spelled)
        assert told == [tail(name, 0, seconds=3600) for name in (path, alias, spelled)]
        for name, offset in ((spelled, 5), (path, 10)):
            assert server.backend.wake.hub.following == 1
            await append(server, path)
            assert await client.told() == [tail(name, offset)]
            await client.watch(path)
        await client.say(unwatch=[alias])
        assert await client.told() == []
        assert server.backend.wake.hub.following == 0


@pytest.mark.parametrize(("step", "ends"), [("watch", False), ("tail", False), ("tail", True)])
@by_the_server
async def test_what_is_written_while_a_socket_is_told_is_told_behind_it(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch, step: str, ends: bool
) -> None:
    """An append between the read of the tail and the message with it is told behind it, and is not lost;
    but not after the watch has ended."""
    read, go_on = asyncio.Event(), asyncio.Event()
    share = server.backend.share

    async def held(name: Any, call: Any) -> Any:
        result = await share(name, call)
        if name[0] == step:
            read.set()
            await go_on.wait()
        return result

    await create(server, path)
    await create(server, path + "/other")
    app = sockets_of(server)
    monkeypatch.setattr(app, "_backend", replace(app._backend, share=held))
    async with handshake(app) as client:
        await client.next()
        await client.say(watch=[path])
        expected = [[tail(path, 0, seconds=3600)], [tail(path, 5)]]
        if step == "tail":
            assert await client.told() == expected.pop(0)
            await append(server, path)
            expected.append([tail(path, 10)])
        await eventually(read.is_set)
        await append(server, path)
        if ends:
            await client.say(unwatch=[path])
            assert await client.told() == []
            await client.watch(path + "/other")
            expected = [[tail(path + "/other", 5)]]
            await append(server, path + "/other")
        go_on.set()
        assert [await client.told() for _ in expected] == expected


@pytest.mark.parametrize("failure", [Busy(), RuntimeError("a bug")])
@by_the_server
async def test_a_look_that_fails_ends_the_watch_and_no_other(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The client is told to watch again; it is never left waiting for what nobody looks for. A fault is
    counted: no status of a response tells of it."""
    meter = Meter()
    monkeypatch.setattr(error_handlers, "PROCESS", meter)
    share, failing = server.backend.share, True

    async def failed(name: Any, call: Any) -> Any:
        if name[0] == "tail" and failing:
            raise failure
        return await share(name, call)

    await create(server, path)
    app = sockets_of(server)
    monkeypatch.setattr(app, "_backend", replace(app._backend, share=failed))
    async with handshake(app) as client:
        await client.next()
        await client.watch(path)
        await append(server, path)
        [told] = await client.told()
        assert told["status"] == getattr(failure, "status", 500)
        assert meter.snapshot().counts.get((FAULTS, ()), 0) == (told["status"] >= 500)
        failing = False
        assert await client.watch(path) == [tail(path, 5, seconds=3600)]
        await append(server, path)
        assert await client.told() == [tail(path, 10)]


@by_the_server
async def test_a_lease_ends_and_a_repeated_watch_makes_another(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, other = 1000.0, path + "/other"
    monkeypatch.setattr("tidemark.http.socket_session.time", SimpleNamespace(monotonic=lambda: now))
    await create(server, path)
    await create(server, other)
    async with open_socket(server) as client:
        await client.watch(path)
        now += 3599
        await append(server, path)
        assert await client.told() == [tail(path, 5)]
        await client.watch(other)
        now += 1
        await append(server, path)
        await append(server, other)
        assert await client.told() == [tail(other, 5)]
        assert await client.watch(path) == [tail(path, 10, seconds=3600)]
        await append(server, path)
        assert await client.told() == [tail(path, 15)]
        server.backend.wake.hub.wake_all()  # What did not move is not told again.
        await append(server, path)
        assert await client.told() == [tail(path, 20)]


@by_the_server
async def test_a_watch_uses_the_stream_as_a_read_does(server: Door, path: str, clock: Clock) -> None:
    """A stream with a window lives as long as somebody watches it, once in each lease."""
    await create(server, path, TEXT | {"Stream-TTL": "100"})
    async with open_socket(server) as client:
        for _ in range(3):
            [answer] = await client.watch(path)
            assert 50 <= answer["seconds"] <= 100
            clock.advance(answer["seconds"] * 1000)
        clock.advance(60_000)
        assert [each["status"] for each in await client.watch(path)] == [404]


@by_the_server
async def test_a_frame_that_cannot_be_used_says_why_and_the_socket_goes_on(server: Door, path: str) -> None:
    await create(server, path)
    async with open_socket(server) as client:
        for frame in ({"text": "{"}, {"bytes": b"{}"}):
            await client.received.put({"type": "websocket.receive", **frame})
            [told] = await client.told()
            assert (told["status"], told["error"] > "") == (400, True)
        assert await client.watch(path) == [tail(path, 0, seconds=3600)]


@by_the_server
async def test_a_socket_watches_so_many_streams_and_no_more(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that was ended, or whose lease is over, does not count."""
    now = 1000.0
    monkeypatch.setattr(socket_session, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(socket, "MAX_WATCHED", 2)
    for name in "abcd":
        await create(server, path + name)
    async with open_socket(server) as client:
        await client.watch(path + "a", path + "b")
        [told] = await client.watch(path + "c")
        assert (told["status"], "at most 2 streams" in told["error"]) == (400, True)
        await client.say(unwatch=[path + "a"])
        assert await client.told() == []
        assert (await client.watch(path + "c"))[0]["offset"]
        now += 3600
        assert await client.watch(path + "d") == [tail(path + "d", 0, seconds=3600)]
        assert server.backend.wake.hub.following == 1


@by_the_server
async def test_a_client_that_says_much_is_read_slowly_and_loses_nothing(
    server: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 1e-6  # As any sleep, a little longer.

    monkeypatch.setattr(socket_session, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    monkeypatch.setattr(socket_session, "TokenBucket", lambda rate: TokenBucket(rate, lambda: now))
    many = 4 * socket_session.MESSAGES_PER_SECOND
    async with open_socket(server) as client:
        for number in range(many):
            await client.say(watch=[f"name {number}"])
        told = [(await client.told())[0]["stream"] for _ in range(many)]
        assert told == [f"name {number}" for number in range(many)]
    assert now == pytest.approx(3, abs=0.01), "as many at once as in a second"


@by_the_server
async def test_a_watch_is_three_small_reads_and_a_wake_up_one_query_for_all_sockets(
    server: Door, path: str
) -> None:
    await create(server, path)
    async with open_socket(server) as one, open_socket(server) as other:
        server.process.calls.taken()
        await one.watch(path)
        assert server.process.calls.taken() == {"GetItem": 1, "Query": 1}
        await other.watch(path)
        await append(server, path)
        server.process.calls.taken()
        assert await one.told() == await other.told() == [tail(path, 5)]
        assert server.process.calls.taken() == {"Query": 1}


@by_the_server
async def test_a_client_that_leaves_is_listened_for_no_more(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter()
    monkeypatch.setattr(socket_session, "PROCESS", meter)
    await create(server, path)
    async with open_socket(server) as client:
        await client.watch(path)
        assert (server.backend.wake.hub.following, meter.snapshot().waiting) == (1, 1)
    assert (server.backend.wake.hub.following, meter.snapshot().waiting) == (0, 0)


# --- who may --------------------------------------------------------------------------


SECURED = AuthorizationSettings(secret=SECRET)
#: After the tests' own clock.
FAR = 4_000_000_000


@by_the_server
async def test_a_watch_takes_the_right_to_read_and_tells_nobody_else_whether_a_stream_exists(
    server: Door, path: str
) -> None:
    await create(server, path)
    name = path.removeprefix("/v1/stream/")
    reader = token(f"read:v1/{name}", exp=FAR)
    other = token("read:v1/others/* write:*", exp=FAR)
    async with open_socket(server, authorization=SECURED) as client:
        assert await client.watch(path, token=reader) == [tail(path, 0, seconds=3600)]
        there, absent = await client.watch(path, path + "/absent", token=other)
        assert there | {"stream": ""} == absent | {"stream": ""}
        assert there["status"] == 404
        [without] = await client.watch(path)
        assert (without["status"], "token" in without["error"]) == (401, True)
    is_public = replace(SECURED, public_read_buckets=frozenset({"v1"}))
    async with open_socket(server, authorization=is_public) as client:
        assert await client.watch(path) == [tail(path, 0, seconds=3600)]


@by_the_server
async def test_a_token_is_checked_once_for_all_streams_of_a_frame(
    server: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature takes as long as many watches, and one that does not hold is not remembered."""
    checked: list[str] = []
    check = Tokens.check

    def counted(self: Tokens, given: str) -> Access:
        checked.append(given)
        return check(self, given)

    monkeypatch.setattr(Tokens, "check", counted)
    async with open_socket(server, authorization=SECURED) as client:
        told = await client.watch(*(f"{path}/{number}" for number in range(socket.MAX_NAMED)), token="x")
        assert [each["status"] for each in told] == [401] * socket.MAX_NAMED
    assert checked == ["x"]


@by_the_server
async def test_a_watch_lasts_no_longer_than_its_token(server: Door, path: str, clock: Clock) -> None:
    await create(server, path)
    async with open_socket(server, authorization=SECURED) as client:
        ends = clock.now_ms // 1000 + 300
        assert await client.watch(path, token=token("read:*", exp=ends)) == [
            tail(path, 0, seconds=300 + LEEWAY_SECONDS)
        ]
        [refused] = await client.watch(path, token=token("read:*", exp=1))
        assert (refused["status"], refused["error"]) == (401, "Token has expired")
        await append(server, path)
        assert await client.is_silent(), "a watch that is refused is over"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/v1/stream/a", {}, 404), ("/v1/socket/", {}, 404), (socket.PATH, {"Host": "rebound.example"}, 421)],
)
@by_the_server
async def test_a_handshake_that_is_refused_gets_an_answer(
    server: Door, path: str, headers: dict[str, str], status: int
) -> None:
    async with handshake(sockets_of(server), path, headers) as client:
        start, body = await client.next(), await client.next()
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert json.loads(body["body"])["error"]


def test_the_address_of_the_socket_is_public_and_a_server_without_one_says_so(server: Door) -> None:
    url = "wss://abc.example/live"
    answer = server.configured(authorization=SECURED, socket_url=url).get(socket.PATH)
    assert (answer.status, answer.json) == (200, {"url": url})
    absent = server.get(socket.PATH)
    assert (absent.status, "long-poll" in absent.json["error"]) == (404, True)


def test_a_page_of_the_console_may_open_the_socket_at_another_host(server: Door) -> None:
    for url, allowed in ((socket.PATH, "'self'"), ("wss://abc.example/live", "'self' wss://abc.example")):
        policy = server.configured(socket_url=url).get("/v1/console")["content-security-policy"] or ""
        assert f"; connect-src {allowed}; " in policy
