"""`Stream` and `Producer` for programs with threads."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, Unpack, overload
from weakref import WeakSet

import httpx

from tidemark.client import wire
from tidemark.client.asynchronous import AsyncDriver
from tidemark.client.batches import Batches, ProducerBatch, ProducerLimits, ProducerOptions
from tidemark.client.chunks import Chunk, Followed, next_chunk
from tidemark.client.core import Create, Data, DataT, Default, Delivery, Protocol, Receipt, call_by_proxy
from tidemark.client.errors import StreamError
from tidemark.client.exchange import Effect, Request, Sleep, Steps, Wait
from tidemark.client.socket import LoopThread, loop_threads

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DataT = TypeVar("_DataT")

_clients: Final[dict[int, httpx.Client]] = {}


def _shared_client() -> httpx.Client:
    """Return the client of this process. A forked child must not use its parent's connections."""
    client = _clients.get(os.getpid())
    if client is None:
        client = _clients.setdefault(os.getpid(), httpx.Client(**wire.CLIENT_OPTIONS))
    return client


_producers: Final[WeakSet[Producer[Any]]] = WeakSet()
#: Time that a process waits for its producers when it exits.
_EXIT_SECONDS: Final = 5.0
#: Time that an empty take waits at the server, and so the longest that `work` needs to stop.
_TAKE_SECONDS: Final = 10.0


@atexit.register
def _finish() -> None:
    """Send the messages of producers that were not closed."""
    until = time.monotonic() + _EXIT_SECONDS
    for producer in list(_producers):
        producer.finish(until)
    if client := _clients.get(os.getpid()):
        client.close()


class BlockingDriver(wire.HttpxDriver[httpx.Client, wire.Value]):
    def run(self, steps: Steps[_T]) -> _T:
        return wire.run_without_loop(self.finish(steps))

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return time.sleep(effect.seconds)
        return False if isinstance(effect, Wait) else wire.run_without_loop(self._answer(effect))

    def _default_client(self) -> httpx.Client:
        return _shared_client()


class Following(BlockingDriver, Iterator[Chunk]):
    """The chunks of a stream. `close` ends the iteration from any thread, also while it waits.

    Waits are tasks of an event loop. With a `client` of your own a request that waits has a thread instead,
    which ends when the server answers."""

    def __init__(self, steps: Followed, *given: Any) -> None:
        super().__init__(*given)
        self._steps, self._process = steps, os.getpid()
        self._lock, self._is_closed = threading.RLock(), False
        self._waiting: Future[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __next__(self) -> Chunk:
        chunk = None
        try:
            with contextlib.suppress(CancelledError):
                chunk = None if self._is_closed else self.run(next_chunk(self._steps))
        finally:
            if chunk is None:
                self.close()
        if chunk is None:
            raise StopIteration
        return chunk

    def perform(self, effect: Effect) -> Any:
        wire.check_process(self._process, "follower")
        with self._lock:
            if self._is_closed:
                raise CancelledError
            self._waiting = waiting = self._begun(effect)
        if waiting is None:
            return super().perform(effect)
        if not isinstance(effect, Sleep):
            return waiting.result()
        with contextlib.suppress(TimeoutError):
            waiting.result(effect.seconds)
        return None

    def _begun(self, effect: Effect) -> Future[Any] | None:
        """Return what `close` cancels; None for a request that is answered at once."""
        if isinstance(effect, Request) and not effect.wait_seconds:
            return None
        if isinstance(effect, Wait) and self._client and not effect.insists:
            return None
        if not isinstance(effect, Sleep) and (isinstance(effect, Wait) or not self._client):
            self._loop = self._loop or loop_threads.setdefault(self._process, LoopThread()).enter()
            return asyncio.run_coroutine_threadsafe(self._waiter.perform(effect), self._loop)
        waiting = Future[Any]()
        if not isinstance(effect, Sleep):
            work = partial(self._answer_from_a_thread, waiting, super().perform, effect)
            threading.Thread(target=work, name="tidemark-wait", daemon=True).start()
        return waiting

    @cached_property
    def _waiter(self) -> AsyncDriver:
        headers = dict(self._headers)
        if self._client and "authorization" not in map(str.lower, headers):
            headers |= {name: text for name, text in self._client.headers.items() if name == "authorization"}
        return AsyncDriver(None, _off_the_loop(headers), _off_the_loop(self._params), self._seconds)

    def _answer_from_a_thread(
        self, waiting: Future[Any], perform: Callable[[Effect], Any], effect: Effect
    ) -> None:
        try:
            tell = partial(waiting.set_result, perform(effect))
        except BaseException as error:  # noqa: BLE001 (raised by `result`)
            tell = partial(waiting.set_exception, error)
        if waiting.set_running_or_notify_cancel():
            tell()
        else:  # The iteration has ended.
            wire.run_without_loop(self._close())

    def close(self) -> None:
        with self._lock:
            if self._is_closed or self._process != os.getpid():
                return
            self._is_closed = True
            is_read = self._waiting is not None and self._waiting.cancel()
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(self._waiter.close(), self._loop)
                loop_threads[self._process].leave()
        if not is_read:
            wire.run_without_loop(self._close())

    __del__ = close


def _off_the_loop(given: Mapping[str, wire.Value]) -> dict[str, wire.AsyncValue]:
    return {
        name: partial(asyncio.to_thread, made) if callable(made) else made for name, made in given.items()
    }


def _blocking(
    operation: Callable[Concatenate[Protocol[_DataT], _P], Steps[_T]],
) -> Callable[Concatenate[Stream[_DataT], _P], _T]:
    """Return the method of a stream that runs this operation of the protocol."""

    @wraps(operation)
    def method(self: Stream[_DataT], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self._driver().run(operation(self._protocol, *args, **kwargs))

    return wire.documented(method)


def _following(
    operation: Callable[Concatenate[Protocol, _P], Followed],
) -> Callable[Concatenate[Stream, _P], Following]:
    @wraps(operation)
    def method(self: Stream, /, *args: _P.args, **kwargs: _P.kwargs) -> Following:
        steps = operation(self._protocol, *args, **kwargs)
        following = Following(steps, self._client, self._headers, self._params, self._timeout)
        self._followed.add(following)
        return following

    return wire.documented(method, "Following")


_Options = wire.StreamOptions[httpx.Client, wire.Value]
_Creation = wire.NewStream[httpx.Client, wire.Value]


class Stream(wire.Address[httpx.Client, wire.Value, DataT]):
    """A stream at a URL. The constructor sends no request. Methods may be called from any thread.

    `headers` and `params` are sent with every request; a value may be a function, called for each request.
    `client` is an `httpx.Client` of your own, for proxies, certificates or HTTP/2; without it all streams of
    the process share a client. `timeout`, in seconds, limits each step of a request: to connect, to send, and
    to receive more of the answer. Without it the limits are those that you gave to `client`, or 30 s (10 s to
    connect). A live read has 45 s more. `Retry` limits all tries of a call. `default` converts a value that
    is not JSON, like orjson's `default`; dates, times, UUIDs, enums and dataclasses need no conversion. The
    end of a `with` block ends the iterations of `follow`; the stream stays open."""

    head = _blocking(Protocol.head)
    append = _blocking(Protocol[DataT].append)
    close = _blocking(Protocol[DataT].close)
    snapshot = _blocking(Protocol.snapshot)
    publish_snapshot = _blocking(Protocol.publish_snapshot)
    delete = _blocking(Protocol.delete)
    read = _blocking(Protocol.read)
    history = _blocking(Protocol.history)
    follow = _following(Protocol.follow)

    if TYPE_CHECKING:  # With a function `default`, any object can be appended.

        @overload
        def __init__(
            self: Stream[Data], url: str, *, default: None = None, **options: Unpack[_Options]
        ) -> None: ...
        @overload
        def __init__(
            self: Stream[Any], url: str, *, default: Default, **options: Unpack[_Options]
        ) -> None: ...
        def __init__(self, url: str, **options: Any) -> None: ...

    @overload
    @classmethod
    def create(
        cls, url: str, *, default: None = None, data: Data = None, **options: Unpack[_Creation]
    ) -> Self: ...
    @overload
    @classmethod
    def create(
        cls, url: str, *, default: Default, data: Any = None, **options: Unpack[_Creation]
    ) -> Stream[Any]: ...
    @classmethod
    def create(cls, url: str, **options: Any) -> Any:
        """Create the stream, or use the existing one if its configuration is the same. Raises StreamConflict
        if the configuration differs. Takes the options of `Stream`, and of the stream's creation: `ttl`,
        `expires_at`, `closed`, `data`, `forked_from`, `retain_seconds`, `compact`, …"""
        of_stream, creation = wire.split_options(options)
        stream = cls(url, **of_stream)
        stream._driver().run(stream._protocol.create(**creation))
        return stream

    @classmethod
    def proxy(
        cls,
        url: str,
        request: httpx.Request,
        *,
        token: wire.Value | None = None,
        key: str | None = None,
        client: httpx.Client | None = None,
    ) -> Self:
        """Call an upstream by the durable proxy of the server at `url`, and return the stream of its answer,
        which anybody can read by its signed URL for a day. `token` is the server's. The same request with the
        same `key` (or `Idempotency-Key`) returns the same answer. Raises StatusError, with the upstream's
        status if the upstream refuses. `follow` raises AnswerCut behind the last chunk of a cut answer."""
        driver = BlockingDriver(client, wire.bearer(token))
        answer, _ = driver.run(call_by_proxy(url, request, request.read(), key))
        return cls(answer, client=client)

    def producer(
        self,
        producer_id: str,
        *,
        epoch: int | None = None,
        closes: bool = True,
        create: Create = False,
        **limits: Unpack[ProducerOptions],
    ) -> Producer[DataT]:
        """Return an idempotent producer, which takes over from an earlier one with the same id. The earlier
        one's next append raises ProducerFenced. `epoch` sets the epoch instead of claiming the next one.
        `closes`: the end of the `with` block closes the stream. `create`: the first batch creates a missing
        stream, with these settings if given (Tidemark only). `limits`: see `ProducerLimits`."""
        if create is False:
            self._driver().run(self._protocol.known_content_type())
        now = time.time_ns() // 1000
        batches = Batches(self._protocol, producer_id, now, epoch, ProducerLimits(**limits), create=create)
        return Producer(self._driver(), batches, closes=closes)

    def work(
        self,
        handler: Callable[[Delivery], object],
        subscription: str,
        *,
        workers: int = 1,
        max_messages: int = 10,
        lease_seconds: float = 30.0,
    ) -> None:
        """Hand the messages of a shared subscription to `handler`, on `workers` threads, until the stream is
        closed and all is done (Tidemark only). A message comes at least once: again, after a second, if
        `handler` raises, and after its lease if the process dies. A thread takes up to `max_messages` at a
        time, and gives back those that it has not begun when most of the lease is over."""
        stop, asked = threading.Event(), {"max_messages": max_messages, "lease_seconds": lease_seconds}

        def run() -> None:
            driver, take, settled = self._driver(), self._protocol.take, dict[str, list[str]]()
            while not stop.is_set():
                answer = driver.run(take(subscription, settled, wait_seconds=_TAKE_SECONDS, **asked))
                settled, until = {"done": [], "release": []}, time.monotonic() + 0.8 * lease_seconds
                if answer["closed"]:
                    return
                for each in answer["messages"]:
                    verb = "release"
                    if time.monotonic() < until and not stop.is_set():
                        try:
                            handler(Delivery.of(each))
                            verb = "done"
                        except Exception:  # noqa: BLE001 (logged; the message comes again)
                            wire.log.exception("the message at %s is given back", each["offset"])
                    settled[verb].append(each["receipt"])
                if settled["release"]:
                    stop.wait(1.0)
            driver.run(take(subscription, settled))

        with ThreadPoolExecutor(workers, "tidemark-work") as pool:
            try:
                for each in as_completed([pool.submit(run) for _ in range(workers)]):
                    each.result()
            finally:
                stop.set()

    def request_stop(self) -> None:
        """Ask a writer that watches `stop_requests` to stop. The stream stays open. The token needs only the
        right to write the stream `<url>.stop`. Raises NotFound if no writer watches."""
        self._stop_signal().close()

    def stop_requests(self) -> StopRequests:
        """Watch for `request_stop` of readers, in a `with` block around a writer."""
        return StopRequests(self._stop_signal())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for following in list(self._followed):
            following.close()

    def _driver(self) -> BlockingDriver:
        return BlockingDriver(self._client, self._headers, self._params, self._timeout)


class StopRequests:
    """Watches for `Stream.request_stop` of readers, by a thread, in a `with` block around a writer."""

    def __init__(self, signal: Stream[Any]) -> None:
        self._signal, self._process = signal, os.getpid()
        self._requested, self._following = threading.Event(), signal.follow()
        self._thread = threading.Thread(target=self._watch, name="tidemark-stop", daemon=True)

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until a reader requests a stop. Return False after a timeout."""
        return self._requested.wait(seconds)

    def __enter__(self) -> Self:
        self._signal.delete(missing_ok=True)
        type(self._signal).create(self._signal.url, **self._signal.options, ttl=wire.SIGNAL_TTL_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process != os.getpid():
            return
        self._following.close()
        with contextlib.suppress(StreamError):
            self._signal.delete(missing_ok=True)

    def _watch(self) -> None:
        try:
            if any(chunk.closed for chunk in self._following):
                self._requested.set()
        except StreamError as why:
            wire.log.warning("requests to stop are not seen any more: %s", why)


class Producer(Generic[DataT]):
    """Writes each message exactly once and in order, despite lost requests: made by `Stream.producer`.

    Background threads send the batches. The next `append` or `flush` raises a failure: another producer has
    claimed the id, the stream is closed or gone, or the retries are used up. The end of a `with` block closes
    the stream; after an exception it only sends the queued messages.

    A process that exits without `close` sends the queued messages for up to 5 seconds, and warns if some are
    left. A forked process that uses its parent's producer gets RuntimeError."""

    def __init__(self, driver: BlockingDriver, batches: Batches, *, closes: bool) -> None:
        self._driver, self._batches, self._closes = driver, batches, closes
        self._changed = threading.Condition()
        self._timer: threading.Timer | None = None
        self._stopped = False
        self._process = os.getpid()
        _producers.add(self)

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def append(self, data: DataT) -> None:
        """Queue one message. Waits while the queue is full (`max_held_bytes`)."""
        wire.check_process(self._process)
        message = self._batches.encode(data)
        with self._changed:
            if self._batches.is_full:
                self._until(lambda: not self._batches.is_full)
            if self._batches.add(message, time.monotonic()):
                self._send_what_is_ready()

    def flush(self) -> Receipt | None:
        """Wait until the server has acknowledged every message appended before. Return the receipt of the
        last one."""
        wire.check_process(self._process)
        with self._changed:
            self._batches.hurry()
            self._send_what_is_ready()
            added = self._batches.added
            self._until(lambda: self._batches.acknowledged >= added)
            return self._batches.result

    def close(self, data: DataT | None = None) -> Receipt | None:
        """Flush and close the stream, with `data` as its last message. A repeat returns the same receipt."""
        wire.check_process(self._process)
        message = b"" if data is None else self._batches.encode(data)
        try:
            with self._changed:
                if not self._batches.is_closed:
                    self._batches.add(message, time.monotonic())
                    self._batches.close()
                    self._send_what_is_ready()
                self._until(lambda: self._batches.is_closed)
                return self._batches.result
        finally:
            self._stop()

    def detach(self) -> None:
        """Flush, and leave the stream open."""
        try:
            self.flush()
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._stopped:
            return
        if error is None:
            self.close() if self._closes else self.detach()
            return
        within = threading.TIMEOUT_MAX if isinstance(error, Exception) else wire.INTERRUPTED_SECONDS
        self.finish(time.monotonic() + within)
        self._stop()

    def finish(self, until: float) -> None:
        """Send the queued messages until the deadline, and warn if some are left."""
        if self._stopped or self._process != os.getpid():
            return
        with self._changed:
            self._batches.hurry()
            self._send_what_is_ready()
            while self._batches.failure is None and self._batches.unwritten and time.monotonic() < until:
                self._changed.wait(min(threading.TIMEOUT_MAX, until - time.monotonic()))
        wire.warn_of_unwritten(self._batches)

    def _stop(self) -> None:
        if self._process != os.getpid():
            return  # A thread of the parent process may hold the lock.
        with self._changed:
            self._stopped = True
            self._batches.detach()
            self._send_what_is_ready()
            self._changed.notify_all()

    def _until(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._batches.failure is not None or condition())
        self._batches.check()

    def _send_what_is_ready(self) -> None:
        """Send each batch that is ready, on a thread. A timer does so when a linger or a retry pause ends."""
        with self._changed:
            while (batch := self._batches.take(time.monotonic())) is not None:
                send = partial(self._send, batch)
                try:
                    threading.Thread(target=send, name="tidemark-producer", daemon=True).start()
                except RuntimeError:  # The system has no more threads.
                    send()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None  # The timer holds the producer.
            if (at := self._batches.next_at()) is None:
                return
            self._timer = threading.Timer(max(0.0, at - time.monotonic()), self._send_what_is_ready)
            self._timer.name, self._timer.daemon = "tidemark-producer", True
            try:
                self._timer.start()
            except RuntimeError as error:
                self._batches.fail(error)

    def _send(self, batch: ProducerBatch | None) -> None:
        while batch is not None:
            try:
                reply = self._driver.perform(self._batches.request(batch))
                with self._changed:
                    self._batches.answered(batch, reply, time.monotonic())
            except Exception as error:  # noqa: BLE001 (raised by a header's function: the next append raises it)
                with self._changed:
                    self._batches.fail(error)
            with self._changed:
                batch = self._batches.take(time.monotonic())
                self._send_what_is_ready()
                self._changed.notify_all()
