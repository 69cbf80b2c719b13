"""`AsyncStream` and `AsyncProducer` for asyncio: the operations of `blocking`, with await."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import httpx

from tidemark.client import wire
from tidemark.client.batches import Batches, ProducerBatch, ProducerLimits, ProducerOptions
from tidemark.client.chunks import Chunk, Followed, next_chunk
from tidemark.client.core import Create, Data, DataT, Default, Protocol, Receipt, call_by_proxy
from tidemark.client.errors import StreamError
from tidemark.client.exchange import Effect, Request, Sleep, Steps, Wait
from tidemark.client.socket import ASK_SECONDS, MAX_ANSWER_BYTES, SocketFollower, WaitResult, bearer_token

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DataT = TypeVar("_DataT")

#: A client is removed when its event loop closes the generator that holds the client.
_clients: Final[dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None]]]] = {}


async def _shared_client() -> httpx.AsyncClient:
    """Return the client of this event loop. `asyncio.run` closes its generators, and with them the client."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        client = httpx.AsyncClient(**wire.CLIENT_OPTIONS)

        async def until_the_loop_ends() -> AsyncGenerator[None]:
            try:
                async with client:
                    yield
            finally:
                del _clients[loop]

        _clients[loop] = client, until_the_loop_ends()
        await anext(_clients[loop][1])
    return _clients[loop][0]


class AsyncDriver(wire.HttpxDriver[httpx.AsyncClient, wire.AsyncValue]):
    #: The follower of the socket, if the driver waits by the socket.
    _follower: SocketFollower | None = None

    async def run(self, steps: Steps[_T]) -> _T:
        return await self.finish(steps)

    async def chunks(self, steps: Followed) -> AsyncGenerator[Chunk]:
        try:
            while (chunk := await self.run(next_chunk(steps))) is not None:
                yield chunk
        finally:
            await self.close()

    async def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        return await (self._wait(effect) if isinstance(effect, Wait) else self._answer(effect))

    async def _wait(self, wait: Wait) -> WaitResult:
        if self._client is not None and not wait.insists:
            return False
        await self._close()
        if self._follower is None:
            self._follower = SocketFollower(wait.url, partial(_ask, self._client), insists=wait.insists)
        result = None
        while result is None:
            token = bearer_token(self._client, await wire.made_values(self._headers))
            result = await self._follower.wait(wait.offset, token)
        return result

    async def _default_client(self) -> httpx.AsyncClient:
        return await _shared_client()

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.leave()
        await self._close()


async def _ask(client: httpx.AsyncClient | None, url: str) -> httpx.Response:
    client = client or await _shared_client()
    body = wire.Body(Request("GET", url, max_bytes=MAX_ANSWER_BYTES), ASK_SECONDS)
    async with client.stream("GET", url, follow_redirects=True, timeout=ASK_SECONDS) as response:
        async for piece in response.aiter_bytes():
            body.add(piece)
    return body.of(response)


def _awaited(
    operation: Callable[Concatenate[Protocol[_DataT], _P], Steps[_T]],
) -> Callable[Concatenate[AsyncStream[_DataT], _P], Coroutine[Any, Any, _T]]:
    """Return the method of a stream that runs this operation of the protocol."""

    @wraps(operation)
    async def method(self: AsyncStream[_DataT], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._driver().run(operation(self._protocol, *args, **kwargs))

    return wire.documented(method)


def _following(
    operation: Callable[Concatenate[Protocol, _P], Followed],
) -> Callable[Concatenate[AsyncStream, _P], AsyncGenerator[Chunk]]:
    @wraps(operation)
    def method(self: AsyncStream, /, *args: _P.args, **kwargs: _P.kwargs) -> AsyncGenerator[Chunk]:
        following = self._driver().chunks(operation(self._protocol, *args, **kwargs))
        self._followed.add(following)
        return following

    return wire.documented(method, "AsyncGenerator[Chunk]")


_Options = wire.StreamOptions[httpx.AsyncClient, wire.AsyncValue]
_Creation = wire.NewStream[httpx.AsyncClient, wire.AsyncValue]


class AsyncStream(wire.Address[httpx.AsyncClient, wire.AsyncValue, DataT]):
    """A stream at a URL: see `Stream`. The values of `headers` and `params` may be coroutine functions, and
    `client` is an `httpx.AsyncClient`; without it all streams of an event loop share a client."""

    head = _awaited(Protocol.head)
    append = _awaited(Protocol[DataT].append)
    close = _awaited(Protocol[DataT].close)
    snapshot = _awaited(Protocol.snapshot)
    publish_snapshot = _awaited(Protocol.publish_snapshot)
    delete = _awaited(Protocol.delete)
    read = _awaited(Protocol.read)
    history = _awaited(Protocol.history)
    follow = _following(Protocol.follow)

    if TYPE_CHECKING:  # With a function `default`, any object can be appended.

        @overload
        def __init__(
            self: AsyncStream[Data], url: str, *, default: None = None, **options: Unpack[_Options]
        ) -> None: ...
        @overload
        def __init__(
            self: AsyncStream[Any], url: str, *, default: Default, **options: Unpack[_Options]
        ) -> None: ...
        def __init__(self, url: str, **options: Any) -> None: ...

    @overload
    @classmethod
    async def create(
        cls, url: str, *, default: None = None, data: Data = None, **options: Unpack[_Creation]
    ) -> Self: ...
    @overload
    @classmethod
    async def create(
        cls, url: str, *, default: Default, data: Any = None, **options: Unpack[_Creation]
    ) -> AsyncStream[Any]: ...
    @classmethod
    async def create(cls, url: str, **options: Any) -> Any:
        of_stream, creation = wire.split_options(options)
        stream = cls(url, **of_stream)
        await stream._driver().run(stream._protocol.create(**creation))
        return stream

    @classmethod
    async def proxy(
        cls,
        url: str,
        request: httpx.Request,
        *,
        token: wire.Value | None = None,
        key: str | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> Self:
        driver = AsyncDriver(client, wire.bearer(token))
        answer, _ = await driver.run(call_by_proxy(url, request, await request.aread(), key))
        return cls(answer, client=client)

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int | None = None,
        closes: bool = True,
        create: Create = False,
        **limits: Unpack[ProducerOptions],
    ) -> AsyncProducer[DataT]:
        now = time.time_ns() // 1000
        batches = Batches(self._protocol, producer_id, now, epoch, ProducerLimits(**limits), create=create)
        return AsyncProducer(self._driver(), batches, self._protocol, closes=closes)

    async def request_stop(self) -> None:
        await self._stop_signal().close()

    def stop_requests(self) -> AsyncStopRequests:
        return AsyncStopRequests(self._stop_signal())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for following in list(self._followed):
            if not following.ag_running:  # Its task ends it.
                await following.aclose()

    def _driver(self) -> AsyncDriver:
        return AsyncDriver(self._client, self._headers, self._params, self._timeout)


class AsyncStopRequests:
    """See `StopRequests`; for an `async with` block."""

    def __init__(self, signal: AsyncStream[Any]) -> None:
        self._signal = signal
        self._requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    async def wait(self) -> None:
        await self._requested.wait()

    async def __aenter__(self) -> Self:
        await self._signal.delete(missing_ok=True)
        await type(self._signal).create(self._signal.url, **self._signal.options, ttl=wire.SIGNAL_TTL_SECONDS)
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
        with contextlib.suppress(StreamError):
            await self._signal.delete(missing_ok=True)

    async def _watch(self) -> None:
        try:
            async for chunk in self._signal.follow():
                if chunk.closed:
                    self._requested.set()
        except StreamError as why:
            wire.log.warning("requests to stop are not seen any more: %s", why)


class AsyncProducer(Generic[DataT]):
    """Writes each message exactly once and in order: see `Producer`. Tasks of the event loop send batches."""

    def __init__(
        self, driver: AsyncDriver, batches: Batches, protocol: Protocol[Any], *, closes: bool
    ) -> None:
        self._driver, self._batches, self._protocol, self._closes = driver, batches, protocol, closes
        self._changed = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._process = os.getpid()
        #: Warns if the producer is not closed: after its event loop ends, nothing can be sent.
        self._unfinished = weakref.finalize(self, wire.warn_of_unwritten, batches)

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    async def append(self, data: DataT) -> None:
        wire.check_process(self._process)
        await self._know_content_type()
        message = self._batches.encode(data)
        await self._until(lambda: not self._batches.is_full)
        if self._batches.add(message, time.monotonic()):
            self._send_what_is_ready()

    async def flush(self) -> Receipt | None:
        wire.check_process(self._process)
        self._batches.hurry()
        self._send_what_is_ready()
        added = self._batches.added
        await self._until(lambda: self._batches.acknowledged >= added)
        return self._batches.result

    async def close(self, data: DataT | None = None) -> Receipt | None:
        wire.check_process(self._process)
        await self._know_content_type()
        try:
            if not self._batches.is_closed:
                self._batches.add(b"" if data is None else self._batches.encode(data), time.monotonic())
                self._batches.close()
                self._send_what_is_ready()
            await self._until(lambda: self._batches.is_closed)
            return self._batches.result
        finally:
            await self._stop()

    async def detach(self) -> None:
        try:
            await self.flush()
        finally:
            await self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._stopped:
            return
        if error is None:
            await (self.close() if self._closes else self.detach())
            return
        within = None if isinstance(error, Exception) else wire.INTERRUPTED_SECONDS
        result = self._batches.failure_is_raised
        try:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(within):
                    await self.flush()
        finally:
            self._batches.failure_is_raised = result  # `_stop` warns of the suppressed error.
            await self._stop()

    async def _know_content_type(self) -> None:
        if self._protocol.content_type is None:
            await self._driver.run(self._protocol.known_content_type())

    async def _until(self, condition: Any) -> None:
        while self._batches.failure is None and not condition():
            self._changed.clear()
            await self._changed.wait()
        self._batches.check()

    def _send_what_is_ready(self) -> None:
        """Send each batch that is ready. A timer calls this when a linger or a retry pause ends."""
        while (batch := self._batches.take(time.monotonic())) is not None:
            task = asyncio.create_task(self._send(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._timer is not None:
            self._timer.cancel()
        at = self._batches.next_at()
        delay = None if at is None else max(0.0, at - time.monotonic())
        loop = asyncio.get_running_loop()
        self._timer = None if delay is None else loop.call_later(delay, self._send_what_is_ready)

    async def _send(self, batch: ProducerBatch) -> None:
        try:
            reply = await self._driver.perform(self._batches.request(batch))
            self._batches.answered(batch, reply, time.monotonic())
        except Exception as error:  # noqa: BLE001 (raised by a header's function: the next append raises it)
            self._batches.fail(error)
        self._changed.set()
        self._send_what_is_ready()

    async def _stop(self) -> None:
        self._stopped = True
        if self._unfinished.detach():
            wire.warn_of_unwritten(self._batches)
        self._batches.detach()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
