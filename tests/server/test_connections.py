"""The server does not hold what it cannot serve: half-sent requests, unread responses and too many
connections, over real sockets. At its end, what is nearly done finishes, and what waits is ended in order."""

import asyncio
import json
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemark.http.streams import hang_up
from tidemark.server import Receive, Scope, Send, connections, http_server
from tidemark.server.connections import (
    MAX_HEAD_BYTES,
    TRIM_AFTER,
    TRIM_WAITS,
    FreedMemory,
    Limits,
    connections_within,
    raise_descriptor_limit,
)
from tidemark.server.http_server import GRACE_SECONDS, HEALTH_PATH, NotHealthy, serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of
from tidemark.settings import InvalidSetting

pytestmark = pytest.mark.slow

LONG = 3600.0
PATIENT = Limits(LONG, LONG, LONG, LONG, 1000)
GET = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"
MEGABYTE = bytes(1024 * 1024)


class Application:
    """`/endless` sends until its client is gone, `/slow` answers once it is released, `/stream` sends a chunk
    first; anything else is answered once its body is there."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.health = 200
        self.arrived, self.released, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.received = 0
        self.bodies: list[bytes] = []
        #: Of the last request, once it was answered.
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]  # A lifespan has none, and uvicorn goes on without.
        if path == HEALTH_PATH:
            await Response(b"", self.health)(scope, receive, send)
            return
        self.arrived.set()
        if path == "/endless":
            await self._endless(receive, send)
        elif path in {"/slow", "/stream"}:
            if path == "/stream":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"tide", "more_body": True})
            await self.released.wait()
            await Response(b"done")(scope, receive, send)
        else:
            await self._echo(scope, receive, send)
            self.scope = scope

    async def _endless(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(hang_up(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": MEGABYTE, "more_body": True})
            await asyncio.sleep(0)
        self.gone.set()

    async def _echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        try:
            async for piece in Request(scope, receive).stream():
                body += piece
                self.received = len(body)
        except ClientDisconnect:
            self.gone.set()
            return
        self.bodies.append(body)
        await Response(body)(scope, receive, send)


Scenario = Callable[[int, Application], Awaitable[Any]]


def play(
    scenario: Scenario,
    *,
    at_the_end: Callable[[Application], object] = lambda _: None,
    grace_seconds: float = GRACE_SECONDS,
    **limits: float,
) -> Any:
    """Runs the scenario beside a server with these limits; every other limit is an hour. A task that the
    scenario returns is awaited when the server has ended."""

    async def playing() -> Any:
        named = {name: getattr(PATIENT, name) for name in Limits.__dataclass_fields__} | limits
        application, stopping, ready = Application(SimpleNamespace(**named)), asyncio.Event(), asyncio.Event()
        with listening_socket(LOOPBACK, 0) as listener:
            port, of = port_of(listener), application.limits
            serving = asyncio.create_task(
                serve(application, listener, ready.set, stopping, of, grace_seconds=grace_seconds)
            )
            await ready.wait()
            result = await scenario(port, application)
            stopping.set()
            await until_refused(port)
            at_the_end(application)
            await serving
        return await result if isinstance(result, asyncio.Task) else result

    with patch.object(http_server, "spare_what_is_loaded") as spared:
        result = asyncio.run(playing())
    spared.assert_called_once_with()
    return result


async def until_refused(port: int) -> None:
    """Until the server, which has begun to end, takes no new connection."""
    while True:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)


async def ask(port: int, *pieces: bytes) -> bytes:
    """Everything that the server sends until it ends the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


async def begin(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A connection with the head of its first response."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(sent)
    return reader, writer, await reader.readuntil(b"\r\n\r\n")


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


async def until_read() -> None:
    """Until the server has accepted a connection and read what was sent: that takes this loop some rounds."""
    for _ in range(100):
        await asyncio.sleep(0)


def skip(seconds: float) -> None:
    """Move the clock of the loop."""
    loop: Any = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    caplog.set_level(logging.WARNING)
    yield
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


# --- requests that are none ---------------------------------------------------------------

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
NOT_HTTP = "This is not a valid HTTP/1.1 request; see RFC 9112"


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"nonsense\r\n\r\n", 400, NOT_HTTP),
        (b"\x00\xff" * 50, 400, NOT_HTTP),
        (b"GET / HTTP/9.9\r\n\r\n", 400, NOT_HTTP),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, NOT_HTTP),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "one Host header; this one has 0"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "one Host header; this one has 2"),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), 501, "chunked alone, got 'gzip, chunked'"),
        (CHUNKED.replace(b"1.1", b"1.0"), 400, "HTTP/1.0 has no Transfer-Encoding"),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "at most 65536 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * 12_000 + b"\r\n", 431, "at most 65536 bytes"),
        (CHUNKED + b"1\r\nx\r\n0\r\nContent-Length: 3\r\n\r\n", 400, NOT_HTTP),
        (CHUNKED + b"1\r\nx\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, NOT_HTTP),
        # In one packet. The application reads afterwards, and must not answer `100 Continue`.
        (CHUNKED.replace(b"Host", b"Expect: 100-continue\r\nHost") + b"zz\r\n", 400, NOT_HTTP),
    ],
)
def test_what_rfc_9112_has_a_server_refuse_gets_a_sentence(sent: bytes, status: int, said: str) -> None:
    answered, headers, body = parsed(play(lambda port, _: ask(port, sent)))
    assert (answered, headers["connection"]) == (status, "close")
    assert said in body["error"]


@pytest.mark.parametrize(
    ("target", "url", "host"),
    [
        (b"http://tide:4437/a?x=http://b", (b"/a", b"x=http://b"), b"tide:4437"),
        (b"HTTPS://tide?x", (b"/", b"x"), b"tide"),
        (b"http://[::1]:80", (b"/", b""), b"[::1]:80"),
        (b"http://me:secret@tide//b", (b"//b", b""), b"tide"),
        (b"/http://b/c", (b"/http://b/c", b""), b"a"),
    ],
)
def test_a_target_url_means_its_path_and_host(target: bytes, url: tuple[bytes, bytes], host: bytes) -> None:
    """RFC 9112 §3.2.2. The Host header is ignored, so that checks of the host are made with this one."""

    async def scenario(port: int, application: Application) -> Scope:
        await ask(port, b"GET " + target + b" HTTP/1.1\r\nHost: a\r\nX: y\r\nConnection: close\r\n\r\n")
        return application.scope

    scope = play(scenario)
    assert (scope["path"].encode(), scope["raw_path"], scope["query_string"]) == (url[0], *url)
    assert scope["headers"] == [(b"host", host), (b"x", b"y"), (b"connection", b"close")]


def test_https_to_the_http_port_logs_one_line_and_ends(capfd: pytest.CaptureFixture[str]) -> None:
    """The client gets no response: it could only read one in TLS."""

    async def scenario(port: int, _: Application) -> None:
        context = ssl.create_default_context()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(LOOPBACK, port, ssl=context, server_hostname="localhost")

    play(scenario)
    said = capfd.readouterr().err
    assert said.count("A client spoke https to this port, which speaks http: use an http:// address") == 1


@pytest.mark.parametrize(
    "body", [[b"3\r\n\x16\x03\x01\r\n"], [b"1\r\nx\r\n"] * 20_000], ids=["as a TLS handshake", "many chunks"]
)
def test_a_body_is_taken_whatever_it_begins_with_and_however_small_its_chunks(body: list[bytes]) -> None:
    head = CHUNKED.replace(b"Host", b"Connection: close\r\nHost")
    answer = play(lambda port, _: ask(port, head, *body, b"0\r\n\r\n"))
    assert answer.endswith(b"".join(chunk[3:-2] for chunk in body))


#: Each means something in a header section, and nothing in the trailer section of a body (RFC 9110 §6.5.1).
TRAILER = (
    b"Authorization: Bearer t\r\nX-Tidemark-Authorization: Bearer t\r\nX-Tidemark-Edge: secret\r\n"
    b"X-Tidemark-Path: /v1/stream/other\r\nHost: evil\r\nStream-Closed: true\r\nProducer-Id: p\r\n"
    b"If-Match: 1\r\nStream-TTL: 1\r\nStream-Forked-From: /v1/stream/other\r\n"
    b"Content-Type: application/json\r\nExpect: 100-continue\r\nOrigin: http://evil\r\n"
)


@pytest.mark.parametrize("is_one_read", [True, False], ids=["in one read", "byte by byte"])
def test_a_trailer_field_is_no_header(is_one_read: bool) -> None:
    """Whether it arrives before the application runs or after. The request behind it has its own headers."""
    post = CHUNKED + b"1\r\nx\r\n0\r\n" + TRAILER + b"\r\n"

    async def scenario(port: int, application: Application) -> tuple[Any, Any, Any]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [post] if is_one_read else [post[at : at + 1] for at in range(len(post))]:
            writer.write(piece)
            await asyncio.sleep(0)
        answer = await reader.readuntil(b"\r\n\r\n")
        seen = application.scope["headers"]
        writer.write(b"GET / HTTP/1.1\r\nhost: t\r\nx-own: 1\r\nconnection: close\r\n\r\n")
        await reader.read()
        writer.close()
        return seen, answer, application.scope["headers"]

    seen, answer, later = play(scenario)
    assert answer.startswith(b"HTTP/1.1 200")
    assert seen == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
    assert (b"x-own", b"1") in later


@pytest.mark.parametrize(
    "sent",
    [GET[:5], GET[:-2] + b"X-Long: ", CHUNKED + b"1\r\nx\r\n0\r\nX-Long: ", CHUNKED + b"1;"],
    ids=["target", "header", "trailer", "chunk extension"],
)
def test_what_has_no_end_is_not_held(sent: bytes) -> None:
    """No time limit ends it here, and each read would copy what has been read before."""

    async def scenario(port: int, application: Application) -> tuple[bytes, list[bytes]]:
        return await trickle(port, sent, b"x" * 10_000), application.bodies

    answer, bodies = play(scenario)
    assert (parsed(answer)[0], bodies) == (431, [])


async def trickle(port: int, sent: bytes, more: bytes) -> bytes:
    """The answer to a client that goes on sending until it has one."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(sent)
    answering = asyncio.create_task(reader.read())
    while not answering.done():
        writer.write(more)
        await asyncio.sleep(0.01)
    writer.close()
    return await answering


# --- requests and responses that do not go on ---------------------------------------------


HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n"
NO_HEADERS = f"The request's headers did not arrive within {LONG:.0f} s"
NO_BODY = f"No more of the request's body arrived for {LONG:.0f} s"


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"G", NO_HEADERS),
        (b"GET / HTTP/1.1\r\n", NO_HEADERS),
        (b"GET / HTTP/1.1\r\nhost: t\r\nx-long: " + b"x" * 5000, NO_HEADERS),
        (HALF_A_BODY, NO_BODY),
        (HALF_A_BODY + b"half", NO_BODY),
        # Without a request there is nothing to respond to.
        (b"", None),
        (b"\r\n", None),
    ],
    ids=["method", "line", "header", "no body", "half a body", "nothing", "an empty line"],
)
def test_half_a_request_gets_408_and_the_connection_ends(sent: bytes, error: str | None) -> None:
    """The application is told of the disconnect, if it has the request already."""

    async def scenario(port: int, application: Application) -> bytes:
        asking = asyncio.create_task(ask(port, sent))
        await until_read()
        skip(LONG)
        answer = await asking
        if error == NO_BODY:
            await application.gone.wait()
        return answer

    answer = play(scenario)
    if error is None:
        assert answer == b""
    else:
        status, headers, body = parsed(answer)
        assert (status, headers["connection"], body) == (408, "close", {"error": error})


def test_slow_headers_do_not_get_more_time() -> None:
    async def scenario(port: int, _application: Application) -> bytes:
        answering = asyncio.create_task(trickle(port, GET[:-4], b"x"))
        for _ in range(2):
            await until_read()
            skip(LONG / 2)
            await asyncio.sleep(0.05)  # Some more come.
        return await answering

    assert parsed(play(scenario))[0] == 408


def test_the_time_for_headers_begins_with_each_request_and_not_before_it() -> None:
    """A connection is usable after a pause; what is half-sent then gets 408, too."""

    async def scenario(port: int, application: Application) -> tuple[bytes, bytes]:
        reader, writer, _ = await begin(port, GET)
        skip(LONG - 1)
        writer.write(GET)
        second = await reader.readuntil(b"\r\n\r\n")
        writer.write(GET[:10])
        await until_read()
        skip(60)
        third = await reader.read()
        writer.close()
        return second, third

    second, third = play(scenario, header_seconds=60, body_seconds=60, keep_alive_seconds=2 * LONG)
    assert second.startswith(b"HTTP/1.1 200")
    assert parsed(third)[0] == 408


def test_a_body_that_goes_on_arriving_has_no_time_limit() -> None:

    async def scenario(port: int, application: Application) -> list[bytes]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 15\r\n\r\n")
        for number in range(15):
            writer.write(b"x")
            while application.received <= number:  # noqa: ASYNC110 - it is counted, not told
                await asyncio.sleep(0)
            skip(50)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return application.bodies

    assert play(scenario, body_seconds=60) == [b"x" * 15]


def test_a_response_that_the_client_does_not_read_ends() -> None:
    async def scenario(port: int, application: Application) -> None:
        _, writer = await asyncio.open_connection(LOOPBACK, port, limit=1)
        writer.write(GET.replace(b"/ ", b"/endless "))
        await application.gone.wait()
        writer.transport.abort()

    play(scenario, send_seconds=0.3)


def test_a_connection_over_the_limit_gets_503_with_retry_after() -> None:
    """Existing connections go on; when one ends, a new one is accepted."""

    async def scenario(port: int, application: Application) -> list[bytes]:
        held = [await begin(port, GET) for _ in range(5)]
        refused = [await ask(port, GET) for _ in range(3)]
        reader, writer, _ = held[0]
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        answer = b"503"
        while b"503" in answer:
            answer = await ask(port, GET.replace(b"host", b"connection: close\r\nhost"))
        for _, each, _ in held:
            each.close()
        return [*refused, answer]

    *refused, served = play(scenario, max_connections=5)
    for answer in refused:
        status, headers, body = parsed(answer)
        assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert body == {"error": "Too many connections; try again in 5 s"}
    assert served.startswith(b"HTTP/1.1 200")


def test_a_response_says_how_long_its_connection_is_kept() -> None:
    """An answer of unknown length to HTTP/1.0, which knows no chunks, ends with the connection."""

    async def scenario(port: int, _: Application) -> tuple[bytes, bytes, bytes]:
        reader, writer, kept = await begin(port, GET)
        writer.close()
        reader, writer, head = await begin(port, b"GET /endless HTTP/1.0\r\n\r\n")
        body = await reader.readexactly(2 * len(MEGABYTE))
        writer.close()
        return kept, head.lower(), body

    kept, head, body = play(scenario, keep_alive_seconds=Limits().keep_alive_seconds)
    assert b"\r\nkeep-alive: timeout=75\r\n" in kept
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert b"keep-alive" not in head
    assert body == 2 * MEGABYTE


# --- the end of the server ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "at_the_end", "answer"),
    [
        ("/slow", lambda application: application.released.set(), (200, b"done")),
        ("/slow", lambda _: None, (503, b"")),
        # It ends with its last chunk, so the client knows that it is complete.
        ("/stream", lambda _: None, (200, b"4\r\ntide\r\n0\r\n\r\n")),
    ],
    ids=["nearly done", "waiting", "streaming"],
)
def test_at_the_end_a_request_in_flight_is_finished_and_one_that_waits_is_ended(
    path: str,
    at_the_end: Callable[[Application], object],
    answer: tuple[int, bytes],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A commit that is under way at that moment is still acknowledged. Nothing is logged."""

    async def scenario(port: int, application: Application) -> asyncio.Task[bytes]:
        sent = f"GET {path} HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n".encode()
        asking = asyncio.create_task(ask(port, sent))
        await application.arrived.wait()
        return asking

    got = play(scenario, at_the_end=at_the_end, grace_seconds=LONG if answer == (200, b"done") else 0.2)
    assert (int(got.split(b" ", 2)[1]), got.split(b"\r\n\r\n", 1)[1]) == answer
    assert capfd.readouterr() == ("", "")


def test_the_server_ends_although_a_client_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as client:

        async def scenario(port: int, application: Application) -> None:
            client.connect((LOOPBACK, port))
            client.sendall(GET.replace(b"/ ", b"/endless "))
            await application.arrived.wait()

        play(scenario)
    assert_no_backstop(caplog)


def assert_no_backstop(caplog: pytest.LogCaptureFixture) -> None:
    said = [record for record in caplog.records if record.name.startswith(("uvicorn", "tidemark"))]
    assert said == [], "nothing had to be cut off by the backstop"


def test_a_server_that_is_not_healthy_does_not_become_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "READY_SECONDS", 0.2)
    monkeypatch.setattr(http_server, "spare_what_is_loaded", lambda: None)

    async def scenario() -> None:
        application = Application(PATIENT)
        application.health = 503
        with listening_socket(LOOPBACK, 0) as listener:
            await serve(application, listener, pytest.fail, asyncio.Event())

    with pytest.raises(NotHealthy, match="responds with 503"):
        asyncio.run(scenario())


# --- limits and memory ----------------------------------------------------------------------


def test_the_descriptor_limit_is_raised_as_far_as_allowed_and_limits_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each connection may need a second descriptor, to storage."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert raise_descriptor_limit() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == connections.MOST_DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert raise_descriptor_limit() == 4096
    assert made == [(4096, 4096), (connections.MOST_DESCRIPTORS, resource.RLIM_INFINITY)]
    within = [connections_within(Limits(max_connections=500), most) for most in (10_000, 256, 10)]
    assert within == [500, 96, 1]


@pytest.mark.parametrize("rounds", [3, TRIM_WAITS], ids=["they stop ending", "they never stop ending"])
def test_freed_memory_is_returned_once_no_more_connections_end_or_after_so_many_waits(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Not while connections still end: the memory of the last ones would be kept."""
    returned: list[bool] = []
    waiting: list[Callable[[], object]] = []
    collector = SimpleNamespace(collect=lambda: returned.append(True))
    monkeypatch.setattr("tidemark.server.connections.gc", collector)
    freed, loop = FreedMemory(), Mock()
    loop.call_later = lambda _seconds, call, *given: waiting.append(partial(call, *given))
    for _ in range(TRIM_AFTER - 1):
        freed.ended(loop)
    assert not waiting, "so few are not worth it"
    for _ in range(rounds):
        for _ in range(TRIM_AFTER):
            freed.ended(loop)
        waiting.pop()()
        assert not returned
    if rounds == TRIM_WAITS:
        freed.ended(loop)
    waiting.pop()()
    assert (returned, waiting) == ([True], [])


def test_limits_come_from_the_environment() -> None:
    assert Limits.from_environment({"STALL_SECONDS": "7", "KEEP_ALIVE_SECONDS": "12"}) == Limits(
        header_seconds=7, body_seconds=7, send_seconds=7, keep_alive_seconds=12
    )
    for value in ("x", "0", "-1", "nan", "inf"):
        with pytest.raises(InvalidSetting, match="STALL_SECONDS must be a number above 0"):
            Limits.from_environment({"STALL_SECONDS": value})
