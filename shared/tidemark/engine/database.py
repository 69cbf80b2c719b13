"""One SQLite database, and who may use it when.

A server makes its calls by *turns* on its event loop. A turn is one transaction: the calls that wait run one
after the other, each whole, and the commit is one sync of the disk for all of them, made by a thread while
the loop serves connections. No call is answered before the commit of its turn, whether it wrote or only read:
what was seen is on disk. A commit or an operation that fails takes back the whole turn: every call of it is
refused, also the one that is running, whatever it makes of the failure. `taken_back` is called, for what
remembers what was written.

    calls wait ─▶ run one after the other ─▶ COMMIT on a thread ─▶ answers
                                             the next ones wait

Outside of a turn, each operation is a transaction of its own: a thread hands it to the loop, and where there
is no loop (a test, a command) it is carried out at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from tidemark.protocol.errors import Damaged, OutcomeUnknown, StorageUnavailable

_T = TypeVar("_T")

MEMORY: Final = ":memory:"
#: Of the file: `TIDE`, and the format of what is in it.
APPLICATION_ID: Final = 0x54494445
#: 2: rows and messages have checksums.
FORMAT: Final = 2
#: SQLite's name for it.
_INCREMENTAL: Final = 2
_PAGE_BYTES: Final = 8192
#: The commit that makes the write-ahead log longer copies it into the database, and its file is used again
#: from the beginning (https://sqlite.org/wal.html#ckpt).
_LOG_PAGES: Final = 2000
#: What may be left of a file that had to be longer: while another process reads, the log is not used again.
_LEFT_LOG_BYTES: Final = 32 * 1024 * 1024
#: It is said that a log is longer than this. It is looked at after so many commits.
LONG_LOG_BYTES: Final = 64 * 1024 * 1024
_COMMITS_BETWEEN: Final = 256
#: Free pages that stay in the file for what is written next, as a part of all.
_SPARE_PART: Final = 10
#: How many are given back in one turn.
_GIVEN_BACK: Final = 64
#: A store of an earlier release keeps its free pages unless it is written anew; where that takes a second,
#: it is done when the store is opened.
_QUICKLY_REWRITTEN_PAGES: Final = 64 * 1024 * 1024 // _PAGE_BYTES

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
_TABLES: Final = """
BEGIN IMMEDIATE;
CREATE TABLE items (
    pk TEXT NOT NULL, sk TEXT NOT NULL, item BLOB NOT NULL, ttl INTEGER, PRIMARY KEY (pk, sk)
) WITHOUT ROWID;
CREATE INDEX items_by_ttl ON items (ttl) WHERE ttl IS NOT NULL;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, due_ms INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE INDEX messages_due ON messages (topic, due_ms, id);
"""
#: Of format 1. No row is written for it: the column is missing in those that are there, which reads as NULL.
_CHECKSUMS: Final = f"""
ALTER TABLE items ADD COLUMN crc INTEGER;
ALTER TABLE messages ADD COLUMN crc INTEGER;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
#: What is only read stays of its format.
_FORMAT_1: Final = """
CREATE TEMP VIEW items AS SELECT *, NULL AS crc FROM main.items;
CREATE TEMP VIEW messages AS SELECT *, NULL AS crc FROM main.messages;
"""

_log: Final = logging.getLogger("tidemark")

Operation = Callable[[sqlite3.Connection], _T]


class UnusableDatabase(Exception):
    """The file is another program's, or of a later version, or damaged; the message says which."""


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, on whose thread does not matter. The mount may be read-only. Raises
    UnusableDatabase, sqlite3.Error."""
    options: dict[str, Any] = {"uri": True, "isolation_level": None, "check_same_thread": False, "timeout": 5}
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db: sqlite3.Connection = sqlite3.connect(uri, **options)
    try:
        _, version = _check_kind(db, path)
    except sqlite3.OperationalError as failure:
        # Without the files that its write-ahead log needs beside it. An empty log needs none.
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size:
            raise UnusableDatabase(
                f"{path} cannot be used where nothing can be written ({failure}): {log.name} has what is "
                "not in it yet; copy the folder to where it can be written, and name the copy"
            ) from failure
        db = sqlite3.connect(f"{uri}&immutable=1", **options)
        _, version = _check_kind(db, path)
    if version < FORMAT:
        db.executescript(_FORMAT_1)
    return db


def _check_kind(db: sqlite3.Connection, path: Path | str) -> tuple[int, int]:
    """How many tables it has, and of which format. Raises UnusableDatabase if it is not one of ours."""
    application, version, tables = (
        db.execute(question).fetchone()[0]
        for question in (
            "PRAGMA application_id",
            "PRAGMA user_version",
            "SELECT count(*) FROM sqlite_master",
        )
    )
    if tables and application != APPLICATION_ID:
        raise UnusableDatabase(f"{path} is a database of another program")
    if version > FORMAT:
        raise UnusableDatabase(
            f"{path} was written by a later version of Tidemark: its format is {version}, and this "
            f"version reads {FORMAT} at most"
        )
    return tables, version


class Slow(BaseException):
    """Raised in a turn by what takes long: the call is made again on a thread. Nothing in between may take it
    for an error."""


class _Call:
    """The call of a turn that is running."""

    def __init__(self) -> None:
        self.has_written = False
        #: Its turn was taken back: what it has written, or seen of others, is gone.
        self.is_lost = False


class Database:
    """Safe to use from any thread. `path` is a file, or `MEMORY`. Raises UnusableDatabase."""

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        #: Called when a turn was taken back.
        self.taken_back: list[Callable[[], object]] = []
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: int | None = None
        #: Whether the turn that runs has written anything.
        self.is_dirty = False
        # Of that turn: the call that is running; what is done after the commit, and whose answers wait.
        self._call: _Call | None = None
        self._then: list[Callable[[], object]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._turns: SimpleQueue[list[asyncio.Future[None]] | None] = SimpleQueue()
        self._commits = 0
        self._next_said_bytes = LONG_LOG_BYTES
        try:
            self._connection = self._open()
        except sqlite3.Error as error:
            raise UnusableDatabase(f"{path} cannot be used: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._read_only:
            return open_to_read(Path(self.path))
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5)
        tables, version = _check_kind(db, self.path)
        if self.path != MEMORY:
            _make_private(Path(self.path))
        db.executescript(_SETTINGS)
        if tables:
            if version < FORMAT:
                db.executescript("BEGIN IMMEDIATE;" + _CHECKSUMS)
            _tidy(db)
        else:
            db.executescript(_TABLES + _CHECKSUMS)
        return db

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # --- operations ---

    def operate(self, operation: Operation[_T], *, writes: bool) -> _T:
        """The result of one operation, carried out whole or not at all. Raises what it raises, and
        StorageUnavailable, OutcomeUnknown or Damaged where SQLite fails."""
        if self._loop is None:
            return self._alone(operation, writes=writes)
        if threading.get_ident() == self._loop_thread:
            return self._in_turn(operation, writes=writes)
        return self.together(lambda: self._in_turn(operation, writes=writes))

    def _alone(self, operation: Operation[_T], *, writes: bool) -> _T:
        with self._lock:
            try:
                result = self._in_turn(operation, writes=writes)
                if self.is_dirty and (failed := self._try_commit()):
                    self._take_back(failed)
                    raise OutcomeUnknown from failed
            except BaseException as failure:
                self._take_back(failure)
                raise
            then = self._end_turn()
        for each in then:
            each()
        return result

    def _in_turn(self, operation: Operation[_T], *, writes: bool) -> _T:
        self._refuse_if_lost()
        changes = self._connection.total_changes
        try:
            if writes and not self.is_dirty:
                self._connection.execute("BEGIN IMMEDIATE")
                self.is_dirty = True
            result = operation(self._connection)
            # Its statement would be reset by the thread that lets go of it, while others use the connection.
            assert not isinstance(result, sqlite3.Cursor), "an operation returns no cursor"
        except sqlite3.Error as error:
            self._take_back(error)
            if isinstance(error, sqlite3.OperationalError):
                raise StorageUnavailable from error
            _log.error("the database is damaged: %s", error)
            raise Damaged from error
        except BaseException as error:
            if self._connection.total_changes != changes:  # Half an operation must not be committed.
                self._take_back(error)
            raise
        if self._call is not None and writes:
            self._call.has_written = True
        return result

    def _refuse_if_lost(self) -> None:
        if self._call is not None and self._call.is_lost:
            raise StorageUnavailable

    def then(self, call: Callable[[], object]) -> None:
        """Do this once what was written so far is committed; never, if it is taken back."""
        is_in_turn = self._loop is None or threading.get_ident() == self._loop_thread
        if is_in_turn and self.is_dirty:
            self._then.append(call)
        elif not (is_in_turn and self._call is not None and self._call.is_lost):
            call()

    # --- turns ---

    @contextmanager
    def serving(self) -> Iterator[None]:
        """From here on, calls are made by turns on the running loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        committer = threading.Thread(target=self._commit_turns, name="tidemark-commit", daemon=True)
        committer.start()
        try:
            yield
        finally:
            self._turns.put(None)
            committer.join()
            self._loop = self._loop_thread = None

    async def run(self, call: Callable[[], _T], /) -> _T:
        """As `turn`; a call that asks for something slow is made again on a thread."""
        try:
            return await self.turn(call)
        except Slow:
            return await asyncio.to_thread(call)

    def together(self, call: Callable[[], _T]) -> _T:
        """The result of a call of a thread that makes several quick operations: in one turn."""
        if self._loop is None or threading.get_ident() == self._loop_thread:
            return call()
        try:
            return asyncio.run_coroutine_threadsafe(self.turn(call), self._loop).result()
        except Slow:
            return call()

    async def turn(self, call: Callable[[], _T]) -> _T:
        """The result of a call that makes any number of operations, once they are committed. Raises what it
        raises, and StorageUnavailable or OutcomeUnknown where its turn is not committed. The call must
        not wait for anything."""
        while not self._is_free.is_set():
            await self._is_free.wait()
        try:
            result = self._called(call)
        except Slow:
            raise
        except Exception:
            await self._committed()  # What led to the refusal is then on disk.
            raise
        await self._committed()
        return result

    def _called(self, call: Callable[[], _T]) -> _T:
        """What the call returns or raises, unless its turn was taken back: it rests on what is gone."""
        running = self._call = _Call()
        try:
            result = call()
            self._refuse_if_lost()
        except (Slow, StorageUnavailable, OutcomeUnknown, Damaged):
            raise
        except Exception as refusal:
            if running.is_lost:
                raise StorageUnavailable from refusal
            raise
        finally:
            self._call = None
        return result

    def check_fast(self) -> None:
        """Called before what takes long. Raises Slow in a turn; but a call that has written already cannot be
        made again, so the others wait for it."""
        if threading.get_ident() == self._loop_thread:
            self._refuse_if_lost()
            if self._call is None or not self._call.has_written:
                raise Slow

    async def _committed(self) -> None:
        """Until the turn is. Its commit begins when every call that waits now has run."""
        if not self.is_dirty:
            return
        assert self._loop is not None
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._begin_commit)
        await waiting

    def _begin_commit(self) -> None:
        if not self._waiting:
            return  # It was taken back meanwhile.
        turn, self._waiting = self._waiting, []
        self._is_free.clear()
        if self.path == MEMORY:
            self._end_commit(turn, self._try_commit())
        else:
            self._turns.put(turn)

    def _commit_turns(self) -> None:
        """The thread that commits. Meanwhile nobody else uses the connection."""
        while (turn := self._turns.get()) is not None:
            failure = self._try_commit()
            self._commits += 1
            if self._commits % _COMMITS_BETWEEN == 0:
                self._look_at_the_log()
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._end_commit, turn, failure)

    def _try_commit(self) -> Exception | None:
        try:
            self._connection.execute("COMMIT")
        except Exception as failure:  # noqa: BLE001 - every call of the turn must hear of it
            return failure
        return None

    def _end_commit(self, turn: list[asyncio.Future[None]], failure: Exception | None) -> None:
        self._is_free.set()
        if failure is not None:
            self._waiting = turn
            self._take_back(failure)
            return
        for each in self._end_turn():
            each()
        for waiting in turn:
            if not waiting.done():  # Or its request was cancelled.
                waiting.set_result(None)

    def _end_turn(self) -> list[Callable[[], object]]:
        """The calls to make now that the turn is committed."""
        then, self._then, self.is_dirty = self._then, [], False
        return then

    def _take_back(self, failure: BaseException) -> None:
        """Undo all of the turn, and refuse those who wait for its commit."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        waiting, self._waiting, self._then = self._waiting, [], []
        if self.is_dirty and (self._loop is not None or isinstance(failure, sqlite3.Error)):
            if self._call is not None:
                self._call.is_lost = True
            _log.error("what was written could not be committed: %s", failure)
            for each in self.taken_back:
                each()
        self.is_dirty = False
        for each_waiting in waiting:
            if not each_waiting.done():
                each_waiting.set_exception(OutcomeUnknown())

    # --- the file ---

    def give_back(self) -> bool:
        """Return some free pages to the disk. Whether there may be more."""
        pages = self.operate(_to_give_back, writes=False)
        if pages:
            self.operate(lambda db: _one(db, f"PRAGMA incremental_vacuum({pages})"), writes=True)
        return pages == _GIVEN_BACK

    def _look_at_the_log(self) -> None:
        """Say that it is too long, and again each time that it has doubled."""
        with suppress(OSError):
            size = Path(f"{self.path}-wal").stat().st_size
            if size <= LONG_LOG_BYTES:
                self._next_said_bytes = LONG_LOG_BYTES
            elif size > self._next_said_bytes:
                self._next_said_bytes = 2 * size
                _log.warning(
                    "the write-ahead log has %d MB: another process, such as a backup, reads the database "
                    "and holds it; it shrinks when that has ended",
                    size >> 20,
                )


def _create_private(path: Path) -> None:
    """For its owner alone, as SQLite makes the files beside it. Whether it can be used, SQLite says."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _make_private(path: Path) -> None:
    """Those of an earlier release, which everybody could read."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            Path(f"{path}{suffix}").chmod(0o600)


def _one(db: sqlite3.Connection, question: str) -> int:
    """The number that is the answer; 0 without one."""
    found = db.execute(question).fetchall()
    return found[0][0] if found and found[0] else 0


def _to_give_back(db: sqlite3.Connection) -> int:
    if _one(db, "PRAGMA auto_vacuum") != _INCREMENTAL:
        return 0
    spare = _one(db, "PRAGMA page_count") // _SPARE_PART
    return max(0, min(_one(db, "PRAGMA freelist_count") - spare, _GIVEN_BACK))


def _tidy(db: sqlite3.Connection) -> None:
    """Empty the log, and let a store of an earlier release give back its free pages. A full disk or another
    process that reads may keep it from that, and the next start tries again."""
    with suppress(sqlite3.Error):
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        used = _one(db, "PRAGMA page_count") - _one(db, "PRAGMA freelist_count")
        if _one(db, "PRAGMA auto_vacuum") != _INCREMENTAL and used <= _QUICKLY_REWRITTEN_PAGES:
            db.execute("VACUUM")
