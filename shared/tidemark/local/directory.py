"""The data directory: where the engines keep their files, locked while a system runs on it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from tidemark.local.dynoxide import DATABASE_NAME
from tidemark.server.lock import DataDirectoryInUse, DirectoryLock

PREFIX = "tidemark-local-"
#: A file system in memory: SQLite runs there as it does on disk, but an fsync costs nothing.
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes the name in it
#: A directory that was made a moment ago may not be locked yet.
ABANDONED_SECONDS = 60.0


class DataDirectoryUnusable(OSError):
    """The data directory cannot be made, or not be written."""


class DataDirectory:
    """An open (locked) data directory. A temporary one is removed when it is closed."""

    def __init__(self, path: Path, *, temporary: bool = False) -> None:
        self.path = path
        self.temporary = temporary
        self.lock = DirectoryLock(path)

    @classmethod
    def open(cls, path: Path) -> DataDirectory:
        """Raises DataDirectoryInUse, OSError."""
        directory = cls(path.absolute())
        directory._prepare()
        return directory

    @classmethod
    def open_in_memory(cls) -> DataDirectory:
        root = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
        _remove_abandoned(root)
        directory = cls(Path(tempfile.mkdtemp(prefix=PREFIX, dir=root)), temporary=True)
        directory._prepare()
        return directory

    @property
    def database(self) -> Path:
        return self.path / "dynamodb" / DATABASE_NAME

    @property
    def objects(self) -> Path:
        return self.path / "s3"

    def log(self, engine: str) -> Path:
        return self.path / "logs" / f"{engine}.log"

    def close(self) -> None:
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        self.lock.release()

    def _prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.acquire()
            for directory in (self.database.parent, self.objects, self.log("x").parent):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{self.path} cannot be used: {error.strerror}; choose another DATA_DIR"
            raise DataDirectoryUnusable(message) from error


def _remove_abandoned(root: Path) -> None:
    """What a run that was killed left in memory."""
    for path in root.glob(f"{PREFIX}*"):
        lock = DirectoryLock(path)
        try:
            if time.time() - lock.path.stat().st_mtime < ABANDONED_SECONDS:
                continue
            lock.acquire(patience_seconds=0)
        except (DataDirectoryInUse, OSError):
            continue
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
