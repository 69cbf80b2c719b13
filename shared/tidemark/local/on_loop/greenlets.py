"""Functions that wait without holding the thread.

`run_in_steps` runs a plain function inside a coroutine. Where the function calls `step_aside` with an
awaitable, it is suspended, and the event loop runs other tasks until the awaitable has a result. The
functions between the two need no `async`. (SQLAlchemy's `greenlet_spawn` and `await_only` do the same.)

The function must not hold a lock while it is suspended: another task that takes the lock would block the
thread for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")


class _Steps(greenlet):
    """A function that runs in steps. Its parent is the greenlet of the coroutine that runs it."""


async def run_in_steps(call: Callable[[], _T], /) -> _T:
    """The function's result. Raises whatever it raises."""
    steps = _Steps(call, getcurrent())
    result: Any = steps.switch()
    while not steps.dead:
        try:
            answer = await result
        except BaseException as failure:  # noqa: BLE001 - the function that waits gets it
            result = steps.throw(failure)
        else:
            result = steps.switch(answer)
    return cast("_T", result)


def step_aside(awaitable: Awaitable[_T]) -> _T:
    """The result of an awaitable, for a function that `run_in_steps` runs."""
    steps = getcurrent()
    assert isinstance(steps, _Steps), "only a function that runs in steps can step aside"
    assert steps.parent is not None
    return cast("_T", steps.parent.switch(awaitable))
