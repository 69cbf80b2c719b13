"""One running system per data directory.

The lock is an flock on a file, and the engines inherit the descriptor. The kernel lets go of it only when the
last of these processes is gone, so no engine of an earlier run has its files open once the lock is taken.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_NAME = "lock"
#: After kill -9 the engines follow within milliseconds; a start that comes right then waits for them.
_PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.02


class DataDirectoryInUse(RuntimeError):
    """Another process holds the data directory; the message says which."""


@contextmanager
def locked(directory: Path, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[int]:
    """The lock is held until the end of the block, and of every process that inherited its descriptor, which
    this yields. Makes the directory if it is not there. Raises DataDirectoryInUse, OSError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{directory} cannot be used: {error.strerror}; choose another DATA_DIR") from error
    path = directory / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, path, time.monotonic() + patience_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            holder = path.read_text(errors="replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise DataDirectoryInUse(f"{path.parent} is in use by {who}: stop it, or choose another DATA_DIR")
        time.sleep(_POLL_SECONDS)
