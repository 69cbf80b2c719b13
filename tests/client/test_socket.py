"""Both clients follow by the socket of a server in memory. `tests/chaos` kills the server."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve

from tests.authorization.tokens import SECRET, token
from tests.ports import free_port
from tests.processes import threads_named
from tests.waiting import until
from tidemark.client import AsyncStream, Chunk, NotAllowed, Retry, Stream, reading, socket, watches
from tidemark.client.socket import SocketFollower
from tidemark.http.socket_session import Sockets
from tidemark.server.serve import server_in_memory
from tidemark.settings import AuthorizationSettings, Settings

pytestmark = pytest.mark.slow

FAST = Retry(max_retries=1000, initial_delay_seconds=0.01, max_delay_seconds=0.1)
both = pytest.mark.parametrize("kind", [Stream, AsyncStream])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server in memory is asked, with the offset; `socket` is one that is opened."""
    seen: list[str] = []
    serve = Sockets.__call__

    async def noting(self: Sockets, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" and scope.get("method") not in {"PUT", "POST", "DELETE"}:
            query = scope["query_string"].decode().replace("cursor=", "").split("&")
            name = scope["path"].removeprefix("/v1/stream/")
            live = [part for part in query if part.startswith("live=")]
            seen.append("socket" if scope["type"] == "websocket" else " ".join([name, *live]))
        await serve(self, scope, receive, send)

    monkeypatch.setattr(Sockets, "__call__", noting)
    return seen


@dataclass
class Network:
    asked: list[str]
    #: Nothing comes any more on what was opened in an earlier one,
    life: int = 0
    #: or the server closes it.
    closes: bool = False
    #: An answer passes when it is whole, and no upgrade does.
    buffers: bool = False
    #: It opens sockets, and nothing passes.
    swallows: bool = False


@pytest.fixture
def network(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Network:
    """In front of the server in memory."""
    there, serve = Network(asked), Sockets.__call__

    async def between(self: Sockets, scope: Any, receive: Any, send: Any) -> None:
        life, held, is_held = there.life, list[Any](), there.buffers and scope["type"] != "lifespan"

        async def carry(message: Any) -> None:
            held.append(message)
            is_whole = message["type"] != "http.response.start" and not message.get("more_body")
            if life == there.life and (is_whole or not is_held):
                while held:
                    await send(held.pop(0))
            elif life != there.life and there.closes and scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1012})

        if there.swallows and scope["type"] == "websocket":
            there.asked.append("silence")
            await receive()
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
        elif is_held and scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
        else:
            await serve(self, scope, receive, carry)

    monkeypatch.setattr(Sockets, "__call__", between)
    return there


class Following:
    """Either client in a thread, until the stream ends or it fails."""

    def __init__(self, kind: Any, url: str, live: Any = "auto", **options: Any) -> None:
        self.chunks: list[Chunk] = []
        self.failure: Exception | None = None
        self._stream, self._live, self._client = kind(url, retry=FAST, **options), live, options.get("client")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if isinstance(self._stream, Stream):
                for chunk in self._stream.follow(live=self._live):
                    self.chunks.append(chunk)
            else:
                asyncio.run(self._follow())
        except Exception as failure:  # noqa: BLE001 - the test looks at it
            self.failure = failure
        if isinstance(self._client, httpx.Client):
            self._client.close()

    async def _follow(self) -> None:
        async for chunk in self._stream.follow(live=self._live):
            self.chunks.append(chunk)
        if self._client is not None:
            await self._client.aclose()

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    def text_ends_with(self, end: str) -> bool:
        return self.text.endswith(end)

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def texts_to_the_end(writer: Stream, *readers: Following) -> list[str]:
    """Of readers whose stream is closed now."""
    writer.close("end")
    for reader in readers:
        reader.end()
    return [reader.text for reader in readers]


def socket_threads() -> set[threading.Thread]:
    return threads_named("tidemark-socket")


@both
def test_sockets_ask_only_for_data_that_fit_no_frame(tidemark_url: str, asked: list[str], kind: Any) -> None:
    others = socket_threads()
    writer = Stream.create(f"{tidemark_url}/v1/stream/a%20b", content_type="text/plain")
    reader = Following(kind, writer.url)
    until(lambda: "socket" in asked)
    texts = ["one ", "two\r\n", "x" * 40_000 + ".", "three"]
    for text in texts:
        writer.append(text)
        until(reader.text_ends_with, text)
    writer.close("end")
    reader.end()
    assert reader.failure is None
    assert (reader.text, reader.chunks[-1].closed) == ("".join([*texts, "end"]), True)
    # The first append may come before the watch: then its answer tells of it.
    assert asked[:3] == ["a b", "/v1/socket", "socket"]
    assert asked[3:] in (["a b"], ["a b", "a b"])
    until(lambda: socket_threads() <= others)


def test_a_hundred_streams_share_a_connection_and_are_read_once(tidemark_url: str, asked: list[str]) -> None:
    async def live() -> None:
        names = [f"s{number}" for number in range(100)]
        at = f"{tidemark_url}/v1/stream"
        streams = [AsyncStream(f"{at}/{name}", content_type="text/plain") for name in names]
        for stream in streams:
            await AsyncStream.create(stream.url, content_type="text/plain")
        followed = [stream.follow() for stream in streams]
        await asyncio.gather(*(anext(one) for one in followed))
        waiting = [asyncio.create_task(anext(one)) for one in followed]
        for number, stream in enumerate(streams):
            await stream.append(f"{number}")
            assert (await waiting[number]).text == f"{number}"
            waiting[number] = asyncio.create_task(anext(followed[number]))
        before = Counter(asked)
        assert set(before) == {*names, "/v1/socket", "socket"}
        assert before["socket"] == 1
        for number, stream in enumerate(streams):
            await stream.append("again")
            assert (await waiting[number]).text == "again"
        assert Counter(asked) == before
        for one in followed:
            await one.aclose()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        assert not rest or not (await asyncio.wait(rest, timeout=60))[1]

    asyncio.run(live())


@both
@pytest.mark.parametrize("happening", ["silence", "sleep", "end"])
def test_a_connection_on_which_nothing_passes_any_more_is_noticed_and_opened_anew(
    tidemark_url: str, network: Network, kind: Any, monkeypatch: pytest.MonkeyPatch, happening: str
) -> None:
    slept_seconds = 0
    monkeypatch.setattr(socket, "time", lambda: time.time() + slept_seconds)
    monkeypatch.setattr(socket, "_LOOK_SECONDS", 0.1)
    network.closes = happening == "end"
    quiet_seconds = {"silence": 0.5, "sleep": watches.QUIET_SECONDS, "end": 10_000}[happening]
    made = partial(watches.Watches, quiet_seconds=quiet_seconds, pong_seconds=0.5)
    monkeypatch.setattr(socket, "Watches", made)
    writer = Stream.create(f"{tidemark_url}/v1/stream/dead", content_type="text/plain")
    reader = Following(kind, writer.url)
    until(lambda: "socket" in network.asked)
    writer.append("one")
    until(reader.text_ends_with, "one")
    network.life += 1
    writer.append("two")
    slept_seconds = 10 if happening == "sleep" else 0
    until(reader.text_ends_with, "two")
    assert texts_to_the_end(writer, reader) == ["onetwoend"]
    assert network.asked.count("socket") > 1


@pytest.fixture
def locked_url() -> Iterator[str]:
    with server_in_memory(Settings(authorization=AuthorizationSettings(secret=SECRET))) as url:
        yield url


@both
def test_a_watch_is_repeated_with_a_new_token_and_what_a_refused_token_ends_a_read_decides(
    locked_url: str, asked: list[str], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "_RENEWED_AFTER", 0.2 / 3600)
    given = list[str]()
    is_revoked = threading.Event()

    def authorization() -> str:
        now = "wrong" if is_revoked.is_set() else token("read:*", jti=str(len(given)))
        given.append(f"Bearer {now}")
        return given[-1]

    url = f"{locked_url}/v1/stream/locked"
    writer = Stream.create(
        url, content_type="text/plain", headers={"Authorization": f"Bearer {token('read:* write:*')}"}
    )
    reader = Following(kind, url, headers={"Authorization": authorization})
    until(lambda: len(given) >= 5)
    assert asked == ["locked", "/v1/socket", "socket"], "the tokens went with watches"
    assert len(set(given)) == len(given)
    writer.append("x")
    until(lambda: reader.text == "x")
    is_revoked.set()
    reader.end()
    assert isinstance(reader.failure, NotAllowed)


@both
@pytest.mark.parametrize("live", ["socket", "auto"])
def test_while_no_socket_can_be_opened_a_reader_waits_otherwise_and_tries_again(
    tidemark_url: str, asked: list[str], kind: Any, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [f"ws://127.0.0.1:{free_port()}/v1/socket"]
    monkeypatch.setattr(socket, "socket_url", lambda _: told[-1])
    writer = Stream.create(f"{tidemark_url}/v1/stream/otherwise", content_type="text/plain")
    reader = Following(kind, writer.url, live)
    otherwise = {"socket": "otherwise live=long-poll", "auto": "otherwise live=sse"}[live]
    until(lambda: otherwise in asked)
    assert "socket" not in asked
    told.append(f"ws{tidemark_url.removeprefix('http')}/v1/socket")
    written = ""
    while not written or (live == "socket" and "socket" not in asked):
        written += "x"
        writer.append("x")
        until(reader.text_ends_with, written)
    assert texts_to_the_end(writer, reader) == [f"{written}end"]


@both
def test_a_server_without_a_socket_is_asked_for_one_once(
    tidemark_url: str, asked: list[str], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "PATH", "/v1/stream/none")
    writer = Stream.create(f"{tidemark_url}/v1/stream/plain", content_type="text/plain")
    readers = list[Following]()
    for _ in range(2):
        readers.append(Following(kind, writer.url))
        until(lambda: asked.count("plain live=sse") == len(readers))
    assert texts_to_the_end(writer, *readers) == ["end"] * 2
    assert asked == ["plain", "none", "plain live=sse", "plain", "plain live=sse"]


@both
def test_after_one_socket_by_which_nothing_came_readers_go_by_events_at_once(
    tidemark_url: str, network: Network, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(watches, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(socket, "_urls", {})
    network.swallows = True
    writer = Stream.create(f"{tidemark_url}/v1/stream/silent", content_type="text/plain")
    readers = list[Following]()
    for _ in range(3):
        readers.append(Following(kind, writer.url))
        until(lambda: network.asked.count("silent live=sse") == len(readers))
    assert texts_to_the_end(writer, *readers) == ["end"] * 3
    assert network.asked.count("silence") == 1


@both
def test_behind_a_proxy_that_buffers_and_refuses_upgrades_a_reader_long_polls(
    tidemark_url: str, network: Network, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_FIRST_BYTE_SECONDS", 0.5)
    network.buffers = True
    writer = Stream.create(f"{tidemark_url}/v1/stream/held", content_type="text/plain")
    reader = Following(kind, writer.url)
    until(lambda: "held live=long-poll" in network.asked)
    writer.append("one")
    until(reader.text_ends_with, "one")
    assert texts_to_the_end(writer, reader) == ["oneend"]
    assert network.asked.count("held live=sse") == 1


@both
def test_beside_an_own_http_client_socket_is_named(tidemark_url: str, asked: list[str], kind: Any) -> None:
    """It knows nothing of the proxies and certificates of that client."""
    writer = Stream.create(f"{tidemark_url}/v1/stream/own", content_type="text/plain")
    client = httpx.Client if kind is Stream else httpx.AsyncClient
    automatic = Following(kind, writer.url, client=client())
    until(lambda: "own live=sse" in asked)
    assert "/v1/socket" not in asked
    insisting = Following(kind, writer.url, "socket", client=client())
    until(lambda: "socket" in asked)
    assert texts_to_the_end(writer, automatic, insisting) == ["end"] * 2


@both
def test_without_the_library_a_reader_waits_otherwise_unless_it_insists(
    tidemark_url: str, asked: list[str], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "find_spec", lambda name: None)
    writer = Stream.create(f"{tidemark_url}/v1/stream/missing", content_type="text/plain")
    insisting, reader = Following(kind, writer.url, "socket"), Following(kind, writer.url)
    insisting.end()
    assert "pip install websockets" in str(insisting.failure)
    until(lambda: "missing live=sse" in asked)
    assert texts_to_the_end(writer, reader) == ["end"]
    assert "/v1/socket" not in asked


def test_a_reader_that_stops_in_the_middle_leaves_no_thread(tidemark_url: str, asked: list[str]) -> None:
    others = socket_threads()
    writer = Stream.create(f"{tidemark_url}/v1/stream/left", content_type="text/plain")

    def append_when_it_waits() -> None:
        until(lambda: "socket" in asked)
        writer.append("x")

    following = writer.follow()
    assert next(following).text == ""
    threading.Thread(target=append_when_it_waits, daemon=True).start()
    assert next(following).text == "x"
    assert len(socket_threads() - others) == 1
    following.close()
    until(lambda: socket_threads() <= others)


@pytest.mark.parametrize("live", ["socket", "sse", "long-poll"])
def test_close_on_another_thread_ends_a_wait(asked: list[str], live: Any) -> None:
    """The server would answer after a quarter of an hour."""
    others = socket_threads()
    with server_in_memory(Settings(long_poll_seconds=900, sse_seconds=900)) as url:
        stream = Stream.create(f"{url}/v1/stream/ended", content_type="text/plain")
        following = stream.follow(live=live)
        thread = threading.Thread(target=list, args=(following,))
        thread.start()
        until(lambda: {"socket", f"ended live={live}"} & set(asked))
        following.close()
        thread.join(60)
        assert not thread.is_alive()
        assert list(following) == []
        until(lambda: socket_threads() <= others)


@both
def test_an_ended_loop_is_not_kept(tidemark_url: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loops, serve = list[weakref.ref[Any]](), socket.ClientSocket._serve

    async def noting(self: Any, connection: Any) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await serve(self, connection)

    monkeypatch.setattr(socket.ClientSocket, "_serve", noting)
    writer = Stream.create(f"{tidemark_url}/v1/stream/ended", content_type="text/plain")
    reader = Following(kind, writer.url)
    until(lambda: loops)
    writer.close()
    reader.end()
    until(lambda: gc.collect() >= 0 and loops[0]() is None)


def test_who_waits_is_told_although_the_program_cancels_tasks(tidemark_url: str, asked: list[str]) -> None:
    async def live() -> None:
        stream = await AsyncStream.create(f"{tidemark_url}/v1/stream/cancels", content_type="text/plain")
        following = stream.follow()
        await anext(following)
        waiting = asyncio.create_task(anext(following))
        for times in (1, 2):
            await asyncio.to_thread(until, lambda count: asked.count("socket") >= count, times)
            for task in asyncio.all_tasks() - {waiting, asyncio.current_task()}:
                task.cancel()
        await stream.append("x")
        async with asyncio.timeout(60):
            assert (await waiting).text == "x"
        await following.aclose()

    asyncio.run(live())


def test_after_a_thread_did_not_start_the_next_follower_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("can't start new thread")

    thread = socket.LoopThread()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "threading", SimpleNamespace(Thread=refuse))
        with pytest.raises(RuntimeError, match="new thread"):
            thread.enter()
    running = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "it runs"), thread.enter())
    assert running.result(60) == "it runs"
    thread.leave()


def test_a_client_that_fails_keeps_no_other_from_the_socket(tidemark_url: str, asked: list[str]) -> None:
    async def fail(_: str) -> httpx.Response:
        raise RuntimeError("the client has been closed")

    async def live() -> None:
        stream = await AsyncStream.create(f"{tidemark_url}/v1/stream/clients", content_type="text/plain")
        offset = (await stream.head()).offset
        async with httpx.AsyncClient() as client:
            first, second = (SocketFollower(stream.url, ask, insists=True) for ask in (fail, client.get))
            assert await first.wait(offset, None) is False

            async def until_told() -> None:
                if not await second.wait(offset, None):
                    await asyncio.sleep(0.01)
                    await until_told()

            waiting = asyncio.create_task(until_told())
            await asyncio.to_thread(until, lambda: "socket" in asked)
            await stream.append("x")
            async with asyncio.timeout(60):
                await waiting
        for follower in (first, second):
            follower.leave()

    asyncio.run(live())


def test_a_server_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "ANSWER_SECONDS", 0.1)

    async def read_nothing(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async def follow_more_than_the_system_holds(origin: str) -> list[socket.WaitResult | None]:
        monkeypatch.setitem(socket._urls, origin, origin.replace("http", "ws"))
        follower = partial(SocketFollower, ask=httpx.AsyncClient().get, insists=True)
        waits = [follower(f"{origin}/{each}").wait("0", "x" * 15_000 + str(each)) for each in range(1000)]
        return await asyncio.gather(*waits)

    async def live() -> None:
        async with (
            serve(read_nothing, "127.0.0.1", 0, close_timeout=0, max_queue=1) as server,
            asyncio.timeout(60),
        ):
            port = server.sockets[0].getsockname()[1]
            woken = await follow_more_than_the_system_holds(f"http://127.0.0.1:{port}")
        assert set(woken) == {False}

    asyncio.run(live())


FOLLOWS = """
import sys
from tidemark import Stream
for chunk in Stream(sys.argv[1]).follow(live="socket"):
    print(chunk.text, flush=True)
"""


def test_ctrl_c_ends_who_waits_by_the_socket(tidemark_url: str, asked: list[str]) -> None:
    writer = Stream.create(f"{tidemark_url}/v1/stream/interrupted", content_type="text/plain")
    command = [sys.executable, "-c", FOLLOWS, writer.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        until(lambda: "socket" in asked)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    assert process.returncode == -signal.SIGINT


FORKS = """
import os, signal, sys
from tidemark import Stream
signal.alarm(120)
following = Stream(sys.argv[1]).follow(live="socket")
next(following), next(following)
child = os.fork()
if child:
    os.waitpid(child, 0)
    print(next(following).text, flush=True)
else:
    signal.alarm(60)  # No alarm is inherited.
    try:
        next(following)
    except RuntimeError as why:
        print(why, flush=True)
    os._exit(0)
"""


def test_a_follower_does_not_wait_in_a_forked_process(tidemark_url: str, asked: list[str]) -> None:
    writer = Stream.create(f"{tidemark_url}/v1/stream/forked", content_type="text/plain")
    command = [sys.executable, "-c", FORKS, writer.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        until(lambda: "socket" in asked)
        writer.append("one")
        assert "this follower was made before os.fork" in process.stdout.readline()
        writer.append("two")
        assert process.stdout.readline() == "two\n"


@pytest.mark.parametrize(
    ("origin", "status", "body", "url"),
    [
        ("http://a", 200, '{"url": "/v1/socket"}', "ws://a/v1/socket"),
        ("https://a:8", 200, '{"url": "/v1/socket"}', "wss://a:8/v1/socket"),
        ("https://a", 200, '{"url": "wss://b.example/live"}', "wss://b.example/live"),
        ("https://a", 200, '{"url": "ws://b.example/live"}', None),
        ("https://a", 200, '{"url": 7}', None),
        ("https://a", 200, "[]", None),
        ("https://a", 200, "<html>", None),
        ("https://a", 404, '{"error": "none"}', None),
        ("https://a", 404, '{"url": "/v1/socket"}', None),
    ],
)
def test_a_server_says_where_its_socket_is(origin: str, status: int, body: str, url: str | None) -> None:
    answer = httpx.Response(status, text=body, request=httpx.Request("GET", f"{origin}/v1/socket"))
    assert socket.socket_url(answer) == url


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_say_where_its_socket_is_is_asked_again(status: int) -> None:
    answer = httpx.Response(status, request=httpx.Request("GET", "https://a/v1/socket"))
    with pytest.raises(httpx.HTTPStatusError):
        socket.socket_url(answer)
