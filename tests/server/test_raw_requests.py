"""Bytes that no client library sends, to a running server, in both ways it runs: no 5xx, and no stack
trace."""

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.waiting import until

pytestmark = pytest.mark.slow

HEADERS = (
    b"Host: a:b:c", b"Host: [::1]:4437", b"Host: [::1", b"X: y", b"Host:", b"Host: a\r\nHost: b",
    b"Host: caf\xe9", b"Host: \xff\xfe\x80", b"Host: " + b"a" * 40_000, b"Host: a\r\nX-Forwarded-Port: x",
    b"Host: a\r\nX-Forwarded-For: ::,,", b"Host: a\r\nX-Forwarded-Proto: \xff",
    b"Host: a\r\nContent-Length: x", b"Host: a\r\nContent-Length: -1",
    b"Host: a\r\nContent-Length: " + b"9" * 5000, b"Host: a\r\nContent-Length: 1\r\nContent-Length: 2",
    b"Host: a\r\nTransfer-Encoding: x",
    b"Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13", b"Host: a\r\n: x",
    b"Host: a\r\nnonsense", b"Host: a\r\nCookie: \xff;;=",
)  # fmt: skip


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


@pytest.mark.parametrize("header", HEADERS)
def test_no_header_gives_a_5xx(server: Server, header: bytes) -> None:
    """But 501, where it asks for a transfer coding that nobody has to know (RFC 9112 §6.1)."""
    lines = b" /v1/stream/odd?offset=-1 HTTP/1.1\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    for method in (b"GET", b"PUT"):
        answer = ask(server, method + lines + header + b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
        assert status is not None, answer
        assert int(status[1]) < (502 if b"Transfer-Encoding" in header else 500), answer
    assert "Traceback" not in server.log_tail(1_000_000)


END = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
NOT_REQUESTS = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), "HTTP/0.9": b"GET /\r\n\r\n",
    "a method of its own": b"BREW /v1/stream/odd" + END, "CONNECT": b"CONNECT example.com:443" + END,
    "OPTIONS *": b"OPTIONS *" + END, "GET *": b"GET *" + END, "HEAD *": b"HEAD *" + END,
    "PUT *?": b"PUT *?x" + END, "CONNECT to a path": b"CONNECT /v1/stream/odd" + END,
    "an absolute URL without a path": b"GET http://a?x" + END,
    "an absolute URL": b"GET http://[::1/v1/stream/odd" + END,
    "a path in Latin-1": b"GET /v1/stream/\xff\xfe" + END,
    "a path of two slashes": b"GET //v1//stream" + END,
    "a control character in the path": b"GET /v1/\x1b[2J" + END,
    "a long path": b"GET /" + b"a" * 60_000 + END,
    "a chunk of no size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "a second request that is none": b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n",
    "every byte": bytes(range(256)) * 4,
}  # fmt: skip


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
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
    is_asgi = server.environment["VIA"] == "asgi"
    if is_asgi:
        until(lambda: "hung up before it had sent" in server.log_tail(1_000_000)[len(before) :])
        with urllib.request.urlopen(f"{server.base_url}/v1/metrics") as answer:
            metrics = answer.read().decode()
        assert not re.search(r'^tidemark_requests_total\{.*status="5', metrics, re.MULTILINE)
        assert re.search(r"^tidemark_faults_total 0$", metrics, re.MULTILINE)
    # A line of an earlier test's request may come only now, so only these are counted.
    said = server.log_tail(1_000_000)[len(before) :]
    assert said.count("hung up before it had sent") == is_asgi, said
    assert "Traceback" not in said
    assert not re.search(r" 5\d\d \d+ ms", said)
