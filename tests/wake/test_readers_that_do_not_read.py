"""Clients that hang up while they wait, or request events and never read them, over real connections: the
server holds little for each, and frees it at once."""

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow

READERS = 200
#: 1,000 readers may take a server of 100 MB to 250 MB.
BYTES_A_READER = 150_000
MEGABYTE = 1024 * 1024
BODIES = {
    "application/json": b"[%s]" % b",".join(b'{"n":%d,"text":"%s"}' % (n, b"y" * 80) for n in range(20_000)),
    "text/plain": b"a line as logs have it\n" * 90_000,
    "application/octet-stream": bytes(range(256)) * 8192,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its live reads last for ten minutes, whether the client reads or not."""
    patience = dict.fromkeys(("LONG_POLL_SECONDS", "SSE_SECONDS", "STALL_SECONDS"), "600")
    made = tidemark_server("asgi", tmp_path_factory.mktemp("server"), **patience)
    with running(made) as server:
        yield server


def waiting(server: Server) -> int:
    metrics = ask(server, "GET", "/v1/metrics")
    found = re.search(rb"^tidemark_waiting (\d+)$", metrics, re.MULTILINE)
    assert found is not None
    return int(found[1])


def resident_bytes(server: Server) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def ask(server: Server, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    request = urllib.request.Request(server.base_url + path, body, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content


@contextmanager
def readers(server: Server, path: str, live: str, count: int, *, reset: bool = False) -> Iterator[None]:
    """So many connections, none of which reads. In the end they are closed, or reset."""
    made = [socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) for _ in range(count)]
    for reader in made:
        reader.sendall(f"GET {path}?offset=-1&live={live} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: waiting(server) == count)
    try:
        yield
    finally:
        for reader in made:
            if reset:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            reader.close()
    until(lambda: waiting(server) == 0)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_waiting_response_ends_with_its_connection(server: Server, live: str, reset: bool) -> None:
    path = f"/v1/stream/left-{live}-{reset}"
    ask(server, "PUT", path)
    with readers(server, path, live, 20, reset=reset):
        pass


@pytest.mark.parametrize("content_type", BODIES)
def test_the_server_keeps_no_events_that_a_client_does_not_read(server: Server, content_type: str) -> None:
    path, typed = f"/v1/stream/unread/{content_type}", {"Content-Type": content_type}
    ask(server, "PUT", path, b"", **typed)
    for _ in range(6):
        ask(server, "POST", path, BODIES[content_type], **typed)
    ask(server, "POST", path, None, **{"Stream-Closed": "true"})
    events = ask(server, "GET", f"{path}?offset=-1&live=sse")
    assert b'"streamClosed":true' in events, "whatever is kept for all is kept by now"
    before = resident_bytes(server)
    with readers(server, path, "sse", READERS):
        stalled = 0
        while stalled < (held := resident_bytes(server)):
            stalled = held
            assert waiting(server) == READERS, "none has been sent everything"
        assert held - before < READERS * BYTES_A_READER + 10 * MEGABYTE, (before, held)
    until(lambda: resident_bytes(server) < 1.2 * before)
