"""`WORKERS=2`: two processes serve one table on one port."""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.local.polling import children_of, is_running, wait_until
from tests.local.test_main import Start, System, start

__all__ = ["start"]
#: So many connections that both processes get some: all on one side comes once in 8 million runs.
READERS = 25


@pytest.fixture
def system(start: Start) -> System:
    return System(start(WORKERS="2", LONG_POLL_SECONDS="300"))


def waiting(system: System) -> int:
    """The number of readers that wait in the process that takes this connection."""
    status, body = system.request("GET", "/v1/metrics")
    assert status == 200
    found = re.search(rb"^tidemark_waiting (\d+)$", body, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_an_append_in_one_process_wakes_the_readers_of_both(system: System) -> None:
    assert "2 processes" in system.line
    assert system.request("PUT", "/v1/stream/w", Content_Type="text/plain")[0] == 201
    seen: deque[int] = deque(maxlen=10)

    def all_wait_in_two_processes() -> bool:
        seen.append(waiting(system))
        return any(0 < one < READERS and READERS - one in seen for one in seen)

    with ThreadPoolExecutor(READERS) as pool:
        path = "/v1/stream/w?offset=0000000000000000&live=long-poll"
        polls = [pool.submit(system.request, "GET", path) for _ in range(READERS)]
        wait_until(all_wait_in_two_processes, "readers wait in both processes")
        assert system.request("POST", "/v1/stream/w", b"news", Content_Type="text/plain")[0] == 204
        assert {poll.result() for poll in polls} == {(200, b"news")}
    assert system.end()[0] == 0


def test_every_process_reads_the_writes_of_every_other(system: System) -> None:
    assert system.request("PUT", "/v1/stream/r", Content_Type="text/plain")[0] == 201
    for number in range(20):
        assert system.request("POST", "/v1/stream/r", b"%02d" % number, Content_Type="text/plain")[0] == 204
    whole = b"".join(b"%02d" % number for number in range(20))
    assert {system.request("GET", "/v1/stream/r?offset=-1") for _ in range(20)} == {(200, whole)}
    assert system.end()[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_workers_end_cleanly_and_leave_no_process(system: System, number: int) -> None:
    children = children_of(system.process.pid)
    assert any("tidemark.local.worker" in command_of(child) for child in children)
    code, _, errors = system.end(number)
    assert (code, errors) == (0, "")
    wait_until(lambda: not any(map(is_running, children)), "every child has ended")


def test_a_worker_that_dies_ends_the_system_and_is_named(system: System) -> None:
    [worker] = [
        child for child in children_of(system.process.pid) if "tidemark.local.worker" in command_of(child)
    ]
    os.kill(worker, signal.SIGKILL)
    code, _, errors = system.wait()
    assert code == 1
    assert f"worker {worker} ended with code -9; stopping" in errors


def test_a_taken_port_is_one_line_with_several_workers_too(start: Start) -> None:
    first = System(start(WORKERS="2"))
    second = start(WORKERS="2", PORT=first.address.rpartition(":")[2])
    _, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "cannot be used" in errors
    assert first.end()[0] == 0


def test_each_request_is_logged_once_whichever_worker_served_it(start: Start) -> None:
    system = System(start(WORKERS="2", LOG_LEVEL="INFO"))
    for _ in range(READERS):
        assert system.request("GET", "/v1/stream/none?offset=-1")[0] == 404
    code, _, errors = system.end()
    assert code == 0
    assert len(errors.splitlines()) == READERS, errors
    assert all(" GET /v1/stream/none 404 " in line for line in errors.splitlines())


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
