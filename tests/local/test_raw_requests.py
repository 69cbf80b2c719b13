"""Bytes that no client library sends, to a running server, in both ways it runs: no 5xx, and no stack
trace."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.local.polling import wait_until

HEADERS = {
    "Host with two colons": b"Host: a:b:c",
    "Host of IPv6": b"Host: [::1]:4437",
    "Host with an open bracket": b"Host: [::1",
    "no Host": b"X: y",
    "empty Host": b"Host:",
    "two Hosts": b"Host: a\r\nHost: b",
    "Host in Latin-1": b"Host: caf\xe9",
    "Host of no encoding": b"Host: \xff\xfe\x80",
    "large Host": b"Host: " + b"a" * 40_000,
    "X-Forwarded-Port": b"Host: a\r\nX-Forwarded-Port: x",
    "X-Forwarded-For": b"Host: a\r\nX-Forwarded-For: ::,,",
    "X-Forwarded-Proto": b"Host: a\r\nX-Forwarded-Proto: \xff",
    "Content-Length: x": b"Host: a\r\nContent-Length: x",
    "Content-Length: -1": b"Host: a\r\nContent-Length: -1",
    "Content-Length of many digits": b"Host: a\r\nContent-Length: " + b"9" * 5000,
    "two Content-Lengths": b"Host: a\r\nContent-Length: 1\r\nContent-Length: 2",
    "Transfer-Encoding": b"Host: a\r\nTransfer-Encoding: x",
    "Upgrade": b"Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13",
    "a header without a name": b"Host: a\r\n: x",
    "a header without a colon": b"Host: a\r\nnonsense",
    "Cookie": b"Host: a\r\nCookie: \xff;;=",
}


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Any Host: without keys, others than loopback names do not get as far as the application.
    settings = {"STALL_SECONDS": "2", "ALLOW_ANONYMOUS": "true"}
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("server"), **settings)) as server:
        yield server


def ask(server: Server, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(sent)
        answer = b""
        with suppress(ConnectionResetError):  # The server has not read everything that was sent.
            while piece := connection.recv(65536):
                answer += piece
    return answer


@pytest.mark.parametrize("method", [b"GET", b"POST", b"PUT"])
@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_no_header_gives_a_5xx(server: Server, method: bytes, header: bytes) -> None:
    """But 501, where it asks for a transfer coding that nobody has to know (RFC 9112 §6.1)."""
    lines = b" /v1/stream/odd?offset=-1 HTTP/1.1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    answer = ask(server, method + lines + header + b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert status is not None, answer
    assert int(status[1]) < (502 if b"Transfer-Encoding" in header else 500), answer
    assert "Traceback" not in server.log_tail(1_000_000)


def test_trailer_fields_do_not_act(server: Server) -> None:
    """In one read, so that they are there before the application runs."""
    fields = b"Host: evil\r\nStream-Closed: true\r\nContent-Type: application/json\r\nStream-TTL: 1\r\n"
    head = (
        b"PUT /v1/stream/trailed HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = ask(server, head + b"1\r\nx\r\n0\r\n" + fields + b"\r\n").lower()
    assert answer.startswith(b"http/1.1 201 "), answer
    assert b"\r\nlocation: http://localhost/v1/stream/trailed\r\n" in answer
    assert b"\r\ncontent-type: text/plain\r\n" in answer
    assert b"stream-closed: true" not in answer
    assert b"stream-ttl" not in answer


NOT_REQUESTS = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "a method of its own": b"BREW /v1/stream/odd HTTP/1.1\r\nHost: a\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "an absolute URL": b"GET http://[::1/v1/stream/odd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "a path in Latin-1": b"GET /v1/stream/\xff\xfe HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "a path of two slashes": b"GET //v1//stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "a control character in the path": b"GET /v1/\x1b[2J HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "a long path": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "a chunk of no size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "a second request that is none": b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n",
    "zeros": bytes(1000),
    "every byte": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("sent", NOT_REQUESTS.values(), ids=NOT_REQUESTS)
def test_no_bytes_give_a_traceback_or_a_5xx(server: Server, sent: bytes) -> None:
    """Any bytes get a response below 500, or the end of the connection; at most one line is logged. (The line
    of the test before may come only now.)"""
    before = len(server.log_tail(1_000_000))
    answer = ask(server, sent)
    assert all(int(status) < 500 for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)), answer
    said = server.log_tail(1_000_000)[before:]
    assert "Traceback" not in said
    assert said.count("\n") <= 2, said


@pytest.mark.parametrize("body", [b"", b"half"])
def test_a_client_that_hangs_up_in_the_middle_of_its_body(server: Server, body: bytes) -> None:
    """The server is not at fault: one line in its log, and no 5xx in its metrics."""
    head = (
        b"POST /v1/stream/odd HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 99\r\n\r\n"
    )
    before = server.log_tail(1_000_000)
    ask_and_leave(server, head + body)
    is_asgi = server.environment["VIA"] == "asgi"
    if is_asgi:
        wait_until(
            lambda: "hung up before it had sent" in server.log_tail(1_000_000)[len(before) :], "a line"
        )
        with urllib.request.urlopen(f"{server.base_url}/v1/metrics") as answer:
            metrics = answer.read().decode()
        assert not re.search(r'^tidemark_requests_total\{.*status="5', metrics, re.MULTILINE)
        assert re.search(r"^tidemark_faults_total 0$", metrics, re.MULTILINE)
    # A line of an earlier test's request may come only now, so only these are counted.
    said = server.log_tail(1_000_000)[len(before) :]
    assert said.count("hung up before it had sent") == is_asgi, said
    assert "Traceback" not in said
    assert not re.search(r" 5\d\d \d+ ms", said)


def ask_and_leave(server: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(sent)
