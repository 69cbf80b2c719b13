"""What the routes work with, and the two ways to run it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import Refused
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.group_commit import GroupCommit
from tidemark.service.stores import Stores
from tidemark.settings import Settings
from tidemark.wake.hub import Hub

_T = TypeVar("_T")

#: How many storage calls a process that serves many requests makes at once.
_THREADS = 64


class Run(Protocol):
    """Makes a blocking call from a coroutine."""

    def __call__(self, call: Callable[[], _T], /) -> Awaitable[_T]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """`poll_seconds` is how often a waiting reader looks for itself, bell or no bell."""

    stores: Stores
    settings: Settings
    run: Run
    append: Callable[[StreamKey, AppendRequest], Awaitable[Outcome]]
    hub: Hub
    poll_seconds: float


async def _on_the_spot(call: Callable[[], _T], /) -> _T:
    return call()


def one_at_a_time(stores: Stores, settings: Settings) -> Backend:
    """For Lambda: an environment has one request, so nothing is gained by a thread."""

    async def append_alone(key: StreamKey, request: AppendRequest) -> Outcome:
        answer = append(stores, key, [request])[0]
        if isinstance(answer, Refused):
            raise answer
        return answer

    return Backend(stores, settings, _on_the_spot, append_alone, Hub(), poll_seconds=0.1)


def many_at_once(stores: Stores, settings: Settings) -> Backend:
    """For a server: storage calls on threads, appends in groups, waiters woken directly."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark")

    async def on_a_thread(call: Callable[[], _T], /) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    hub = Hub()
    group_commit = GroupCommit(stores, on_a_thread, committed=hub.ring)
    return Backend(stores, settings, on_a_thread, group_commit.append, hub, poll_seconds=1.0)
