"""The services that the handlers use, and three ways to run storage calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from starlette.requests import Request

from tidemark.aws.sqs import Queues, receiving_client, sqs_client
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.append import Outcome
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.stores import Run, Stores
from tidemark.settings import Settings
from tidemark.wake.follow import Process, SingleFlight, Wake
from tidemark.wake.queue import WakeByQueue

if TYPE_CHECKING:
    from tidemark.proxy.calls import UpstreamRequest
    from tidemark.service.group_commit import Left


_T = TypeVar("_T")
_P = ParamSpec("_P")


#: Seconds that the current request has waited for storage.
SPENT_IN_STORAGE: Final[ContextVar[list[float] | None]] = ContextVar("spent_in_storage", default=None)


def timed(call: Callable[..., Awaitable[Any]], *, traced: bool = False) -> Callable[..., Awaitable[Any]]:
    """Wrap a call so that its duration counts as time in storage. With `traced` it has a span, as on AWS."""

    async def calling(*arguments: Any) -> Any:
        started = perf_counter()
        try:
            return await call(*arguments)
        finally:
            seconds = perf_counter() - started
            if (spent := SPENT_IN_STORAGE.get()) is not None:
                spent[0] += seconds
            if traced and PROCESS.spans:
                operation = getattr(arguments[0], "func", arguments[0])  # Of a `partial`, or a stream's key.
                PROCESS.spans.called(getattr(operation, "__name__", "append"), seconds)

    return calling


#: The most concurrent storage calls of a process that serves many requests.
_THREADS = 64
#: The most event streams that read their first page at once.
_FIRST_PAGES = 8


class CommitAppend(Protocol):
    """Commits one append, or raises the ProtocolError that refuses it. `left` returns when the client has
    disconnected: an append that still waits for its turn is then cancelled."""

    def __call__(
        self, key: StreamKey, request: AppendRequest, left: Left | None = None, /
    ) -> Awaitable[Outcome]: ...


@dataclass(frozen=True, slots=True)
class Backend(Process):
    """The services that an application's handlers use."""

    settings: Settings
    append: CommitAppend
    #: Probes storage that is part of this process, and raises if storage does not answer; None on AWS.
    probe: Callable[[], object] | None = None
    #: Starts a call of the durable proxy in another function; None: the call runs in this process.
    start: Callable[[UpstreamRequest], Awaitable[None]] | None = None
    #: Running calls of the durable proxy in this process.
    calling: set[asyncio.Task[None]] = field(default_factory=set)
    #: Limits the first pages in memory if many event streams begin at once.
    first_pages: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FIRST_PAGES))
    #: The locks of `turn`, which last as long as one is used.
    turns: WeakValueDictionary[tuple[int, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def call(
        self, operation: Callable[Concatenate[Stores, _P], _T], /, *args: _P.args, **names: _P.kwargs
    ) -> Awaitable[_T]:
        """Run an operation of `service/` on the stores."""
        return self.run(partial(operation, self.stores, *args, **names))

    def turn(self, subscription_id: str) -> asyncio.Lock:
        """Makes the takes of a shared subscription in turn, on one event loop: others would lose races."""
        loop = id(asyncio.get_running_loop())
        return self.turns.setdefault((loop, subscription_id), asyncio.Lock())

    async def close(self, seconds: float = 0.0) -> None:
        """Wait at most `seconds` for calls of the durable proxy, then cancel them: their streams end as cut
        off."""
        if self.calling:
            await asyncio.wait(self.calling, timeout=seconds)
        for task in self.calling:
            task.cancel()
        await asyncio.gather(*self.calling, return_exceptions=True)
        await asyncio.to_thread(self.wake.close)
        if PROCESS.spans:
            await asyncio.to_thread(PROCESS.spans.flush)


def backend_of(request: Request) -> Backend:
    backend: Backend = request.app.backend
    return backend


def make_wake(stores: Stores, settings: Settings) -> WakeByQueue:
    queues = Queues(sqs_client, settings.queue_prefix, receiving_client)
    return WakeByQueue(stores.table, queues, stores.clock_ms)


def lambda_backend(stores: Stores, settings: Settings, wake: Wake | None = None) -> Backend:
    """The backend of a Lambda function, without threads, because it serves one request at a time."""

    async def call_directly(call: Callable[[], _T], /) -> _T:
        return call()

    async def share_directly(_name: Hashable, call: Callable[[], _T], /) -> _T:
        return call()

    async def append_alone(key: StreamKey, request: AppendRequest, _left: Left | None = None) -> Outcome:
        outcome = append(stores, key, [request])[0]
        if isinstance(outcome, ProtocolError):
            raise outcome
        return outcome

    wake = wake or make_wake(stores, settings)
    return Backend(stores, timed(call_directly), share_directly, wake, settings, timed(append_alone))


def embedded_backend(
    stores: Stores, settings: Settings, run: Run, wake: Wake, probe: Callable[[], object]
) -> Backend:
    """The backend of a server with the embedded engine: `run` makes one call after the other, and the engine
    wakes the followers after each commit."""
    from tidemark.service.group_commit import GroupCommit

    append = timed(GroupCommit(stores, run, committed=lambda _: None).append, traced=True)
    run = timed(run, traced=True)
    return Backend(stores, run, SingleFlight(run).share, wake, settings, append, probe)


def threaded_backend(stores: Stores, settings: Settings, wake: Wake | None = None) -> Backend:
    """The backend of a server whose storage is on AWS: group commit, direct wake-ups of its own followers,
    and storage calls on threads."""
    from tidemark.service.group_commit import GroupCommit

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark")

    def on_a_thread(call: Callable[[], Any], /) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(pool, copy_context().run, call)

    wake = wake or make_wake(stores, settings)
    group_commit = GroupCommit(stores, on_a_thread, committed=wake.hub.wake)
    share = SingleFlight(on_a_thread).share
    return Backend(stores, timed(on_a_thread), share, wake, settings, timed(group_commit.append))
