"""One system per data directory; a start after a crash waits for the engines that are still running."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.server.ports import DataDirectoryInUse, locked

pytestmark = pytest.mark.slow

#: Takes the lock, hands it to a child as to an engine, says both process ids, and waits.
HOLDER = """
import subprocess, sys
from pathlib import Path
from tidemark.server.ports import locked
wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
with locked(Path(sys.argv[1])) as descriptor:
    child = subprocess.Popen(wait, pass_fds=[descriptor], stdin=sys.stdin)
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


def test_a_lock_outlives_its_holder_while_engines_run(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    """A second process is refused. After kill -9 of the holder alone its engine may still use its files."""
    refusal = f"{tmp_path} is in use by process {holder.pid}:"
    for _ in range(2):
        with pytest.raises(DataDirectoryInUse, match=refusal), locked(tmp_path, patience_seconds=0):
            pass
        holder.kill()
        holder.wait()
    assert holder.stdin is not None
    holder.stdin.close()
    with locked(tmp_path, patience_seconds=60):
        pass


def test_only_the_kernels_lock_counts(tmp_path: Path) -> None:
    """Not the file, even if it names a living process. A lock that was released can be acquired."""
    (tmp_path / "lock").write_text(f"{os.getppid()}\n")
    for _ in range(2):
        with locked(tmp_path):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
