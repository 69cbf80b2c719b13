"""Answers of a server that is stopped while they come, and started again."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.conformance.servers import Server, running, tidemark_server
from tests.proxy.conftest import Upstream, never_ends, steps
from tests.waiting import until
from tidemark.server.http_server import GRACE_SECONDS

ANSWERS = 40


def ask(server: Server, upstream: Upstream) -> str:
    sent = {"Upstream-URL": f"{upstream.url}/chat", "Upstream-Method": "POST"}
    answer = httpx.post(f"{server.base_url}/v1/proxy", headers=sent, content=b"{}", timeout=60)
    assert answer.status_code == 201, answer.text
    return httpx.URL(answer.headers["Location"]).raw_path.decode()


@pytest.fixture
def server(upstream: Upstream, tmp_path: Path) -> Server:
    return tidemark_server("asgi", tmp_path, PROXY_ALLOW=f"{upstream.url}/*", DRAIN_SECONDS="1")


def test_a_server_that_ends_pipes_on_until_its_answers_end(server: Server, upstream: Upstream) -> None:
    """As long as it has time; no new connection is accepted meanwhile."""
    server.environment = {**server.environment, "DRAIN_SECONDS": "600"}
    upstream.behave = steps(b"before ", b"after")
    with running(server):
        location = ask(server, upstream)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(server))
        time.sleep(2 * GRACE_SECONDS)
        upstream.go_on.set()
        assert server.process.wait(60) == 0
        server.start()
        read = httpx.get(server.base_url + location)
    assert (read.content, read.headers["Stream-Closed"]) == (b"before after", "true")
    assert "Upstream-Error" not in read.headers


def is_listening(server: Server) -> bool:
    try:
        httpx.get(server.base_url + server.health_path)
    except httpx.TransportError:
        return False
    return True


def test_an_answer_that_a_server_cuts_off_is_closed_with_an_error(server: Server, upstream: Upstream) -> None:
    """Each tick of the upstream is a write, and most are under way or due when the server ends."""
    upstream.behave = never_ends
    upstream.go_on.set()
    with running(server):
        locations = [ask(server, upstream) for _ in range(ANSWERS)]
        server.stop()
        server.start()
        for location in locations:
            read = httpx.get(server.base_url + location)
            assert read.headers["Upstream-Error"] == "cut off: the server ended"
            assert read.headers["Stream-Closed"] == "true"
            assert read.content.startswith(b"first ")
