"""One SQLite database, and the order in which its callers use it.

A server makes its calls in *turns* (`engine/turns.py`). A turn is one transaction: the waiting calls run one
after the other, and one commit syncs the disk for all of them. A call returns only after the commit of its
turn, even if it only read, because it may have read what an earlier call of the turn wrote. If the commit or
an operation fails, the whole turn is rolled back and all its calls fail, including the call that is running,
even if that call catches the error. Then the functions in `taken_back` are called, so that caches drop
entries of the turn.

Outside of a turn, each operation is a transaction of its own. A thread passes the operation to the loop;
without a loop (a test, a command) the operation runs at once.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from tidemark.engine import sqlite_file
from tidemark.engine.rows import RowFault
from tidemark.engine.turns import Call, Turn, TurnThread
from tidemark.protocol.errors import Damaged, OutcomeUnknown, StorageUnavailable

_T = TypeVar("_T")

#: Commits between two checks of the write-ahead log's length.
_COMMITS_BETWEEN: Final = 256
#: Timeout of a write outside of a turn while another process writes. A turn is retried instead, with pauses
#: that grow from the first value to the last.
_ALONE_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.01
_LAST_PAUSE_SECONDS: Final = 1.6
#: A slow call gets this many seconds on its thread; then its outcome is unknown.
SLOW_SECONDS: Final = 30.0
_HOUR_SECONDS: Final = 3600
_log: Final = logging.getLogger("tidemark")

DatabaseOperation = Callable[[sqlite3.Connection], _T]


class Slow(BaseException):
    """Raised in a turn before a slow operation: the call is repeated on a thread. A BaseException, so that no
    `except Exception` in the call catches it."""


class Locked(BaseException):
    """Raised in a turn while another process writes: the call is retried later. A BaseException as `Slow`."""


class Database:
    """A database that any thread may use. `path` is a file, or `MEMORY`. Raises UnusableDatabase."""

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self.path = path
        #: Called when a turn was rolled back.
        self.taken_back: list[Callable[[], object]] = []
        # Guards the connection: held by a turn, or by an operation outside of a turn.
        self._lock = threading.RLock()
        self._turns = TurnThread(self._make_turn)
        #: Whether the turn that runs has written anything.
        self.is_dirty = False
        # Of that turn: the running call, the earlier calls that fail with it, the functions after its commit.
        self._call: Call | None = None
        self._resting: list[Call] = []
        self._then: list[Callable[[], object]] = []
        self._commits = 0
        # By partition: the time before which its damage is not logged again.
        self._log_again_at: dict[str, float] = {}
        self._log_length = sqlite_file.LogLength(path)
        try:
            if read_only:
                self._connection = sqlite_file.open_to_read(Path(path))
            else:
                self._connection = sqlite_file.open_to_write(path, _ALONE_SECONDS)
        except sqlite3.Error as error:
            raise sqlite_file.UnusableDatabase(f"{path} cannot be used: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # --- operations ---

    def operate(self, operation: DatabaseOperation[_T], *, writes: bool) -> _T:
        """Run one operation atomically and return its result. Raises the operation's errors, and
        StorageUnavailable, OutcomeUnknown or Damaged if SQLite fails."""
        if self._turns.is_current():
            return self._in_turn(operation, writes=writes)
        if self._turns.is_elsewhere():
            return self.together(lambda: self._in_turn(operation, writes=writes))
        return self._alone(operation, writes=writes)

    def _alone(self, operation: DatabaseOperation[_T], *, writes: bool) -> _T:
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

    def _in_turn(self, operation: DatabaseOperation[_T], *, writes: bool) -> _T:
        self._refuse_if_lost()
        changes = self._connection.total_changes
        try:
            if writes and not self.is_dirty:
                self._connection.execute("BEGIN IMMEDIATE")
                self.is_dirty = True
            result = operation(self._connection)
            # A thread that drops a cursor resets its statement, while others may be using the connection.
            assert not isinstance(result, sqlite3.Cursor), "an operation returns no cursor"
        except sqlite3.Error as error:
            is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if self._call is not None and not self.is_dirty and is_busy:  # Another process uses the database.
                raise Locked from error
            self._take_back(error)
            if isinstance(error, sqlite3.OperationalError):
                raise StorageUnavailable from error
            self._log_damage("", f"the database is damaged: {error}")
            raise Damaged from error
        except BaseException as error:
            if isinstance(error.__cause__, RowFault):
                self._log_damage(error.__cause__.pk, str(error.__cause__))
            if self._connection.total_changes != changes:  # Never commit half an operation.
                self._take_back(error)
            raise
        if self._call is not None and writes:
            self._call.has_written = True
        return result

    def _log_damage(self, pk: str, fault: str) -> None:
        """Log at most once an hour for each partition, because readers meet a damaged row again and again."""
        now = time.monotonic()
        if now >= self._log_again_at.get(pk, now):
            self._log_again_at[pk] = now + _HOUR_SECONDS
            _log.error("%s", fault)

    def _refuse_if_lost(self) -> None:
        if self._call is not None and self._call.is_lost:
            raise StorageUnavailable

    def then(self, call: Callable[[], object]) -> None:
        """Call a function after the commit of the writes so far; never, if they are rolled back."""
        is_in_turn = self._turns.loop is None or self._turns.is_current()
        if is_in_turn and self.is_dirty:
            self._then.append(call)
        elif not (is_in_turn and self._call is not None and self._call.is_lost):
            call()

    # --- turns ---

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Make calls in turns for the running loop, within this context."""
        try:
            self._wait_for_others(0)
            with self._turns.running():
                yield
        finally:
            self._wait_for_others(_ALONE_SECONDS)

    def _wait_for_others(self, seconds: float) -> None:
        """Set how long the connection itself waits for other processes."""
        with self._lock:
            self._connection.execute(f"PRAGMA busy_timeout = {1000 * seconds:.0f}").fetchall()

    async def run(self, call: Callable[[], _T], /) -> _T:
        """Make a call as `turn` does. A call that needs a slow operation is repeated on a thread."""
        try:
            return await self.turn(call)
        except Slow:
            made = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            await asyncio.wait((made,), timeout=SLOW_SECONDS)
            if not made.done():
                made.add_done_callback(asyncio.Future.exception)  # Nobody awaits the error any more.
                raise OutcomeUnknown
            return made.result()
        finally:
            del made  # Else a reference cycle with its error's traceback keeps it in memory.

    def together(self, call: Callable[[], _T]) -> _T:
        """Make several quick operations of a thread in one turn. Return the call's result."""
        loop = self._turns.loop
        if loop is None or not self._turns.is_elsewhere():
            return call()
        try:
            return asyncio.run_coroutine_threadsafe(self.turn(call), loop).result()
        except Slow:
            return call()

    async def turn(self, call: Callable[[], _T]) -> _T:
        """Make a call of any number of operations, which must not block. Return the result when committed.
        Raises the call's errors; StorageUnavailable or OutcomeUnknown if the turn is not committed."""
        pause = _FIRST_PAUSE_SECONDS
        while self._turns.loop is not None:
            try:
                result: _T = await self._turns.ask(call)
            except Locked as locked:
                if pause > _LAST_PAUSE_SECONDS:
                    _log.error("another process has locked the database for some seconds")
                    raise StorageUnavailable from locked
            else:
                return result
            await asyncio.sleep(pause)
            pause *= 1.5
        return call()

    def check_fast(self) -> None:
        """Call this before a slow operation. Raises Slow in a turn, unless the call has written already: such
        a call cannot be repeated, so it goes on, and the other calls wait."""
        if self._turns.is_current():
            self._refuse_if_lost()
            if self._call is None or not self._call.has_written:
                raise Slow

    def probe(self) -> None:
        """Begin and commit an empty write, to check that writes are possible. Raises like `operate`."""
        self.operate(lambda _: None, writes=True)

    def _make_turn(self, turn: Turn) -> None:
        with self._lock:
            for call in turn.calls:
                if not call.answer.cancelled():
                    self._make(call)
            if self.is_dirty:
                if self.path != sqlite_file.MEMORY:
                    turn.has_run()
                if failed := self._try_commit():
                    self._take_back(failed)
            turn.then = self._end_turn()
        del turn, call

    def _make(self, call: Call) -> None:
        """Make a call of a turn. If the turn is rolled back meanwhile, the call fails although it returns."""
        self._call = call
        try:
            call.result = call.make()
            self._refuse_if_lost()
        except (Slow, Locked) as again:
            call.failure = again.with_traceback(None)
            return
        except Exception as failure:  # noqa: BLE001 - raised again at the caller
            call.failure = failure
            if call.is_lost and not isinstance(failure, StorageUnavailable | OutcomeUnknown | Damaged):
                call.failure = StorageUnavailable()
                call.failure.__cause__ = failure
        finally:
            self._call = None
        if self.is_dirty:
            self._resting.append(call)
        del call  # A failure's traceback keeps this frame, and all its callers' frames, in memory.

    def _try_commit(self) -> Exception | None:
        try:
            self._connection.execute("COMMIT")
        except Exception as failure:  # noqa: BLE001 - every call of the turn fails with it
            return failure
        return None

    def _end_turn(self) -> list[Callable[[], object]]:
        """End a committed turn. Return the functions to call now."""
        if self.is_dirty:
            self._commits += 1
            if self._commits % _COMMITS_BETWEEN == 0:
                self._log_length.look()
        then, self._then, self._resting, self.is_dirty = self._then, [], [], False
        return then

    def _take_back(self, failure: BaseException) -> None:
        """Roll back the turn, and fail the calls that wait for its commit."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        if self.is_dirty and (self._call is not None or isinstance(failure, sqlite3.Error)):
            if self._call is not None:
                self._call.is_lost = True
            _log.error("writes could not be committed: %s", failure)
            for each in self.taken_back:
                each()
        for call in self._resting:
            call.failure = OutcomeUnknown()
        self._resting, self._then, self.is_dirty = [], [], False

    # --- the file ---

    def lengthen_log(self) -> None:
        """Make later commits faster. Call this before serving, on a thread: it takes tens of milliseconds."""
        with suppress(StorageUnavailable, OutcomeUnknown):
            self.operate(lambda _: sqlite_file.lengthen_log(Path(self.path)), writes=True)

    def give_back(self) -> bool:
        """Give some free pages back to the disk. Return whether there may be more."""
        pages = self.operate(sqlite_file.pages_to_give_back, writes=False)
        if pages:
            self.operate(lambda db: sqlite_file.give_back_pages(db, pages), writes=True)
        return pages > 0
