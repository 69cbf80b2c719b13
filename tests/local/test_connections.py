"""The server does not hold what it cannot serve: half-sent requests, unread responses and too many
connections, over real sockets."""

from __future__ import annotations

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

import pytest

from tests.local.polling import DEADLINE_SECONDS
from tests.local.test_server import _answer, _live, _until_refused
from tidemark.server import Message, Receive, Scope, Send, connections
from tidemark.server.connections import (
    MAX_HEAD_BYTES,
    TRIM_AFTER,
    TRIM_WAITS,
    FreedMemory,
    InvalidLimit,
    Limits,
    connections_within,
    raise_descriptor_limit,
)
from tidemark.server.http_server import HEALTH_PATH, serve
from tidemark.server.ports import LOOPBACK, listening_socket, port_of

LONG = 3600.0
PATIENT = Limits(LONG, LONG, LONG, LONG, 1000)
GET = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"
MEGABYTE = bytes(1024 * 1024)


class Application:
    """`/endless` sends until its client is gone; anything else is answered once its body is there."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.bodies: list[bytes] = []
        #: Of the last request, once it was answered.
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["path"] == HEALTH_PATH:
            await _answer(send, 200, b"")
        elif scope["path"] == "/endless":
            await self._endless(receive, send)
        else:
            await self._echo(receive, send)
            self.headers = scope["headers"]

    async def _endless(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(self._until_gone(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": MEGABYTE, "more_body": True})
            await asyncio.sleep(0)
        self.gone.set()

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _echo(self, receive: Receive, send: Send) -> None:
        body = b""
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return
            body += message.get("body", b"")
        self.bodies.append(body)
        await _answer(send, 200, body)


Scenario = Callable[[int, Application], Awaitable[Any]]


def play(scenario: Scenario, **limits: float) -> Any:
    """Runs the scenario beside a server with these limits; every other limit is an hour."""

    async def playing() -> Any:
        application, stopping, ready = Application(), asyncio.Event(), asyncio.Event()
        named = {name: getattr(PATIENT, name) for name in Limits.__dataclass_fields__} | limits
        with listening_socket(LOOPBACK, 0) as listener:
            port = port_of(listener)
            serving = asyncio.create_task(serve(application, listener, ready.set, stopping, Limits(**named)))
            await ready.wait()
            result = await scenario(port, application)
            stopping.set()
            await _until_refused(port)
            await serving
        return result

    return asyncio.run(asyncio.wait_for(playing(), DEADLINE_SECONDS))


async def ask(port: int, *pieces: bytes) -> bytes:
    """Everything that the server sends until it ends the connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def parsed(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


@pytest.fixture(autouse=True)
def _no_traceback(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    caplog.set_level(logging.WARNING)
    yield
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "sent", [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: t\r\nx-long: " + b"x" * 5000]
)
def test_half_sent_headers_get_408_and_the_connection_ends(sent: bytes) -> None:
    async def scenario(port: int, _: Application) -> bytes:
        return await ask(port, sent)

    status, headers, body = parsed(play(scenario, header_seconds=0.2))
    assert (status, headers["connection"]) == (408, "close")
    assert body == {"error": "The request's headers did not arrive within 0.2 s"}


def test_https_to_the_http_port_logs_one_line_and_ends_the_connection(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The client gets no response: it could only read one in TLS."""

    async def scenario(port: int, _: Application) -> str:
        context = ssl.create_default_context()
        with pytest.raises((ssl.SSLError, ConnectionError)) as refused:
            await asyncio.open_connection(LOOPBACK, port, ssl=context, server_hostname="localhost")
        return str(refused.value)

    play(scenario)
    said = capfd.readouterr().err
    assert said.count("A client spoke https to this port, which speaks http: use an http:// address") == 1


def test_a_body_may_begin_with_the_byte_of_a_tls_handshake() -> None:
    async def scenario(port: int, application: Application) -> list[bytes]:
        head = b"POST / HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: 3\r\n\r\n"
        await ask(port, head, b"\x16\x03\x01")
        return application.bodies

    assert play(scenario) == [b"\x16\x03\x01"]


@pytest.mark.parametrize(
    "sent",
    [b"nonsense\r\n\r\n", b"\x00\xff" * 50, b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)
def test_bytes_that_are_not_http_get_400_and_a_sentence(sent: bytes) -> None:
    async def scenario(port: int, _: Application) -> bytes:
        return await ask(port, sent)

    status, headers, body = parsed(play(scenario))
    assert (status, headers["connection"]) == (400, "close")
    assert body == {"error": "This is not a valid HTTP/1.1 request; see RFC 9112"}


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "one Host header; this one has 0"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "one Host header; this one has 2"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
            "chunked alone, got 'gzip, chunked'",
        ),
        (b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "at most 65536 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * 12_000 + b"\r\n", 431, "at most 65536 bytes"),
    ],
)
def test_what_rfc_9112_has_a_server_refuse_is_refused(sent: bytes, status: int, said: str) -> None:
    answered, _, body = parsed(play(lambda port, _: ask(port, sent)))
    assert (answered, said in body["error"]) == (status, True), body


#: Each means something in a header section, and nothing in the trailer section of a body (RFC 9110 §6.5.1).
MEANINGFUL = [
    b"Authorization: Bearer t",
    b"X-Tidemark-Authorization: Bearer t",
    b"X-Tidemark-Edge: secret",
    b"X-Tidemark-Path: /v1/stream/other",
    b"Host: evil",
    b"Stream-Closed: true",
    b"Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: 0",
    b"If-Match: 1",
    b"Stream-TTL: 1",
    b"Stream-Forked-From: /v1/stream/other",
    b"Content-Type: application/json",
    b"Expect: 100-continue",
    b"Origin: http://evil",
]


@pytest.mark.parametrize("is_one_read", [True, False], ids=["in one read", "byte by byte"])
@pytest.mark.parametrize("trailer", MEANINGFUL, ids=lambda fields: fields.partition(b":")[0].decode())
def test_a_trailer_field_is_no_header(trailer: bytes, *, is_one_read: bool) -> None:
    """Whether it arrives before the application runs or after. The request behind it has its own headers."""
    post = (
        b"POST / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        + trailer
        + b"\r\n\r\n"
    )
    after = b"GET / HTTP/1.1\r\nhost: t\r\nx-own: 1\r\nconnection: close\r\n\r\n"

    async def scenario(port: int, application: Application) -> tuple[Any, Any, Any]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in [post] if is_one_read else [post[at : at + 1] for at in range(len(post))]:
            writer.write(piece)
            await asyncio.sleep(0)
        answer = await reader.readuntil(b"\r\n\r\n")
        seen = application.headers
        writer.write(after)
        await reader.read()
        writer.close()
        return seen, answer, application.headers

    seen, answer, later = play(scenario)
    assert answer.startswith(b"HTTP/1.1 200")
    assert seen == [(b"host", b"t"), (b"transfer-encoding", b"chunked")]
    assert (b"x-own", b"1") in later


@pytest.mark.parametrize("trailer", [b"Content-Length: 3", b"Transfer-Encoding: chunked"])
def test_a_trailer_field_of_framing_is_refused(trailer: bytes) -> None:
    async def scenario(port: int, application: Application) -> tuple[bytes, list[bytes]]:
        head = b"POST / HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = await ask(port, head + b"1\r\nx\r\n0\r\n" + trailer + b"\r\n\r\n")
        return answer, application.bodies

    answer, bodies = play(scenario)
    assert (parsed(answer)[0], bodies) == (400, [])


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: ",
        CHUNKED + b"1\r\nx\r\n0\r\nX-Long: ",
        CHUNKED + b"1;",
    ],
    ids=["target", "header", "trailer", "chunk extension"],
)
def test_what_has_no_end_is_not_held(sent: bytes) -> None:
    """No time limit ends it here, and each read would copy what has been read before."""

    async def scenario(port: int, application: Application) -> tuple[bytes, list[bytes]]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(sent)
        answering = asyncio.create_task(reader.read())
        while not answering.done():
            writer.write(b"x" * 10_000)
            await asyncio.sleep(0.01)
        writer.close()
        return await answering, application.bodies

    answer, bodies = play(scenario)
    assert (parsed(answer)[0], bodies) == (431, [])


def test_a_body_of_many_small_chunks_is_not_counted() -> None:
    async def scenario(port: int, application: Application) -> list[bytes]:
        await ask(
            port,
            CHUNKED.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
            *[b"1\r\nx\r\n"] * 20_000,
            b"0\r\n\r\n",
        )
        return application.bodies

    assert play(scenario) == [b"x" * 20_000]


def test_a_bad_chunk_behind_expect_100_continue_gets_400_alone() -> None:
    """In one packet. The application reads afterwards, and must not answer `100 Continue`."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parsed(play(lambda port, _: ask(port, head + b"zz\r\n")))[0] == 400


def test_an_answer_of_unknown_length_to_http_1_0_ends_with_the_connection() -> None:
    """HTTP/1.0 knows no chunks; and it is promised no connection that is kept."""

    async def stream(port: int, _: Application) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"GET /endless HTTP/1.0\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(2 * len(MEGABYTE))
        writer.close()
        return head, body

    head, body = play(stream)
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert b"keep-alive" not in head
    assert body == 2 * MEGABYTE


def test_slow_headers_do_not_get_more_time() -> None:
    async def scenario(port: int, _: Application) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GET[:-4])
        answering = asyncio.create_task(reader.read())
        while not answering.done():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()
        return await answering

    assert parsed(play(scenario, header_seconds=0.3))[0] == 408


@pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "an empty line"])
def test_a_connection_without_a_request_ends_without_a_response(sent: bytes) -> None:
    async def scenario(port: int, _: Application) -> bytes:
        return await ask(port, sent)

    assert play(scenario, header_seconds=0.2) == b""


def test_the_time_for_headers_begins_again_with_each_request() -> None:
    """The second request on a connection may be half-sent, too."""

    async def scenario(port: int, _: Application) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(GET[:10])
        answer = await reader.read()
        writer.close()
        return answer

    assert parsed(play(scenario, header_seconds=0.5))[0] == 408


@pytest.mark.parametrize("sent", [b"", b"half"])
def test_half_a_body_gets_408_and_the_application_is_told_of_the_disconnect(sent: bytes) -> None:
    async def scenario(port: int, application: Application) -> bytes:
        answer = await ask(port, b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n" + sent)
        await application.gone.wait()
        return answer

    status, _, body = parsed(play(scenario, body_seconds=0.2))
    assert (status, body) == (408, {"error": "No more of the request's body arrived for 0.2 s"})


def test_a_body_that_goes_on_arriving_has_no_time_limit() -> None:
    """The limit is for the pause between two pieces, which is far shorter here."""

    async def scenario(port: int, application: Application) -> list[bytes]:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 15\r\n\r\n")
        for _ in range(15):
            writer.write(b"x")
            await asyncio.sleep(0.5)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return application.bodies

    assert play(scenario, body_seconds=6) == [b"x" * 15]


def test_a_response_that_the_client_does_not_read_ends() -> None:
    async def scenario(port: int, application: Application) -> None:
        _, writer = await asyncio.open_connection(LOOPBACK, port, limit=1)
        writer.write(GET.replace(b"/ ", b"/endless "))
        await application.gone.wait()
        writer.transport.abort()

    play(scenario, send_seconds=0.3)


def test_the_server_ends_without_waiting_for_a_client_that_does_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as client:

        async def scenario(port: int, _: Application) -> None:
            client.connect((LOOPBACK, port))
            client.sendall(GET.replace(b"/ ", b"/endless "))
            await asyncio.sleep(0.3)

        play(scenario)
    said = [record for record in caplog.records if record.name.startswith(("uvicorn", "tidemark"))]
    assert said == [], "nothing had to be cut off by the backstop"


def test_a_connection_over_the_limit_gets_503_with_retry_after() -> None:
    """Existing connections go on; when one ends, a new one is accepted."""

    async def scenario(port: int, application: Application) -> list[bytes]:
        held = [await asyncio.open_connection(LOOPBACK, port) for _ in range(5)]
        for reader, writer in held:
            writer.write(GET)
            await reader.readuntil(b"\r\n\r\n")
        refused = [await ask(port, GET) for _ in range(3)]
        reader, writer = held[0]
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        answer = b"503"
        while b"503" in answer:
            answer = await ask(port, GET.replace(b"host", b"connection: close\r\nhost"))
        for _, writer in held:
            writer.close()
        return [*refused, answer]

    *refused, served = play(scenario, max_connections=5)
    for answer in refused:
        status, headers, body = parsed(answer)
        assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert body == {"error": "Too many connections; try again in 5 s"}
    assert served.startswith(b"HTTP/1.1 200")


def test_a_keep_alive_response_says_for_how_long() -> None:
    async def scenario(port: int, _: Application) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert b"\r\nkeep-alive: timeout=75\r\n" in play(scenario, keep_alive_seconds=75)
    assert Limits().keep_alive_seconds == 75


def test_a_connection_is_usable_after_a_pause() -> None:
    """The limits for half a request do not count between two requests."""

    async def scenario(port: int, _: Application) -> bytes:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1)
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return head

    assert play(scenario, header_seconds=0.4, body_seconds=0.4).startswith(b"HTTP/1.1 200")


def test_file_descriptors_limit_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection may need a second descriptor, to storage."""
    assert connections_within(Limits(max_connections=500), 10_000) == 500
    assert connections_within(Limits(max_connections=500), 256) == 96
    assert connections_within(Limits(max_connections=500), 10) == 1


def test_the_descriptor_limit_is_raised_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert raise_descriptor_limit() == 4096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == connections.MOST_DESCRIPTORS
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert raise_descriptor_limit() == 4096
    assert asked == [(4096, 4096), (connections.MOST_DESCRIPTORS, resource.RLIM_INFINITY)]


class Clock:
    """A loop's `call_later`, whose time the test moves."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_later(self, _seconds: float, call: Callable[..., object], *arguments: object) -> None:
        self.waiting.append(partial(call, *arguments))

    def pass_by(self) -> None:
        due, self.waiting = self.waiting, []
        for call in due:
            call()


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry each time that freed memory is returned to the system."""
    times: list[str] = []
    collector = SimpleNamespace(collect=lambda: times.append("returned"))
    monkeypatch.setattr("tidemark.server.connections.gc", collector)
    return times


def end_connections(freed: FreedMemory, clock: Any, count: int) -> None:
    for _ in range(count):
        freed.ended(clock)


def test_freed_memory_is_returned_once_no_more_connections_end(given_back: list[str]) -> None:
    """Not while connections still end: the memory of the last ones would be kept."""
    freed, clock = FreedMemory(), Clock()
    end_connections(freed, clock, TRIM_AFTER - 1)
    assert not clock.waiting, "so few are not worth it"
    for _ in range(3):
        end_connections(freed, clock, TRIM_AFTER)
        clock.pass_by()
        assert not given_back
    clock.pass_by()
    assert given_back == ["returned"]
    assert not clock.waiting


def test_freed_memory_is_returned_even_if_connections_never_stop_ending(given_back: list[str]) -> None:
    freed, clock = FreedMemory(), Clock()
    end_connections(freed, clock, TRIM_AFTER)
    for _ in range(TRIM_WAITS + 1):
        end_connections(freed, clock, 1)
        clock.pass_by()
    assert given_back == ["returned"]


def test_limits_come_from_the_environment() -> None:
    assert Limits.from_environment({"STALL_SECONDS": "7", "MAX_CONNECTIONS": "12"}) == Limits(
        header_seconds=7, body_seconds=7, send_seconds=7, max_connections=12
    )
    for value in ("x", "0", "-1", "nan", "inf"):
        with pytest.raises(InvalidLimit, match="STALL_SECONDS must be a number above 0"):
            Limits.from_environment({"STALL_SECONDS": value})
