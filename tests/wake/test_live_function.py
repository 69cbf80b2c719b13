"""The live function as it is deployed: `run.sh`, its server and its application, as a process of their own.

What stands in front of it in AWS, Lambda Web Adapter, only hands on requests and answers.
"""

from __future__ import annotations

import http.client
import signal

import pytest

from tests.support import TEXT, Process, World, a_key
from tests.wake.live_process import Crowd, running
from tests.wake.support import PATIENCE_SECONDS, pumping, until
from tidemark.log.waiters import all_waiters
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stores import wall_clock_ms

READERS = 500
#: Connection, request, application and all: what a machine must have for each reader that waits.
MEMORY_PER_READER = 160 * 1024


@pytest.fixture
def writer(world: World) -> Process:
    return world.process(clock=wall_clock_ms)


def make_stream(writer: Process) -> tuple[StreamKey, str]:
    key = a_key("live")
    writer.create(key, content_type=TEXT)
    return key, f"/v1/stream/{key.stream_id}?offset=-1&live=sse"


def read_until(response: http.client.HTTPResponse, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        chunk = response.read1()
        assert chunk, f"the events ended without {wanted!r}: {received!r}"
        received += chunk
    return received


def test_events_are_streamed_as_they_happen(world: World, writer: Process) -> None:
    """Each arrives while the answer goes on: nothing between storage and the socket holds it back."""
    with running(world) as function, pumping(world, function.queues._prefix):
        key, target = make_stream(writer)
        with function.get(target) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "no-transform" in response.headers["cache-control"]
            read_until(response, b'"upToDate":true')
            for number in range(5):
                writer.append(key, b"message %d" % number, content_type=TEXT)
                read_until(response, b"message %d" % number)


def test_they_end_in_time_and_completely(world: World, writer: Process) -> None:
    """Before the function would be stopped: the client finds a whole answer, and comes back."""
    with running(world, sse_seconds=1) as function:
        _, target = make_stream(writer)
        with function.get(target) as response:
            events = response.read()  # Raises IncompleteRead for an answer that was cut off.
        assert events.endswith(b"\n\n")
        assert function.is_up()


def test_what_is_not_there_is_no_stream_of_events(world: World) -> None:
    with running(world) as function:
        assert function.status("/v1/stream/nowhere?offset=-1&live=sse") == 404
        assert function.status("/v1/stream/nowhere?live=sse") == 400


def test_it_cleans_up_when_lambda_ends_it(world: World, writer: Process) -> None:
    """A process with an extension is told of its end: it leaves neither queue nor waiters."""
    with running(world, sse_seconds=2) as function:
        _, target = make_stream(writer)
        with function.get(target) as response:
            until(lambda: list(function.queues.all()))
            response.read()
        [url] = function.queues.all()
        function.process.send_signal(signal.SIGTERM)
        function.process.wait(PATIENCE_SECONDS)
        assert list(function.queues.all()) == []
        left = [waiter for waiter in all_waiters(writer.stores.table) if waiter.queue_url == url]
        assert left == []


def test_one_process_serves_five_hundred_readers(world: World, writer: Process) -> None:
    """In one process that serves many at once, as a container would: one queue, and what each one weighs."""
    with running(world, sse_seconds=300) as function, pumping(world, function.queues._prefix):
        key, target = make_stream(writer)
        assert function.status(target) == 200
        until(lambda: list(function.queues.all()))
        before = function.memory()
        crowd = Crowd(function.port, target, READERS)
        crowd.until_all_have(b'"upToDate":true')
        per_reader = (function.memory() - before) / READERS
        print(f"\n{per_reader / 1024:.0f} KiB of memory for each of {READERS} connected readers")
        assert per_reader < MEMORY_PER_READER
        writer.append(key, b"to all", content_type=TEXT)
        seconds = crowd.until_all_have(b"to all")
        print(f"an append elsewhere reached the last of them after {seconds * 1000:.0f} ms")
        assert len(list(function.queues.all())) == 1
        crowd.close()
