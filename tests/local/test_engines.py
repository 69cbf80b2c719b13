"""The engines end with their parent, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.available import require_engine
from tests.local.polling import children_of, is_running
from tidemark.local.emulators import EngineFailed
from tidemark.local.engines import LocalServices

#: Starts the engines on a directory, says so, and waits to be killed.
PARENT = """
import sys
from tidemark.local.engines import LocalServices
with LocalServices(sys.argv[1]) as services:
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    require_engine()
    command = [sys.executable, "-c", PARENT, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_engines_end_with_a_parent_that_is_killed(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    """The next start, right after it, finds the directory free."""
    assert parent.stdout is not None
    parent.stdout.readline()
    pids = children_of(parent.pid)
    assert pids
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    with LocalServices(tmp_path / "data"):
        assert not any(is_running(pid) for pid in pids), "the lock was free before they were gone"


def test_what_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.local.emulators.find_spec", lambda _: None)
    with pytest.raises(EngineFailed, match="ministack is not installed; `make run` installs it"):
        LocalServices(tmp_path / "data").start()


def test_a_run_in_memory_leaves_no_directory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalServices(only=["dynamodb"]):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
