"""Creates, opens and shrinks the file of a database."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MEMORY: Final = ":memory:"
#: The application id in the file's header, `TIDE` in ASCII; and the format of the content.
APPLICATION_ID: Final = 0x54494445
FORMAT: Final = 2
_PAGE_BYTES: Final = 8192
#: SQLite's number for `auto_vacuum = INCREMENTAL`.
_INCREMENTAL: Final = 2
#: A commit that makes the write-ahead log longer than this starts a checkpoint, after which the log's file is
#: used from its beginning again (https://sqlite.org/wal.html#ckpt).
_LOG_PAGES: Final = 2000
#: The log's file gets this length at the start, which a checkpoint's commit seldom exceeds.
_LOG_BYTES: Final = 17 * 1024 * 1024
#: The log grows while another process reads and no checkpoint can finish; then it is cut to this size.
_LEFT_LOG_BYTES: Final = 32 * 1024 * 1024
#: A log longer than this is reported with a warning.
LONG_LOG_BYTES: Final = 64 * 1024 * 1024
#: One page in 10 stays free in the file, for the next writes.
_SPARE_PART: Final = 10
#: The most pages that one turn gives back.
_GIVEN_BACK: Final = 64

_SETTINGS: Final = f"""
PRAGMA page_size = {_PAGE_BYTES};
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA cell_size_check = ON;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA wal_autocheckpoint = {_LOG_PAGES};
PRAGMA journal_size_limit = {_LEFT_LOG_BYTES};
PRAGMA cache_size = -32768;
PRAGMA temp_store = MEMORY;
"""
_TABLES: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE items (
    pk TEXT NOT NULL, sk TEXT NOT NULL, item BLOB NOT NULL, ttl INTEGER, crc INTEGER, PRIMARY KEY (pk, sk)
) WITHOUT ROWID;
CREATE INDEX items_by_ttl ON items (ttl) WHERE ttl IS NOT NULL;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, due_ms INTEGER NOT NULL, body TEXT NOT NULL,
    crc INTEGER
);
CREATE INDEX messages_due ON messages (topic, due_ms, id);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_log: Final = logging.getLogger("tidemark")


class UnusableDatabase(OSError):
    """The file is another program's, of another version, or damaged. The message names the reason."""


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a read-only connection for any thread. The file system may be read-only too. Raises
    UnusableDatabase, sqlite3.Error."""
    options: dict[str, Any] = {"uri": True, "isolation_level": None, "check_same_thread": False, "timeout": 5}
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db: sqlite3.Connection = sqlite3.connect(uri, **options)
    try:
        _check_kind(db, path)
    except sqlite3.OperationalError as failure:
        # SQLite cannot create the files of the write-ahead log. A log without commits needs none: it is
        # empty, or has the zeros of `lengthen_log` in place of its header of 32 bytes.
        log, header = Path(f"{path}-wal"), b""
        with suppress(FileNotFoundError), log.open("rb") as file:
            header = file.read(32)
        if any(header):
            raise UnusableDatabase(
                f"{path} cannot be opened in a read-only folder ({failure}): {log.name} has commits that are "
                "not in it yet; copy the folder to a writable place, and give the path of the copy"
            ) from failure
        db = sqlite3.connect(f"{uri}&immutable=1", **options)
        _check_kind(db, path)
    return db


def _check_kind(db: sqlite3.Connection, path: Path | str) -> int:
    """Return the number of tables. Raises UnusableDatabase if the file is not in this version's format."""
    application, version, tables = (
        db.execute(question).fetchone()[0]
        for question in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if tables and application != APPLICATION_ID:
        raise UnusableDatabase(f"{path} is a database of another program")
    if tables and version != FORMAT:
        which = "a later" if version > FORMAT else "an earlier"
        raise UnusableDatabase(
            f"{path} was written by {which} version of Tidemark: its format is {version}, and this "
            f"version reads only {FORMAT}"
        )
    return int(tables)


def open_to_write(path: Path | str, wait_seconds: float) -> sqlite3.Connection:
    """Open a connection for any thread, which waits `wait_seconds` for other processes. Raises
    UnusableDatabase, sqlite3.Error."""
    if path != MEMORY:
        # With mode 600, which SQLite also gives the log's files. SQLite reports errors later.
        with suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=wait_seconds)
    tables = _check_kind(db, path)
    db.executescript(_SETTINGS)
    if tables:
        with suppress(sqlite3.Error):  # If another process is reading, a later start empties the log.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    else:
        db.executescript(_TABLES)
    return db


def lengthen_log(path: Path) -> None:
    """Write zeros behind the write-ahead log's commits, because a commit is faster if its sync need not store
    a new length of the file. SQLite ignores the zeros, which fit no checksum. Call this in a transaction that
    writes, so that no process writes to the log or shortens it meanwhile."""
    with suppress(OSError), Path(f"{path}-wal").open("r+b") as log:  # Only speed is lost.
        missing = _LOG_BYTES - log.seek(0, os.SEEK_END)
        if 0 < missing < shutil.disk_usage(path.parent).free // 10:
            log.write(bytes(missing))
            log.flush()
            os.fsync(log.fileno())


class LogLength:
    """Warns when the write-ahead log is too long, and again when its length has doubled."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(f"{path}-wal")
        self._next_warning_bytes = LONG_LOG_BYTES

    def look(self) -> None:
        with suppress(OSError):
            size = self._path.stat().st_size
            if size <= LONG_LOG_BYTES:
                self._next_warning_bytes = LONG_LOG_BYTES
            elif size > self._next_warning_bytes:
                self._next_warning_bytes = 2 * size
                _log.warning(
                    "the write-ahead log has %d MB: another process, such as a backup, reads the database; "
                    "the log shrinks when that process has ended",
                    size >> 20,
                )


def _one(db: sqlite3.Connection, question: str) -> int:
    """The number in the first row of the result; 0 without a row."""
    found = db.execute(question).fetchall()
    return found[0][0] if found and found[0] else 0


def pages_to_give_back(db: sqlite3.Connection) -> int:
    """The number of free pages that one turn can give back to the disk."""
    if _one(db, "PRAGMA auto_vacuum") != _INCREMENTAL:  # A store of an earlier release.
        return 0
    spare = _one(db, "PRAGMA page_count") // _SPARE_PART
    return max(0, min(_one(db, "PRAGMA freelist_count") - spare, _GIVEN_BACK))


def give_back_pages(db: sqlite3.Connection, pages: int) -> None:
    _one(db, f"PRAGMA incremental_vacuum({pages})")
