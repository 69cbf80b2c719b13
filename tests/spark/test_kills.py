"""`kill -9` of jobs that run as processes of their own, and what is there in the end: each message once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tests.spark.lakes import Lake
from tests.spark.serving import Spoil, ThreadedServer, is_append
from tests.spark.streams import key
from tests.support import World
from tidemark.spark.failures import Exit

ROOT = Path(__file__).parents[2]
STREAMS, ROWS = 3, 6_000
#: Of a job under load; none of them takes a minute on an idle machine.
PATIENCE_SECONDS = 900

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


class Running:
    """A job, the JVM of its driver, and the Python workers under it, which are in a process group of their
    own."""

    def __init__(self, name: str, *arguments: str) -> None:
        command = [sys.executable, str(ROOT / "pipeline" / f"{name}.py"), *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def workers(self) -> list[int]:
        """Processes below the job's that Spark's Python daemon has made."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        below, found = {self.process.pid}, -1
        while len(below) != found:
            found = len(below)
            below |= {pid for pid, parent in parents.items() if parent in below}
        daemons = {pid for pid in below if self._is_daemon(pid)}
        return [pid for pid in daemons if parents[pid] in daemons]

    @staticmethod
    def _is_daemon(pid: int) -> bool:
        try:
            return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def kill_workers(self) -> None:
        for pid in self.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """And its JVM. What the workers were at they may bring to an end."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, said


def at_post(number: int, kill: Callable[[], None]) -> Spoil:
    """What kills while a server is at this append of all."""
    posts = [0]

    def spoil(method: str, _path: str, headers: dict[str, str]) -> None:
        posts[0] += is_append(method, headers)
        if is_append(method, headers) and posts[0] == number:
            kill()

    return spoil


def landed(world: World, name: str) -> list[list[int]]:
    """The numbers in each stream."""
    process, found = world.process(), []
    for index in range(STREAMS):
        stored = process.read_all(key(f"{name}-{index}"))
        found.append([row["id"] for row in orjson.loads(b"[" + stored[:-1] + b"]")])
    return found


def test_what_was_killed_while_it_published_or_archived_is_there_once(
    server: ThreadedServer, spoiling: Callable[..., None], world: World, name: str, tmp_path: Path
) -> None:
    """First what publishes, then the driver while others publish, then the driver of an archive whose files
    are written."""
    lines = [orjson.dumps({"id": index, "stream": f"{name}-{index % STREAMS}"}) for index in range(ROWS)]
    (tmp_path / "rows.json").write_bytes(b"\n".join(lines))
    connection = ["--url", server.url, "--option", "bytesPerAppend=500", "--option", "retrySeconds=60"]
    ingest = ["--input", str(tmp_path / "rows.json"), "--format", "json", "--stream-column", "stream"]
    ingest += ["--create", "--staging", str(tmp_path / "staging"), "--id", name]

    running = Running("ingest", *connection, *ingest)
    spoiling(at_post(8, running.kill_workers))
    code, said = running.end()
    assert code == Exit.TRY_AGAIN, said
    after_one = sum(map(len, landed(world, name)))
    assert 0 < after_one < ROWS

    running = Running("ingest", *connection, *ingest)
    spoiling(at_post(8, running.kill_driver))
    assert running.end()[0] == -signal.SIGKILL
    assert after_one <= sum(map(len, landed(world, name)))

    spoiling(lambda *_: None)
    code, said = Running("ingest", *connection, *ingest).end()
    assert (code, f"messages={ROWS} " in said) == (0, True), said
    assert "setLogLevel" not in said
    assert " WARN " not in said
    assert landed(world, name) == [list(range(index, ROWS, STREAMS)) for index in range(STREAMS)]

    lake = Lake(tmp_path / "lake")
    names = ",".join(f"{name}-{index}" for index in range(STREAMS))
    archive = ["--url", server.url, "--subscribe", names, *lake.given]
    running, deadline = Running("archive", *archive), time.monotonic() + PATIENCE_SECONDS
    while not list((tmp_path / "lake").rglob("*.parquet")) and time.monotonic() < deadline:
        assert running.process.poll() is None, running.end()[1]
        time.sleep(0.01)
    running.kill_driver()
    assert running.end()[0] == -signal.SIGKILL
    code, said = Running("archive", *archive).end()
    assert code == 0, said
    assert sorted(orjson.loads(row["value"])["id"] for row in lake.rows()) == list(range(ROWS))
    assert lake.by_duckdb() == lake.by_pyarrow()
