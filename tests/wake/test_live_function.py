"""The live function as it is deployed: `run.sh`, its server and its application, as a process of their
own.

In AWS, Lambda Web Adapter stands in front of it, and only passes requests and responses on.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading

import pytest

from tests.authorization.tokens import SECRET, token
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
    """Each event arrives while the response goes on: nothing between storage and the socket buffers it."""
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


def test_a_long_poll_without_data_ends_by_itself_and_one_with_data_is_whole(
    world: World, writer: Process
) -> None:
    """Through the edge, long-polls wait in this function."""
    with running(world, long_poll_seconds=2) as function, pumping(world, function.queues._prefix):
        key, target = make_stream(writer)
        target = target.replace("sse", "long-poll")
        with function.get(target) as silent:
            assert (silent.status, silent.read()) == (204, b"")
            assert silent.headers["cache-control"] == "no-store"
            assert "transfer-encoding" not in silent.headers
        late = threading.Timer(0.5, lambda: writer.append(key, b"woken", content_type=TEXT))
        late.start()
        with function.get(target) as woken:
            assert (woken.status, woken.headers["content-length"], woken.read()) == (200, "5", b"woken")
        late.join()


def test_an_event_stream_ends_completely_before_the_function_is_stopped(
    world: World, writer: Process
) -> None:
    """The client gets a whole response, and reconnects."""
    with running(world, sse_seconds=1) as function:
        _, target = make_stream(writer)
        with function.get(target) as response:
            events = response.read()  # Raises IncompleteRead for an answer that was cut off.
        assert events.endswith(b"\n\n")
        assert function.is_up()


def test_a_missing_stream_or_offset_gets_an_error_and_no_event_stream(world: World) -> None:
    with running(world) as function:
        assert function.status("/v1/stream/nowhere?offset=-1&live=sse") == 404
        assert function.status("/v1/stream/nowhere?live=sse") == 400


def test_at_sigterm_the_function_removes_its_queue_and_its_waiters(world: World, writer: Process) -> None:
    """Lambda sends SIGTERM to a process with an extension before it ends."""
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
    """In one process that serves many requests at once, as a container would: they share one queue, and each
    takes little memory."""
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


def test_an_event_stream_that_is_refused_is_told_in_the_functions_log(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its process is a server's: nobody but itself sets up its log."""
    with running(world, variables={"AUTH_SECRET": SECRET, "ALLOW_ANONYMOUS": "false"}) as function:
        query = f"offset=-1&live=sse&access_token={token('read:v1/other', sub='bob')}"
        assert function.status(f"/v1/stream/private?{query}") == 404
    [line] = [each for each in capfd.readouterr().err.splitlines() if each.startswith("audit ")]
    told = json.loads(line.removeprefix("audit "))
    assert (told["path"], told["status"], told["subject"]) == ("/v1/stream/private", 404, "bob")
