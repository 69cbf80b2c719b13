"""One system per data directory; a start after a crash waits for the engines that are still running."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.server.lock import DataDirectoryInUse, DirectoryLock

#: Takes the lock, hands it to a child as to an engine, says both process ids, and waits.
HOLDER = """
import subprocess, sys
from pathlib import Path
from tidemark.server.lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
child = subprocess.Popen(wait, pass_fds=[lock.descriptor], stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is killed; its child holds it until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_second_process_is_refused_with_the_id_of_the_holder(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with pytest.raises(DataDirectoryInUse, match=f"{tmp_path} is in use by process {holder.pid}:"):
        DirectoryLock(tmp_path).acquire(patience_seconds=0)


def test_the_lock_outlives_its_holder_while_an_engine_runs(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    """After kill -9 of the system alone, its engine may still have its files open."""
    holder.kill()
    holder.wait()
    with pytest.raises(DataDirectoryInUse):
        DirectoryLock(tmp_path).acquire(patience_seconds=0.2)
    assert holder.stdin is not None
    holder.stdin.close()
    lock = DirectoryLock(tmp_path)
    lock.acquire(patience_seconds=60)
    lock.release()


def test_a_released_lock_can_be_acquired(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    first.release()
    second.acquire()
    second.release()


def test_a_lock_file_of_an_earlier_run_does_not_lock(tmp_path: Path) -> None:
    """Only the kernel's lock counts, even if the file names a living process."""
    (tmp_path / "lock").write_text(f"{os.getppid()}\n")
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()
