"""Pages in a real browser that tail streams over a bad network: every message once, and in order.

Each page comes from another origin than the streams. Between the two is a proxy that cuts connections off
wherever it likes, the server ends its event streams after two seconds, and half way it is killed and started
again.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.chromium import CLIENT, NEEDS_CHROMIUM, opened
from tests.browser.cutting import CuttingProxy, cutting
from tests.browser.writing import Written, writing
from tests.conformance.servers import Server, running, tidemark_server

MESSAGES = 120
SEED = 20_261_120
#: Of all readers together; three times as many are usual.
ENOUGH_CUTS = 15

pytestmark = NEEDS_CHROMIUM


#: The last without the edge in front: an HTTP API sends event streams only once they are complete.
@pytest.fixture(scope="module", params=["asgi", "lambda", "lambda, EDGE=false"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    via, _, edge = request.param.partition(", EDGE=")
    made = tidemark_server(via, directory, SSE_SECONDS="2", LONG_POLL_SECONDS="2", EDGE=edge)
    with running(made):
        yield made


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    with cutting(server.port, SEED) as proxy:
        yield proxy


def read_through_it_all(server: Server, streams: list[Written], page: str, task: object) -> Any:
    """What the page reports of streams that are written meanwhile."""
    with opened(page, task) as browser, writing(streams, SEED):
        streams[0].until_half_way()
        server.kill_group()
        server.start()
        return browser.report()


def parts(stream: Written) -> Any:
    """What a reader must have been given, in all."""
    if stream.kind == "json":
        return [json.loads(each) for each in stream.messages]
    return b"".join(stream.messages).decode()


@pytest.mark.skipif(not CLIENT.exists(), reason="npm packages are not installed (`make` installs them)")
def test_the_official_client(server: Server, proxy: CuttingProxy) -> None:
    """npm's `@durable-streams/client` in a page, by long-poll and by server-sent events, JSON and text."""
    streams = {kind: Written(server.port, kind, MESSAGES) for kind in ("json", "text")}
    readers = [
        {"url": proxy.base_url + stream.path, "kind": kind, "live": live}
        for kind, stream in streams.items()
        for live in ("long-poll", "sse")
    ]
    results = read_through_it_all(server, [*streams.values()], "client.html", {"readers": readers})["results"]

    for reader, result in zip(readers, results, strict=True):
        stream = streams[reader["kind"]]
        got = result["got"] if stream.kind == "json" else "".join(result["got"])
        assert got == parts(stream), f"{reader['kind']} by {reader['live']}"
    print(f"\n{proxy.connections} connections, {proxy.cuts} of them cut; {results[0]['interruptions']=}")
    assert proxy.cuts >= ENOUGH_CUTS


def test_the_browsers_own_event_source(server: Server, proxy: CuttingProxy) -> None:
    """The example that we give to people, as it is: the browser goes on from the last event's id."""
    streams = [Written(server.port, kind, MESSAGES) for kind in ("json", "text", "binary")]
    addresses = [f"/tail.html?url={quote(proxy.base_url + stream.path, safe='')}" for stream in streams]
    task = {"addresses": addresses, "end": "The stream is closed"}
    results = read_through_it_all(server, streams, "watch.html", task)
    for stream, result in zip(streams, results, strict=True):
        assert as_read(stream, result["messages"]) == as_written(stream), stream.kind
    print(f"\n{proxy.connections} connections, {proxy.cuts} of them cut")
    assert proxy.cuts >= ENOUGH_CUTS // 3, "the browser waits for some seconds before it connects again"


def as_read(stream: Written, shown: str) -> Any:
    """JSON is shown message by message, text as it is, and of bytes their digits."""
    if stream.kind == "json":
        return [json.loads(line) for line in shown.splitlines()]
    return bytes.fromhex(shown) if stream.kind == "binary" else shown


def as_written(stream: Written) -> Any:
    return b"".join(stream.messages) if stream.kind == "binary" else parts(stream)
