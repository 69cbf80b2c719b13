"""Readers that hang up, over real connections: the server ends their responses at once, long before their
time is over. `test_trigger.py` counts that nothing is read for them from then on."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.wake.support import PATIENCE_SECONDS, until

READERS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its long-polls would wait for ten minutes."""
    directory = tmp_path_factory.mktemp("server")
    with running(tidemark_server("asgi", directory, LONG_POLL_SECONDS="600", SSE_SECONDS="600")) as server:
        yield server


def waiting(server: Server) -> int:
    with urllib.request.urlopen(f"{server.base_url}/v1/metrics") as answer:
        found = re.search(rb"^tidemark_waiting (\d+)$", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_waiting_response_ends_with_its_connection(server: Server, live: str, reset: bool) -> None:
    """Whether the client closes the connection or resets it."""
    path = f"/v1/stream/left-{live}-{reset}"
    urllib.request.urlopen(urllib.request.Request(server.base_url + path, method="PUT")).close()
    readers = [socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) for _ in range(READERS)]
    for reader in readers:
        reader.sendall(f"GET {path}?offset=-1&live={live} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: waiting(server) == READERS)
    for reader in readers:
        if reset:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        reader.close()
    until(lambda: waiting(server) == 0)
