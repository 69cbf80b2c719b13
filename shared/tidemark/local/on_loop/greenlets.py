"""Functions that wait without holding the thread.

`run_in_steps` runs a plain function inside a coroutine. Wherever the function calls
`step_aside` with something awaitable, it is set aside and the event loop goes on, until
there is an answer to go on with. The function and all between knows nothing of it.

It must not hold a lock while it steps aside: whoever else wants it runs on the same thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")


class _Steps(greenlet):
    """The running function. Its parent is the coroutine that runs it."""


async def run_in_steps(call: Callable[[], _T], /) -> _T:
    """The function's result. Raises whatever it raises."""
    steps = _Steps(call, getcurrent())
    result: Any = steps.switch()
    while not steps.dead:
        try:
            answer = await result
        except BaseException as failure:  # noqa: BLE001 - it belongs to the function that waits
            result = steps.throw(failure)
        else:
            result = steps.switch(answer)
    return cast("_T", result)


def step_aside(awaitable: Awaitable[_T]) -> _T:
    """Wait for something, from inside a function that `run_in_steps` runs."""
    steps = getcurrent()
    assert isinstance(steps, _Steps), "only a function that runs in steps can step aside"
    assert steps.parent is not None
    return cast("_T", steps.parent.switch(awaitable))
