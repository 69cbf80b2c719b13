"""Tasks that wait on a clock which jumps: a second of waiting costs no time, and every run is the same."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class VirtualTime:
    """Runs greenlets in the order of the times at which they wake. Implements
    `tidemark.service.stores.Concurrency` for what runs in them. Times are in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._hub = getcurrent()
        self._order = count()
        self._timers: list[tuple[float, int, greenlet]] = []

    def spawn(self, call: Callable[[], Any], after: float = 0.0) -> None:
        """Run `call` in a task of its own; what it raises ends the run."""
        self._wake(greenlet(call, self._hub), after)

    def run(self, until: float) -> None:
        """Let the tasks run until that time, or until none is left."""
        while self._timers and self._timers[0][0] <= until:
            self.now, _, task = heapq.heappop(self._timers)
            task.switch()

    def sleep(self, seconds: float) -> None:
        self._wake(getcurrent(), seconds)
        self._hub.switch()

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        first, second = self.each(lambda call: call(), [one, other])
        return first, second  # type: ignore[return-value]

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        """All calls at once; raises what the first of them in order raised."""
        task, results, failures, left = getcurrent(), {}, {}, len(items)

        def carry_out(index: int, item: _A) -> None:
            nonlocal left
            try:
                results[index] = call(item)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the waiting task raises it
                failures[index] = failure
            left -= 1
            if not left:
                self._wake(task, 0.0)

        for index, item in enumerate(items):
            self.spawn(lambda index=index, item=item: carry_out(index, item))  # type: ignore[misc]
        if items:
            self._hub.switch()
        if failures:
            raise failures[min(failures)]
        return [results[index] for index in range(len(items))]

    def _wake(self, task: greenlet, after: float) -> None:
        heapq.heappush(self._timers, (self.now + after, next(self._order), task))
