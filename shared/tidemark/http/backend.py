"""The dependencies of the routes, and the ways to run storage calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from starlette.requests import Request

from tidemark.aws.sqs import Queues, receiving_client, sqs_client
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.stores import Run, Stores
from tidemark.settings import Settings
from tidemark.wake.hub import Hub
from tidemark.wake.wake import Wake, WakeByQueue

if TYPE_CHECKING:
    from tidemark.service.group_commit import Left


_T = TypeVar("_T")
_P = ParamSpec("_P")


#: Seconds that the request under way has waited for storage so far.
STORAGE_SECONDS: Final[ContextVar[list[float] | None]] = ContextVar("storage_seconds", default=None)


def timed(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The same call, whose time counts as storage."""

    async def calling(*arguments: Any) -> Any:
        started = perf_counter()
        try:
            return await call(*arguments)
        finally:
            spent = STORAGE_SECONDS.get()
            if spent is not None:
                spent[0] += perf_counter() - started

    return calling


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


#: How many storage calls a process that serves many requests makes at once.
_THREADS = 64
#: How many event streams read their first page at once.
_FIRST_PAGES = 8


class CommitAppend(Protocol):
    """Commits one append, or raises the ProtocolError that refuses it. `left` returns once the client has
    hung up: an append that still waits for its turn is then not sent."""

    def __call__(
        self, key: StreamKey, request: AppendRequest, left: Left | None = None, /
    ) -> Awaitable[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """`call` makes one call on `stores`, `run` any. `poll` is the same for readers that wait: those that want
    the same at once share one call."""

    stores: Stores
    settings: Settings
    run: Run
    poll: Poll
    append: CommitAppend
    wake: Wake
    #: Asks storage for nothing, where it is this process's own; raises where it does not answer.
    probe: Callable[[], object] | None = None
    #: For the first pages of event streams: a thousand that begin at once do not hold a thousand.
    first_pages: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FIRST_PAGES))

    def call(
        self, operation: Callable[Concatenate[Stores, _P], _T], /, *args: _P.args, **names: _P.kwargs
    ) -> Awaitable[_T]:
        """One operation of `service/`, on the stores."""
        return self.run(partial(operation, self.stores, *args, **names))

    @property
    def hub(self) -> Hub:
        return self.wake.hub

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Of an application. It ends with the process, where the platform lets it see that."""
        yield
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self.wake.close)


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


def make_wake(stores: Stores, settings: Settings) -> WakeByQueue:
    queues = Queues(sqs_client, settings.queue_prefix, receiving_client)
    return WakeByQueue(stores.table, queues, stores.clock_ms)


def one_at_a_time(stores: Stores, settings: Settings, wake: Wake | None = None) -> Backend:
    """For Lambda: an environment has one request, so nothing is gained by a thread."""

    async def call_directly(call: Callable[[], _T], /) -> _T:
        return call()

    async def poll_directly(_name: Hashable, call: Callable[[], _T], /) -> _T:
        return call()

    async def append_alone(key: StreamKey, request: AppendRequest, _left: Left | None = None) -> Outcome:
        outcome = append(stores, key, [request])[0]
        if isinstance(outcome, ProtocolError):
            raise outcome
        return outcome

    wake = wake or make_wake(stores, settings)
    return Backend(stores, settings, timed(call_directly), poll_directly, timed(append_alone), wake)


def in_turns(
    stores: Stores, settings: Settings, run: Run, wake: Wake, probe: Callable[[], object]
) -> Backend:
    """For a server with the embedded engine: `run` makes one call after the other, and each commit wakes the
    waiters."""
    from tidemark.service.group_commit import GroupCommit

    group_commit = GroupCommit(stores, run, committed=lambda _: None)
    poll = SingleFlight(run).share
    return Backend(stores, settings, timed(run), poll, timed(group_commit.append), wake, probe)


def many_at_once(stores: Stores, settings: Settings, wake: Wake | None = None) -> Backend:
    """For a server with AWS behind it: appends in groups, waiters woken directly, and storage calls on
    threads."""
    from tidemark.service.group_commit import GroupCommit

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark")

    async def on_a_thread(call: Callable[[], Any], /) -> Any:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    wake = wake or make_wake(stores, settings)
    group_commit = GroupCommit(stores, on_a_thread, committed=wake.hub.wake)
    poll = SingleFlight(on_a_thread).share
    return Backend(stores, settings, timed(on_a_thread), poll, timed(group_commit.append), wake)
