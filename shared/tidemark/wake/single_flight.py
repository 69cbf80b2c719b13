"""Single flight: readers that poll the same log at the same moment share one read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Poll(Protocol):
    """Makes a blocking call from a coroutine. Calls of the same name may be one."""

    def __call__(self, name: Hashable, call: Callable[[], _T], /) -> Awaitable[_T]: ...


class SingleFlight:
    """An append wakes every reader of a stream, and all of them want to read the same: one
    call serves them all. Used from one event loop.

    A call starts only after the last of those who share it has asked for it, so what it reads is
    never older than any of their requests. A later request gets a call of its own.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._run = run
        self._shared: dict[Hashable, _SharedCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def share(self, name: Hashable, call: Callable[[], Any]) -> Any:
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = _SharedCall(call)
            # Readers are woken together, in one turn of the event loop; a task begins in the next.
            task = asyncio.create_task(self._make(name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # A reader that is cancelled does not cancel the others' call.
        return await asyncio.shield(shared.result)

    async def _make(self, name: Hashable) -> None:
        shared = self._shared.pop(name)
        try:
            result = await self._run(shared.call)
        except Exception as failure:  # noqa: BLE001 - whatever it is, each reader must be told
            shared.result.set_exception(failure)
            shared.result.exception()  # Perhaps every reader has been cancelled.
        else:
            shared.result.set_result(result)


class _SharedCall:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
