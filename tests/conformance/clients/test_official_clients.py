"""The official npm and PyPI clients work against a running Tidemark: what their users do, end to end.

`BASE_URL` runs the tests against a server that is already there; without it each way in is started here.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from durable_streams import DurableStream, SeqConflictError, stream

from tests.conformance.clients.node import SLOW_READER, run_node
from tests.conformance.servers import Server, running, temporary_directory, tidemark_server

NPM_SCRIPT = Path(__file__).with_name("npm_client.mjs")
TAIL_SECONDS = 60
MESSAGES = [{"n": 1}, {"n": 2, "text": "ünïcode ☃"}, {"n": 3}]
LATER = [{"later": n} for n in range(5)]
LAST = {"last": True}


#: The last without the edge in front: an HTTP API sends event streams only once they are complete.
@pytest.fixture(scope="module", params=["asgi", "lambda", "lambda, EDGE=false"])
def base_url(request: pytest.FixtureRequest) -> Iterator[str]:
    given = os.environ.get("BASE_URL")
    if given:
        if request.param != "asgi":
            pytest.skip("BASE_URL is one server: there is no second way in to run")
        yield given
        return
    with temporary_directory() as directory, running(server(request.param, directory)) as started:
        yield started.base_url


def server(via: str, directory: Path) -> Server:
    # An SSE answer outlasts the test by far, so a tail that ends has been ended by the stream's end.
    name, _, edge = via.partition(", EDGE=")
    return tidemark_server(name, directory, LONG_POLL_SECONDS="3", SSE_SECONDS="600", EDGE=edge)


@pytest.fixture
def url(base_url: str) -> str:
    return f"{base_url}/v1/stream/pypi-client-{uuid.uuid4()}"


def test_npm_client(base_url: str) -> None:
    """Create, append, idempotent producer, catch-up, both live tails, close: the checks are in the script."""
    run_node(NPM_SCRIPT, BASE_URL=base_url)


def test_a_slow_reader_of_the_npm_client_gets_the_message_that_comes_with_the_close(base_url: str) -> None:
    """By each of its readers: the client is one answer ahead of them, and ends at a close."""
    run_node(SLOW_READER, BASE_URL=base_url)


def test_pypi_client_appends_and_reads(url: str) -> None:
    """What was appended one by one comes back whole and in order, and HEAD tells the last append's tail. A
    Stream-Seq that does not increase is refused with the client's own error."""
    with DurableStream.create(url, content_type="application/json") as handle:
        results = [handle.append(each, seq=str(number)) for number, each in enumerate(MESSAGES)]
        with pytest.raises(SeqConflictError):
            handle.append(MESSAGES[0], seq="0")
        with stream(url, live=False) as response:
            assert response.read_json() == MESSAGES
        assert handle.head().offset == results[-1].next_offset


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_pypi_client_tail(url: str, live: str) -> None:
    """A tail that starts before the appends receives every one of them in order, and sees the end."""
    with DurableStream.create(url, content_type="application/json") as handle, ThreadPoolExecutor(1) as pool:
        tail = pool.submit(follow_to_the_end, url, handle.append(MESSAGES[0]).next_offset, live)
        for message in LATER:
            handle.append(message)
        append_and_close(url, LAST)
        assert result_of(tail) == [*LATER, LAST]


def append_and_close(url: str, message: object) -> None:
    """This client cannot close a stream by itself either; the header on its append does both at once."""
    with DurableStream(url, content_type="application/json", headers={"Stream-Closed": "true"}) as closer:
        closer.append(message)


def follow_to_the_end(url: str, offset: str, live: str) -> list[object]:
    """Follow the stream, reopening where an answer ends early, until an answer says that it is closed."""
    received: list[object] = []
    deadline = time.monotonic() + TAIL_SECONDS
    while time.monotonic() < deadline:
        with stream(url, offset=offset, live=live, timeout=30) as response:  # type: ignore[arg-type]
            for event in response.iter_events(mode="json"):
                received += event.data
                offset = event.next_offset
                if response.headers.get("stream-closed") == "true":
                    return received
        if is_closed_at(url, offset):
            return received
    raise TimeoutError(f"no end seen in {TAIL_SECONDS} s, received {json.dumps(received)}")


def is_closed_at(url: str, offset: str) -> bool:
    """The client drops an SSE answer's closing mark, so after an answer has ended a plain read tells."""
    with stream(url, offset=offset, live=False) as response:
        return response.headers.get("stream-closed") == "true" and response.read_json() == []


def result_of(tail: Future[list[object]]) -> list[object]:
    return tail.result(timeout=TAIL_SECONDS + 30)
