"""Who runs next: one seed is one interleaving.

Each task is a greenlet that gives its turn back before every storage call and every pause. The scheduler
hands the next turn to a task that it chooses by its seed, so a run can be played again, call by call."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class Crashed(BaseException):
    """The process that runs the task is killed: nothing in the task runs on."""


class Task(greenlet):
    """A running function. `process` names who dies with it."""

    def __init__(self, call: Callable[[], Any], process: int, scheduler: Scheduler) -> None:
        super().__init__(self._carry_out, scheduler.hub)
        self._call = call
        self._waiting: Task | None = None
        self._left = 0
        self.process = process
        self.scheduler = scheduler
        self.result: Any = None
        self.failure: BaseException | None = None

    def _carry_out(self) -> None:
        try:
            self.scheduler.check_alive(self)
            self.result = self._call()
        except BaseException as failure:  # noqa: BLE001 - whoever waits for the task gets it
            self.failure = failure
        if self._waiting is not None:
            self._waiting._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self.scheduler._ready.append(self)

    def join_first(self, tasks: Sequence[Task]) -> None:
        """Wait until one of them has ended; the others run on, and nobody waits for them."""
        self._left = 1
        for task in tasks:
            task._waiting = self
        self.scheduler.hub.switch()
        for task in tasks:
            task._waiting = None
        self.scheduler.check_alive(self)

    def join(self, tasks: Sequence[Task]) -> None:
        """Wait until all of them have ended."""
        self._left = len(tasks)
        for task in tasks:
            task._waiting = self
        self.scheduler.hub.switch()
        self.scheduler.check_alive(self)


class Scheduler:
    """`stays` is how likely a task keeps its turn: with a high share, tasks run long stretches alone."""

    def __init__(self, chance: random.Random, stays: float = 0.0) -> None:
        self.hub = getcurrent()
        self.turns = 0
        self._chance = chance
        self._stays = stays
        self._ready: list[Task] = []
        self._killed: set[int] = set()

    def spawn(self, call: Callable[[], Any], process: int) -> Task:
        task = Task(call, process, self)
        self._ready.append(task)
        return task

    def give_turn(self) -> None:
        """From inside a task: let others go first. Outside of any task nobody else is there."""
        task = getcurrent()
        if isinstance(task, Task):
            self._ready.append(task)
            self.hub.switch()
            self.check_alive(task)

    def check_alive(self, task: Task) -> None:
        """Raises Crashed where the task's process was killed meanwhile."""
        if task.process in self._killed:
            raise Crashed

    def run(self) -> None:
        """Until every task has ended. Raises what a task raised that nobody waited for."""
        while self._ready:
            self.turns += 1
            stay = self._chance.random() < self._stays
            index = len(self._ready) - 1 if stay else self._chance.randrange(len(self._ready))
            task = self._ready.pop(index)
            task.switch()
            if task.failure is not None and task._waiting is None and not isinstance(task.failure, Crashed):
                raise task.failure

    def kill(self, process: int) -> None:
        """Every task of the process ends at its next turn, with Crashed."""
        self._killed.add(process)


class Turns:
    """`tidemark.service.stores.Concurrency` for use cases that run in tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        first, second = self._all([one, other])
        return first, second

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        return self._all([lambda item=item: call(item) for item in items])  # type: ignore[misc]

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def sleep(self, _seconds: float) -> None:
        self._scheduler.give_turn()

    def _all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        task = getcurrent()
        if not isinstance(task, Task) or not calls:
            return [call() for call in calls]
        tasks = [self._scheduler.spawn(call, task.process) for call in calls]
        task.join(tasks)
        for each in tasks:
            if each.failure is not None:
                raise each.failure
        return [each.result for each in tasks]
