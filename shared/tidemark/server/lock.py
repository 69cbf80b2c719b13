"""One running system per data directory.

The lock is an flock on a file, and the engines inherit the descriptor. The kernel lets go of it only when the
last of these processes is gone, so no engine of an earlier run has its files open once the lock is taken.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

LOCK_NAME = "lock"
#: After kill -9 the engines follow within milliseconds; a start that comes right then waits for them.
PATIENCE_SECONDS = 2.0
POLL_SECONDS = 0.02


class DataDirectoryInUse(RuntimeError):
    """Another process holds the data directory; the message says which."""


class DirectoryLock:
    """Held from `acquire` until `release` or the end of every process that inherited it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_NAME
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not held")
        return self._descriptor

    def acquire(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Raises DataDirectoryInUse."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + patience_seconds
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                os.close(descriptor)
                holder = self.path.read_text(errors="replace").strip()
                who = f"process {holder}" if holder else "another process"
                raise DataDirectoryInUse(
                    f"{self.path.parent} is in use by {who}: stop it, or choose another DATA_DIR"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
