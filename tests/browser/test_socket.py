"""`/v1/socket.js` in a page: the official client follows many streams on one connection (`docs/live.md`)."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authorization.tokens import SECRET, token
from tests.browser.chromium import CLIENT, NEEDS_CHROMIUM, opened
from tests.browser.cutting import cutting
from tests.browser.test_reconnects import ENOUGH_CUTS, SEED, parts
from tests.browser.writing import Written, being_written
from tests.conformance.servers import Server, node, running, tidemark_server

#: Over HTTP/1.1, where a browser opens six connections to a server.
STREAMS = 100
MESSAGES = 8

needs_client = pytest.mark.skipif(
    not CLIENT.exists(), reason="npm packages are not installed (`make` installs them)"
)


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("server"))) as made:
        yield made


def test_it_waits_and_asks_as_the_page_of_the_socket_says() -> None:
    """Each rule, against a WebSocket and a clock in the test's hands."""
    command = [node(), "--test", str(Path(__file__).with_name("socket.test.mjs"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^# pass [1-9]", ran.stdout, re.MULTILINE), ran.stdout


def follow_through_a_restart(server: Server, base_url: str, streams: list[Written]) -> Any:
    """What the page reports. The server is killed while it tells the page of what is written."""
    for each in streams:
        each.create()
    readers = [{"url": base_url + each.path, "kind": each.kind, "live": "long-poll"} for each in streams]
    with opened("client.html", {"readers": readers, "socket": True}) as page:
        assert page.report() == "open"
        with being_written(streams, SEED):
            streams[0].until_half_way()
            server.kill_group()
            server.start()
            return page.report()


@NEEDS_CHROMIUM
@needs_client
def test_a_hundred_streams_are_followed_through_a_restart(server: Server) -> None:
    """Each message once and in order, and on one connection at a time."""
    streams = [Written(server.port, "json", MESSAGES) for _ in range(STREAMS)]
    told = follow_through_a_restart(server, server.base_url, streams)
    for stream, result in zip(streams, told["results"], strict=True):
        assert result["got"] == parts(stream)
    assert told["opened"] <= 2


@NEEDS_CHROMIUM
@needs_client
def test_a_network_that_cuts_the_connection_loses_no_message(server: Server) -> None:
    """In the middle of frames and of handshakes, and of the answers to the reads."""
    streams = [Written(server.port, kind, 120) for kind in ("json", "text") * 4]
    with cutting(server.port, SEED) as proxy:
        told = follow_through_a_restart(server, proxy.base_url, streams)
    for stream, result in zip(streams, told["results"], strict=True):
        got = result["got"] if stream.kind == "json" else "".join(result["got"])
        assert got == parts(stream)
    print(f"\n{proxy.connections} connections, {proxy.cuts} of them cut; {told['opened']} sockets")
    assert proxy.cuts >= ENOUGH_CUTS


@NEEDS_CHROMIUM
@needs_client
def test_a_stream_of_small_messages_causes_no_request(tmp_path: Path) -> None:
    """With a token of its own, from a page of another origin that imports the module from the server."""
    private = tidemark_server("asgi", tmp_path, AUTH_SECRET=SECRET, LONG_POLL_SECONDS="1")
    with running(private) as server:
        writer = {"Authorization": f"Bearer {token('write:v1 manage:v1')}"}
        busy, *silent = streams = [Written(server.port, "json", 20) for _ in range(STREAMS)]
        for each in streams:
            assert each.send("PUT", headers=writer) == 201
        urls = [server.base_url + each.path for each in streams]
        task = {"origin": server.base_url, "urls": urls, "token": token("read:v1")}
        with opened("socket.html", task) as page:
            assert page.report() == "watched"
            for message in busy.messages:
                assert busy.send("POST", message, writer) == 204
            for each in streams:
                assert each.send("POST", headers=writer | {"Stream-Closed": "true"}) == 204
            told = page.report()
    assert told["got"] == [parts(busy), *([] for _ in silent)]
    assert told["sockets"] == 1
    assert not [each for each in told["requests"] if "live=" in each]
    asked = Counter(each.partition("?")[0] for each in told["requests"])
    # The first read, and one of what came before its watch. Everything else comes by the socket.
    assert asked.pop(urls[0]) <= 2
    assert asked.pop(f"{server.base_url}/v1/socket") == 1
    assert asked == dict.fromkeys(urls[1:], 1), "the first read"


@NEEDS_CHROMIUM
@needs_client
def test_the_example_follows_twenty_streams(server: Server) -> None:
    streams = [Written(server.port, "text", 3) for _ in range(20)]
    for each in streams:
        each.create()
    paths = ",".join(each.path for each in streams)
    address = f"/many-streams.html?server={server.base_url}&streams={paths}"
    task = {"addresses": [address], "end": "20 of 20 streams are closed"}
    with opened("watch.html", task) as page, being_written(streams, SEED):
        [shown] = page.report()
    for each in streams:
        assert f"{each.path} 0:" in shown["messages"]
    for message in streams[0].messages:
        assert shown["messages"].count(message.decode()) == len(streams)
