"""Waiting for a condition, with a deadline that only a failure reaches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_SECONDS = 60.0


def wait_until(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_SECONDS:.0f} s"
        time.sleep(0.02)


def threads_named(name: str) -> set[threading.Thread]:
    """The threads of this process with that in their name. Those of earlier tests may still be among them,
    and end at any time: a test that counts its own takes them away."""
    return {thread for thread in threading.enumerate() if name in thread.name}


def is_running(pid: int) -> bool:
    """A process that has ended, but was not waited for, does not count as running."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
