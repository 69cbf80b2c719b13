"""What the server asks of the kernel, by strace: one sync for a commit, none missing before an answer; and
what becomes of appends where syncs and writes fail."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.available import require_program
from tidemark.service.append import INLINE_BYTES

PATIENCE_SECONDS = 60
TEXT = {"Content-Type": "text/plain"}
#: A call of strace's log that is over: with several threads its end may be on a line of its own.
CALL = re.compile(r'(fdatasync|fsync)(?:\(| resumed).*= 0$|\bwrite\(\d+, "HTTP/1\.1 (\d+)')


class Traced:
    """A server under strace, and what it did since the last time of asking."""

    def __init__(self, process: subprocess.Popen[str], log: Path | None) -> None:
        self.process = process
        self._log = log
        self._read = 0
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+) ", line)
        assert found is not None, line
        self.port = int(found[1])

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as made:
            yield made

    def done(self) -> list[str]:
        """`sync`, or the status of an answer, in order."""
        assert self._log is not None
        lines = self._log.read_text(errors="replace")[self._read :]
        self._read += len(lines)
        found = [CALL.search(line) for line in lines.splitlines()]
        return [match[2] or "sync" for match in found if match]


def end(process: subprocess.Popen[str]) -> None:
    """By kill -9: the server itself, and strace with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


Start = Callable[..., Traced]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    strace = require_program("strace")
    with ExitStack() as stack:

        def starting(*options: str) -> Traced:
            log = tmp_path / "strace.log"
            traced = [strace, "-f", "-qq", "-o", str(log), "-e", "trace=fdatasync,fsync,write,pwrite64"]
            environment = {"PORT": "0", "DATA_DIR": str(tmp_path / "data"), "LOG_LEVEL": "ERROR"}
            process = subprocess.Popen(
                [*traced, *options, sys.executable, "-m", "tidemark.cli", "serve"],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(end, process)
            return Traced(process, log)

        yield starting


def ask(connection: http.client.HTTPConnection, method: str, body: bytes = b"", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, "/v1/stream/a", body, TEXT | named)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def test_each_append_is_one_sync_and_then_its_answer(start: Start) -> None:
    server = start()
    with server.connection() as connection:
        assert ask(connection, "PUT") == 201
        server.done()
        for _ in range(20):
            assert ask(connection, "POST", b"x") == 204
        assert server.done() == ["sync", "204"] * 20
        # A blob and its folder are on disk before the table names it.
        assert ask(connection, "POST", b"x" * (INLINE_BYTES + 1)) == 204
    assert server.done() in (["sync"] * syncs + ["204"] for syncs in (3, 4, 5))


def test_appends_that_wait_share_a_sync(start: Start) -> None:
    server = start()
    with server.connection() as connection:
        assert ask(connection, "PUT") == 201
    server.done()

    def write() -> None:
        with server.connection() as connection:
            for _ in range(10):
                assert ask(connection, "POST", b"x") == 204

    writers = [threading.Thread(target=write) for _ in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    done = server.done()
    assert done.count("204") == 160
    assert done.count("sync") <= 80


@pytest.mark.parametrize(("calls", "every"), [("fdatasync", 7), ("pwrite64", 37)])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_acknowledged_data_are_there_if_disks_fail(start: Start, calls: str, every: int, error: str) -> None:
    """From the hundredth on, one of so many; a commit writes about ten times. The server goes on, and after a
    kill the next one does."""
    server = start("-e", f"inject={calls}:error={error}:when=100+{every}")
    refused = 0
    with server.connection() as connection:
        while ask(connection, "PUT") not in {200, 201}:
            refused += 1
        for seq in range(150):
            claim = {"Producer_Id": "p", "Producer_Epoch": "0", "Producer_Seq": str(seq)}
            while (status := ask(connection, "POST", f"{seq},".encode(), **claim)) not in {200, 204}:
                assert (status, refused < 150) == (503, True)
                refused += 1
    assert refused > 0, "no call has failed"
    end(server.process)
    with start().connection() as connection:
        connection.request("GET", "/v1/stream/a?offset=-1")
        assert connection.getresponse().read() == b"".join(b"%d," % seq for seq in range(150))
