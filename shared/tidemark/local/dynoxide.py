"""dynoxide: DynamoDB and DynamoDB Streams in one small binary, on SQLite, with one fsync for each write.

Two things it does not do are done here, on its database file, through SQLite's own locking:

- It numbers a stream record with `MAX(CAST(sequence_number AS INTEGER))` over all records of the table,
  without an index: a put slows down with every put before it. An index on that very expression makes it flat.
- It never trims stream records. AWS keeps them for a day, so a day is what is kept here.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from tidemark.local import guard as guard_module
from tidemark.local.process import Child, EngineFailed
from tidemark.server.ports import LOOPBACK, free_port

SHA256 = "be909b7910d3fb552e85db10ef3c8ebae4bd35fee0f26dffdb6dfa5cc656426e"
PACKAGED = Path("node_modules/@dynoxide/linux-x64/dynoxide")
DATABASE_NAME = "dynamodb.sqlite"

#: The record's number is searched by table and, in GetRecords, by table and number: one index serves both.
#: With it a put after 50,000 others takes 0.9 ms, without it 5.4 ms (and twice that after twice as many).
INDEX = (
    "CREATE INDEX IF NOT EXISTS tidemark_stream_records"
    " ON _stream_records (table_name, CAST(sequence_number AS INTEGER))"
)
NEWEST_RECORD = (
    "SELECT id FROM _stream_records WHERE table_name = ?"
    " ORDER BY CAST(sequence_number AS INTEGER) DESC LIMIT 1"
)
RETENTION_SECONDS = 24 * 3600
#: One trimming transaction holds the write lock while it runs; dynoxide waits for it, so it must be short.
TRIM_ROWS = 1000
TRIM_SECONDS = 2.0
BUSY_SECONDS = 30.0
#: Another process may have taken the port, and may never respond.
RESPONSE_SECONDS = 1.0
PORT_ATTEMPTS = 5


class EngineNotAvailable(RuntimeError):
    """There is no binary that may be run; the message says why."""


def find_binary(environment: Mapping[str, str], root: Path) -> Path:
    """The pinned binary: `DYNOXIDE_PATH`, or the one in the npm package. Raises EngineNotAvailable.

    The hash is checked either way: the index and the trimming know this build's database.
    """
    named = environment.get("DYNOXIDE_PATH")
    path = Path(named) if named else root / PACKAGED
    if not path.is_file():
        raise EngineNotAvailable(
            f"{path} is missing" + ("" if named else " (npm ci installs it on Linux x64)")
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise EngineNotAvailable(
            f"{path} is not the pinned build (sha256 {found[:12]}…, expected {SHA256[:12]}…)"
        )
    if not os.access(path, os.X_OK):
        raise EngineNotAvailable(f"{path} is not executable")
    return path


class Dynoxide:
    """A running dynoxide on a database file."""

    def __init__(self, binary: Path, database: Path, log_path: Path) -> None:
        self.binary = binary
        self.database = database
        self.child = Child("dynoxide", log_path)
        self.port = 0
        self._descriptors: tuple[int, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self, descriptors: tuple[int, ...] = ()) -> None:
        """Returns at once; `wait_until_ready` tells whether it works."""
        self.port = free_port()
        options = {"--host": LOOPBACK, "--port": str(self.port), "--db-path": str(self.database)}
        guard = [sys.executable, "-S", "-E", guard_module.__file__, str(os.getpid())]
        arguments = [part for option in options.items() for part in option]
        self.child.start([*guard, str(self.binary), *arguments], {}, descriptors)
        self._descriptors = descriptors

    def wait_until_ready(self) -> None:
        """Raises EngineFailed. A port that was taken in between is changed for another."""
        for attempt in range(PORT_ATTEMPTS):
            try:
                self.child.wait_until(self._is_ready)
                break
            except EngineFailed as failure:
                if attempt == PORT_ATTEMPTS - 1 or "already in use" not in str(failure):
                    raise
                self.start(self._descriptors)
        prepare_database(self.database)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=RESPONSE_SECONDS)
        try:
            connection.request("GET", "/")
            return (connection.getresponse().getheader("server") or "").startswith("Dynoxide")
        except OSError:
            return False
        finally:
            connection.close()


def prepare_database(database: Path, now: Callable[[], float] = time.time) -> None:
    """Idempotent, and safe beside a running dynoxide."""
    with closing(_open(database)) as connection:
        connection.execute(INDEX)
    trim_stream_records(database, older_than=now() - RETENTION_SECONDS)


def trim_stream_records(database: Path, *, older_than: float, budget_seconds: float = TRIM_SECONDS) -> int:
    """Remove the stream records from before `older_than` (Unix seconds), for at most about `budget_seconds`.

    The newest record of each table stays whatever its age: dynoxide takes the next number from it.
    Returns how many were removed.
    """
    removed = 0
    deadline = time.monotonic() + budget_seconds
    with closing(_open(database)) as connection:
        tables = connection.execute("SELECT table_name FROM _tables").fetchall()
        keep = [row[0] for table in tables for row in connection.execute(NEWEST_RECORD, table)]
        while time.monotonic() < deadline:
            rows = _delete_oldest(connection, older_than, keep)
            removed += rows
            if rows < TRIM_ROWS:
                break
    return removed


def _delete_oldest(connection: sqlite3.Connection, older_than: float, keep: list[int]) -> int:
    """Records are numbered in the order of time, so only the oldest few are looked at."""
    marks = ",".join("?" * len(keep))
    statement = (
        "DELETE FROM _stream_records WHERE id IN ("
        f"SELECT id FROM _stream_records WHERE id NOT IN ({marks}) ORDER BY id LIMIT {TRIM_ROWS}"
        ") AND created_at < ?"
    )
    return connection.execute(statement, (*keep, int(older_than))).rowcount


def _open(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=BUSY_SECONDS, isolation_level=None)
