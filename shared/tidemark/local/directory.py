"""The data directory: where the engines keep their files, locked while a system runs on it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tidemark.server.lock import DirectoryLock

PREFIX = "tidemark-local-"


class DataDirectoryUnusable(OSError):
    """The data directory cannot be made, or not be written."""


class DataDirectory:
    """An open (locked) data directory. A temporary one, for logs alone, is removed when it is closed."""

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
        directory = cls(Path(tempfile.mkdtemp(prefix=PREFIX)), temporary=True)
        directory._prepare()
        return directory

    @property
    def tables(self) -> Path:
        return self.path / "tables"

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
            for directory in (self.tables, self.objects, self.log("x").parent):
                directory.mkdir(exist_ok=True)
        except OSError as error:
            message = f"{self.path} cannot be used: {error.strerror}; choose another DATA_DIR"
            raise DataDirectoryUnusable(message) from error
