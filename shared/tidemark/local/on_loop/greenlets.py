"""Functions that wait without holding the thread.

`greenlet_spawn` runs a plain function inside a coroutine. Where the function calls `await_only` with an
awaitable, it is suspended, and the event loop runs other tasks until the awaitable has a result. The
functions between the two need no `async`. SQLAlchemy's asyncio extension has both under these names
(`sqlalchemy.util.concurrency`); this is the part of it that is needed here. What it gains over threads
is in `docs/benchmarks.md`.

The function must not hold a lock while it is suspended: another task that takes the lock would block the
thread for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent, greenlet

_T = TypeVar("_T")


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
