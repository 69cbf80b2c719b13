"""S3 acknowledges an object only once it is on disk, and ministack ends if it cannot write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

s3 = pytest.importorskip("ministack.services.s3", reason="ministack is not installed")
ministack_server = pytest.importorskip("tidemark.local.ministack_server", reason="ministack is not installed")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that make a write durable, in order."""
    made: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        made.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').resolve().name}")
        fsync(descriptor)

    def recorded_replace(path: Path, target: Path) -> Path:
        made.append(f"rename {path.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    monkeypatch.setattr(ministack_server, "_settled", set())
    return made


def test_an_object_is_synced_then_renamed_then_its_directories_are_synced(
    calls: list[str], tmp_path: Path
) -> None:
    """In any other order a power cut leaves an empty file, or none, for an acknowledged object."""
    bucket = tmp_path / "s3/bucket/new"
    bucket.mkdir(parents=True)
    ministack_server._settled.add(tmp_path / "s3")
    ministack_server._durable_write(str(bucket / "first"), b"tide")
    assert calls == ["fsync first.tmp", "rename first.tmp", "fsync new", "fsync s3", "fsync bucket"]
    calls.clear()
    ministack_server._durable_write(str(bucket / "second"), "description", text=True)
    assert calls == ["fsync second.tmp", "rename second.tmp", "fsync new"]
    assert (bucket / "first").read_bytes() == b"tide"
    assert (bucket / "second").read_text() == "description"


WRITE = """
import sys
from tidemark.local.ministack_server import _durable_write
_durable_write(sys.argv[1], b"tide")
print("acknowledged")
"""


def test_ministack_ends_if_it_cannot_write(tmp_path: Path) -> None:
    """ministack itself would log the error and acknowledge the object."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "missing/object")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stdout == ""
    assert "FileNotFoundError" in process.stderr


def test_the_pinned_ministack_has_the_function_that_is_replaced() -> None:
    assert callable(getattr(s3, ministack_server.WRITER))
