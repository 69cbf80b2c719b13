"""The live function as it is deployed: `run.sh`, its server and its application, as a process of their
own.

In AWS, Lambda Web Adapter stands in front of it, and only passes requests and responses on.
"""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.authorization.tokens import SECRET, token
from tests.support import TEXT, Process, World, a_key
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.live_process import Function, read_until, running
from tests.wake.support import pumping
from tidemark.aws.clock import CLOCK
from tidemark.log.waiters import all_waiters, load_waiters
from tidemark.protocol.stream_key import StreamKey

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def patient(world: World) -> Iterator[Function]:
    """Its readers wait for as long as a test runs; the trigger wakes them."""
    with (
        running(world, sse_seconds=600, long_poll_seconds=600) as function,
        pumping(world, function.queues._prefix),
    ):
        yield function


def make_stream(writer: Process) -> tuple[StreamKey, str]:
    key = a_key("live")
    writer.create(key, content_type=TEXT)
    return key, f"/v1/stream/{key.stream_id}?offset=-1&live="


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
def test_pages_of_four_megabytes_leave_a_third_of_memory_free(patient: Function, writer: Process) -> None:
    """That least is 192 MB (`LiveMemory`). The adapter takes some ten."""
    key, target = make_stream(writer)
    for _ in range(6):
        writer.append(key, b"x" * 2_000_000, content_type=TEXT)
    with patient.get(target + "sse") as response:
        assert sum(len(response.read(100_000)) for _ in range(120)) == 12_000_000
    status = Path(f"/proc/{patient.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 128 * 1024


def test_events_are_streamed_as_they_happen(patient: Function, writer: Process) -> None:
    """Each event arrives while the response goes on: nothing between storage and the socket buffers it."""
    key, target = make_stream(writer)
    with patient.get(target + "sse") as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "no-transform" in response.headers["cache-control"]
        read_until(response, b'"upToDate":true')
        for number in range(5):
            writer.append(key, b"message %d" % number, content_type=TEXT)
            read_until(response, b"message %d" % number)


def test_a_long_poll_that_is_woken_is_whole(patient: Function, writer: Process) -> None:
    """Through the edge, long-polls wait in this function."""
    key, target = make_stream(writer)
    record = writer.create(key, content_type=TEXT).head.record

    def append_once_it_waits() -> None:
        until(lambda: load_waiters(writer.stores.table, record.incarnation, CLOCK.now_ms()))
        writer.append(key, b"woken", content_type=TEXT)

    late = threading.Thread(target=append_once_it_waits)
    late.start()
    with patient.get(target + "long-poll") as woken:
        assert (woken.status, woken.headers["content-length"], woken.read()) == (200, "5", b"woken")
    late.join()


def test_live_reads_without_data_end_by_themselves_and_the_function_leaves_nothing_behind(
    world: World, writer: Process
) -> None:
    """Each response is complete, before the function is stopped; Lambda sends SIGTERM to a process with an
    extension before it ends."""
    with running(world, sse_seconds=2, long_poll_seconds=2) as function:
        _, target = make_stream(writer)
        with function.get(target + "long-poll") as silent:
            assert (silent.status, silent.read()) == (204, b"")
            assert silent.headers["cache-control"] == "no-store"
            assert "transfer-encoding" not in silent.headers
        with function.get(target + "sse") as response:
            assert response.read().endswith(b"\n\n")  # Raises IncompleteRead for an answer that was cut off.
        assert function.status("/v1/stream/nowhere?offset=-1&live=sse") == 404
        assert function.status("/v1/stream/nowhere?live=sse") == 400
        [url] = function.queues.all()
        function.process.send_signal(signal.SIGTERM)
        function.process.wait(PATIENCE_SECONDS)
        assert list(function.queues.all()) == []
    assert url not in {waiter.address for waiter in all_waiters(writer.stores.table)}


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
