"""Clients that request events and never read them: the server holds little for each, and frees it."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.wake.support import until
from tests.wake.test_hang_up import waiting

READERS = 200
#: 1,000 readers may take a server of 100 MB to 250 MB.
BYTES_A_READER = 150_000
MEGABYTE = 1024 * 1024
BODIES = {
    "application/json": b"["
    + b",".join(b'{"n":%d,"text":"%s"}' % (n, b"y" * 80) for n in range(20_000))
    + b"]",
    "text/plain": b"a line as logs have it\n" * 90_000,
    "application/octet-stream": bytes(range(256)) * 8192,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its event streams last for ten minutes, whether the client reads or not. It uses the C library's memory
    allocator, as with `make run` and in the container."""
    patience = {"SSE_SECONDS": "600", "STALL_SECONDS": "600", "PYTHONMALLOC": "malloc"}
    with running(tidemark_server("asgi", tmp_path_factory.mktemp("server"), **patience)) as server:
        yield server


def resident_bytes(server: Server) -> int:
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def send(server: Server, method: str, path: str, content_type: str, body: bytes = b"") -> bytes:
    headers = {"Content-Type": content_type}
    request = urllib.request.Request(server.base_url + path, body, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        content: bytes = answer.read()
    return content


def read_events(server: Server, path: str) -> bytes:
    """Reads until the stream's end."""
    with urllib.request.urlopen(f"{server.base_url}{path}?offset=-1&live=sse") as answer:
        content: bytes = answer.read()
    return content


@pytest.mark.parametrize("content_type", BODIES)
def test_the_server_does_not_keep_events_that_a_client_does_not_read(
    server: Server, content_type: str
) -> None:
    path = f"/v1/stream/unread/{content_type}"
    send(server, "PUT", path, content_type)
    for _ in range(6):
        send(server, "POST", path, content_type, BODIES[content_type])
    closing = urllib.request.Request(server.base_url + path, method="POST", headers={"Stream-Closed": "true"})
    urllib.request.urlopen(closing).close()
    assert b'"streamClosed":true' in read_events(server, path), "whatever is kept for all is kept by now"
    before = resident_bytes(server)
    with ExitStack() as stack:
        for _ in range(READERS):
            reader = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            reader.sendall(f"GET {path}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: waiting(server) == READERS)
        stalled = 0
        while stalled < (held := resident_bytes(server)):
            stalled = held
            assert waiting(server) == READERS, "none has been sent everything"
        assert held - before < READERS * BYTES_A_READER + 10 * MEGABYTE, (before, held)
    until(lambda: waiting(server) == 0)
    until(lambda: resident_bytes(server) < 1.2 * before)
