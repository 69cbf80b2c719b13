"""Looking together: requests that ask the same at the same moment share one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Look(Protocol):
    """Makes a blocking call from a coroutine. Calls of the same name may be one."""

    def __call__(self, name: Hashable, call: Callable[[], _T], /) -> Awaitable[_T]: ...


class SingleFlight:
    """An append wakes every reader of a stream, and all of them want to read the same: one
    does it for all. Used from one event loop.

    A call starts only after the last of those who share it has asked, so what it sees is
    never older than anybody's wish to see it; who asks later gets a call of his own.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._run = run
        self._gathering: dict[Hashable, _Gathering] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def look(self, name: Hashable, call: Callable[[], Any]) -> Any:
        gathering = self._gathering.get(name)
        if gathering is None:
            gathering = self._gathering[name] = _Gathering(call)
            # A ring wakes its readers in one turn of the loop; this comes in the next.
            asyncio.get_running_loop().call_soon(self._start, name)
        # One who leaves takes nobody along.
        return await asyncio.shield(gathering.answer)

    def _start(self, name: Hashable) -> None:
        task = asyncio.create_task(self._answer(self._gathering.pop(name)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, gathering: _Gathering) -> None:
        try:
            answer = await self._run(gathering.call)
        except Exception as failure:  # noqa: BLE001 - whatever it is, all who asked must hear of it
            gathering.answer.set_exception(failure)
            gathering.answer.exception()  # Nobody may be left to hear it.
        else:
            gathering.answer.set_result(answer)


class _Gathering:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
