"""Group commit: where one process serves many requests, appends that wait for the same
tail share one write.

While a write to a stream is under way, further appends to it gather; the next write takes
all of them. Each is still decided in order and answered on its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidemark.protocol.append import Outcome
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES, AppendRequest, append
from tidemark.service.concurrency import Run
from tidemark.service.stores import Stores

#: Bounds the item's other attributes, and what a single loss costs to decide again.
MAX_GROUP: Final = 64


@dataclass(slots=True)
class _Waiting:
    request: AppendRequest
    answer: asyncio.Future[Outcome]


class GroupCommit:
    """Appends of one process, gathered by stream. Used from one event loop."""

    def __init__(
        self,
        stores: Stores,
        run: Run,
        committed: Callable[[StreamKey], None],
    ) -> None:
        self._stores = stores
        self._run = run
        self._committed = committed
        self._waiting: dict[StreamKey, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, key: StreamKey, request: AppendRequest) -> Outcome:
        """Raises whatever refuses this one append, or stops its whole group."""
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(waiting)
        else:
            self._waiting[key] = deque([waiting])
            task = asyncio.create_task(self._drain(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiting.answer

    async def _drain(self, key: StreamKey) -> None:
        """Commit group after group until nobody waits. Not cancelled with a request: the
        others of its group are still there."""
        queue = self._waiting[key]
        while queue:
            await self._commit(key, _take_group(queue))
        del self._waiting[key]

    async def _commit(self, key: StreamKey, group: list[_Waiting]) -> None:
        requests = [waiting.request for waiting in group]
        try:
            answers = await self._run(lambda: append(self._stores, key, requests))
        except Exception as failure:  # noqa: BLE001 - whatever it is, each waiting request must hear of it
            answers = [failure] * len(group)  # type: ignore[list-item]
        else:
            self._committed(key)
        for waiting, answer in zip(group, answers, strict=True):
            _answer(waiting.answer, answer)


def _take_group(queue: deque[_Waiting]) -> list[_Waiting]:
    """The longest run from the front that fits an item; at least one."""
    group = [queue.popleft()]
    size = len(group[0].request.body)
    while queue and len(group) < MAX_GROUP:
        size += len(queue[0].request.body)
        if size > INLINE_BYTES:
            break
        group.append(queue.popleft())
    return group


def _answer(future: asyncio.Future[Outcome], answer: Outcome | BaseException) -> None:
    if future.done():  # The client went away; its append stands all the same.
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
