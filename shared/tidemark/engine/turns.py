"""Calls of an event loop, made in turns on a thread, so that a slow disk does not block the loop.

    calls wait ─▶ the thread makes one after the other ─▶ and commits them ─▶ results
                  the loop waits, but not for long        the loop serves, the next calls wait

The loop waits for the calls, because two running threads would only compete for the GIL. If the calls take
longer than 50 ms, the disk is slow, and the loop goes on without them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from tidemark.protocol.errors import OutcomeUnknown, StorageSilent, StorageUnavailable

#: The longest time for which the loop waits for the calls of a turn.
_BRIEFLY_SECONDS: Final = 0.05
#: A turn that takes longer hangs: its calls and all later calls fail until the turn is over.
PATIENCE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5

_log: Final = logging.getLogger("tidemark")


@dataclass(slots=True, eq=False)
class Call:
    """One call of a turn, and its outcome. Only the loop's thread may use `answer`."""

    make: Callable[[], Any]
    answer: asyncio.Future[Any]
    result: Any = None
    failure: BaseException | None = None
    has_written: bool = False
    #: Whether writes that it made, or may have read, were rolled back while it was running.
    is_lost: bool = False

    def settle(self) -> None:
        if self.failure is not None:
            self.refuse(self.failure)
        elif not self.answer.done():  # An answer that is done: the request was cancelled.
            self.answer.set_result(self.result)

    def refuse(self, failure: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(failure)


class Turn:
    def __init__(self, calls: list[Call], began: float) -> None:
        self.calls = calls
        self.began = began
        #: Functions that the loop calls after the commit.
        self.then: list[Callable[[], object]] = []
        self._is_over = False
        self._run = threading.Lock()
        self._run.acquire()
        #: The first to acquire this decides: the loop, when it stops waiting (the thread reports later by a
        #: callback), or the thread, when it reports while the loop waits.
        self._heard = threading.Lock()

    def wait_briefly(self) -> bool:
        """Wait, on the loop's thread. Return whether the turn is over; if not, a callback ends it later."""
        if not self._run.acquire(timeout=_BRIEFLY_SECONDS):
            if self._heard.acquire(blocking=False):
                return False
            self._run.acquire()
        return self._is_over

    def has_run(self, *, is_over: bool = False) -> bool:
        """Report, on the turn's thread, that all calls are made. Return whether the loop was waiting."""
        is_heard = self._heard.acquire(blocking=False)
        if is_heard:
            self._is_over = is_over
            self._run.release()
        return is_heard


class TurnThread:
    """Runs turns on a thread, for one event loop. `make` makes and commits the calls of a turn."""

    def __init__(self, make: Callable[[Turn], None]) -> None:
        self._make = make
        self.loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = self._own_thread = 0
        self._turns: SimpleQueue[Turn | None] = SimpleQueue()
        self._waiting: list[Call] = []
        #: The turn that is under way, and whether it hangs.
        self._turn: Turn | None = None
        self._hangs = False

    def is_current(self) -> bool:
        """Whether the caller is on the thread, in a turn."""
        return threading.get_ident() == self._own_thread

    def is_elsewhere(self) -> bool:
        """Whether the caller is on another thread than the loop's and the turns' own."""
        here = threading.get_ident()
        return self.loop is not None and here not in (self._own_thread, self._loop_thread)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread within this context, for the running loop."""
        self.loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        thread = threading.Thread(target=self._work, name="tidemark-engine", daemon=True)
        thread.start()
        watch = asyncio.ensure_future(self._watch())
        try:
            yield
        finally:
            watch.cancel()
            self._turns.put(None)
            thread.join()
            self.loop, self._loop_thread, self._own_thread = None, 0, 0

    async def ask(self, make: Callable[[], Any]) -> Any:
        """Make the call in a turn. Return its result, or raise its error, after the commit. Raises
        OutcomeUnknown if its turn hangs, StorageUnavailable if the turn before it begins to hang, and
        StorageSilent while a turn hangs already."""
        if self._hangs:
            raise StorageSilent
        assert self.loop is not None
        if not self._waiting and self._turn is None:
            self.loop.call_soon(self._begin)  # Calls of this round of the loop share the turn.
        self._waiting.append(Call(make, self.loop.create_future()))
        # No variable holds the call, because its error's traceback would make a reference cycle.
        return await self._waiting[-1].answer

    def _begin(self) -> None:
        if self._turn is None and self._waiting:
            assert self.loop is not None
            self._turn, self._waiting = Turn(self._waiting, self.loop.time()), []
            turn = self._turn
            self._turns.put(turn)
            if turn.wait_briefly():
                self._end(turn)

    def _work(self) -> None:
        self._own_thread = threading.get_ident()
        while (turn := self._turns.get()) is not None:
            self._make(turn)
            if not turn.has_run(is_over=True):
                assert self.loop is not None
                self.loop.call_soon_threadsafe(self._end, turn)
            del turn  # Else the bodies of this turn stay in memory until the next.

    def _end(self, turn: Turn) -> None:
        if self._hangs:
            _log.warning("the disk answers again")
        self._turn, self._hangs = None, False
        for each in turn.then:
            each()
        for call in turn.calls:
            call.settle()
        if self._waiting and self.loop is not None:
            self.loop.call_soon(self._begin)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            turn = self._turn
            if turn is not None and asyncio.get_running_loop().time() - turn.began > PATIENCE_SECONDS:
                self._give_up(turn)

    def _give_up(self, turn: Turn) -> None:
        if not self._hangs:
            _log.error(
                "the disk has not answered for %.0f s: requests are refused until it does", PATIENCE_SECONDS
            )
        self._hangs = True
        waiting, self._waiting = self._waiting, []
        for call in turn.calls:
            call.refuse(OutcomeUnknown())
        for call in waiting:
            call.refuse(StorageUnavailable())
