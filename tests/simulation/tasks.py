"""Plain functions that run as greenlets and give their turn back where they would wait.

A seed chooses who runs next (`Scheduler`), or a clock does that jumps to whoever wakes first (`VirtualTime`,
and `TasksOnLoop` beside coroutines). Every run with the same seed is the same, call by call."""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class Crashed(BaseException):
    """The process that runs the task is killed: nothing in the task runs on."""


class Task(greenlet):
    """A running function. `process` names who dies with it."""

    def __init__(self, call: Callable[[], Any], tasks: Tasks, process: int) -> None:
        super().__init__(self._carry_out, tasks.hub)
        self._call = call
        self._tasks = tasks
        self._waiting: Task | None = None
        self._left = 0
        self.process = process
        self.result: Any = None
        self.failure: BaseException | None = None

    def _carry_out(self) -> None:
        try:
            self._tasks.check_alive(self)
            self.result = self._call()
        except BaseException as failure:  # noqa: BLE001 - whoever waits for the task gets it
            self.failure = failure
        if self._waiting is not None:
            self._waiting._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._tasks.wake(self)

    def join(self, tasks: Sequence[Task], *, left: int | None = None) -> None:
        """Wait until all of them have ended, or `left` of them; nobody waits for the others, which run on."""
        self._left = len(tasks) if left is None else left
        for task in tasks:
            task._waiting = self
        self._tasks.suspend(self)
        for task in tasks:
            task._waiting = None

    def run_on(self) -> None:
        """Until it waits again. Raises what it raised, if nobody waits for it."""
        self.switch()
        if self.failure is not None and self._waiting is None and not isinstance(self.failure, Crashed):
            raise self.failure


class Tasks:
    """`tidemark.service.stores.Concurrency` for use cases that run in tasks. Outside of any task nobody else
    is there, and nothing waits."""

    def __init__(self) -> None:
        self.hub = getcurrent()
        self._killed: set[int] = set()

    def wake(self, task: Task, after: float = 0.0) -> None:
        """The task runs on when it is its turn, so many seconds from now."""
        raise NotImplementedError

    def spawn(self, call: Callable[[], Any], after: float = 0.0, *, process: int = 0) -> Task:
        task = Task(call, self, process)
        self.wake(task, after)
        return task

    def kill(self, process: int) -> None:
        """Every task of the process ends at its next turn, with Crashed."""
        self._killed.add(process)

    def suspend(self, task: Task) -> None:
        """From inside the task. Raises Crashed where its process was killed meanwhile."""
        self.hub.switch()
        self.check_alive(task)

    def check_alive(self, task: Task) -> None:
        if task.process in self._killed:
            raise Crashed

    def sleep(self, seconds: float = 0.0) -> None:
        task = getcurrent()
        if isinstance(task, Task):
            self.wake(task, seconds)
            self.suspend(task)

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        first, second = self._all([one, other])
        return first, second

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        return self._all([lambda item=item: call(item) for item in items])  # type: ignore[misc]

    def _all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """At once; raises what the first of them in order raised."""
        task = getcurrent()
        if not isinstance(task, Task) or not calls:
            return [call() for call in calls]
        tasks = [self.spawn(call, process=task.process) for call in calls]
        task.join(tasks)
        for each in tasks:
            if each.failure is not None:
                raise each.failure
        return [each.result for each in tasks]


class Scheduler(Tasks):
    """Hands each turn to a task that it chooses by its seed. `stays` is how likely a task keeps its turn:
    with a high share, tasks run long stretches alone."""

    def __init__(self, chance: random.Random, stays: float = 0.0) -> None:
        super().__init__()
        self._chance = chance
        self._stays = stays
        self._ready: list[Task] = []

    def wake(self, task: Task, after: float = 0.0) -> None:
        self._ready.append(task)

    def run(self) -> None:
        """Until every task has ended. Raises what a task raised that nobody waited for."""
        while self._ready:
            stay = self._chance.random() < self._stays
            index = len(self._ready) - 1 if stay else self._chance.randrange(len(self._ready))
            self._ready.pop(index).run_on()


class VirtualTime(Tasks):
    """Runs tasks in the order of the times at which they wake. A second of waiting costs no time. Times are
    in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._order = count()
        self._timers: list[tuple[float, int, Task]] = []

    def wake(self, task: Task, after: float = 0.0) -> None:
        heapq.heappush(self._timers, (self.now + after, next(self._order), task))

    def run(self, until: float) -> None:
        """Let the tasks run until that time, or until none is left. Raises what a task raised that nobody
        waited for."""
        while self._timers and self._timers[0][0] <= until:
            self.now, _, task = heapq.heappop(self._timers)
            task.run_on()


class TasksOnLoop(Tasks):
    """Tasks beside the coroutines of an event loop."""

    def wake(self, task: Task, after: float = 0.0) -> None:
        asyncio.get_running_loop().call_later(after, task.run_on)

    async def run(self, call: Callable[[], _T], /) -> _T:
        """The function's result. It runs on where the coroutine is cancelled, as on a thread."""
        done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def carry_out() -> None:
            try:
                result = call()
            except Exception as failure:  # noqa: BLE001 - whatever it is, the coroutine raises it
                if not done.done():
                    done.set_exception(failure)
            else:
                if not done.done():
                    done.set_result(result)

        self.spawn(carry_out)
        return await done


class _Jumping(selectors.DefaultSelector):
    """Never waits for long: what would have been waited is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        assert timeout is not None, "nothing will ever happen again"
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as there is nothing else to do."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now
