"""An event loop whose time is a number: it jumps to the next timer as soon as there is nothing else to do.
Plain functions run on it as greenlets, and are suspended while storage "answers"."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")
_A = TypeVar("_A")


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
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class _Spawned(greenlet):
    """A function that `greenlet_spawn` runs. Its parent is the greenlet of the coroutine."""


async def greenlet_spawn(call: Callable[[], _T], /) -> _T:
    """The function's result. Raises whatever it raises."""
    spawned = _Spawned(call, getcurrent())
    result: Any = spawned.switch()
    while not spawned.dead:
        try:
            answer = await result
        except BaseException as failure:  # noqa: BLE001 - the function that waits gets it
            result = spawned.throw(failure)
        else:
            result = spawned.switch(answer)
    return cast("_T", result)


def await_only(awaitable: Awaitable[_T]) -> _T:
    """The result of an awaitable, for a function that `greenlet_spawn` runs."""
    spawned = getcurrent()
    assert isinstance(spawned, _Spawned), "await_only is called only by a function that greenlet_spawn runs"
    assert spawned.parent is not None
    return cast("_T", spawned.parent.switch(awaitable))


def sleep(seconds: float) -> None:
    await_only(asyncio.sleep(seconds))


class Concurrently:
    """`service.concurrency.Concurrency` on the loop."""

    def pair(self, one: Callable[[], _T], other: Callable[[], _A]) -> tuple[_T, _A]:
        return await_only(asyncio.gather(greenlet_spawn(one), greenlet_spawn(other)))

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        calls = (greenlet_spawn(lambda item=item: call(item)) for item in items)  # type: ignore[misc]
        return list(await_only(asyncio.gather(*calls)))

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def sleep(self, seconds: float) -> None:
        sleep(seconds)
