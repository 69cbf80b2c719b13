"""A process for what is measured of a whole one; what runs in this one; which others run."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.thread import _worker
from multiprocessing import get_context
from pathlib import Path
from typing import Final, TypeVar

_R = TypeVar("_R")


def alone(function: Callable[..., _R], *arguments: object) -> _R:
    """What a function of a module returns in a fresh process, where no threads of other tests run."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


#: Of the engines, which all tests of a process share, and of receivers, which live as long as it does.
_SHARED: Final = ("moto", "process_request_thread", "tidemark-dynamodb", "tidemark-wake", "watch ministack")
#: Where a thread waits for work: of a pool, or by a condition.
_IDLE: Final = {_worker.__code__, threading.Condition.wait.__code__}


def working_threads() -> set[threading.Thread]:
    """Those of tests that do something."""
    frames = sys._current_frames()
    return {
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
        and not any(name in thread.name for name in _SHARED)
        and (frame := frames.get(thread.ident or 0))
        and frame.f_code not in _IDLE
    }


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
