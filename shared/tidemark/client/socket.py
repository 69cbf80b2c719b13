"""The driver of `Watches`: one WebSocket for all streams that one event loop follows on a server.

The socket is open while a reader follows. If it cannot be opened, readers wait by other means, and the driver
tries again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib.util import find_spec
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import httpx

from tidemark.client.exchange import Reply
from tidemark.client.watches import ANSWER_SECONDS, SocketReader, Watches, Woken
from tidemark.client.wire import log
from tidemark.protocol.socket import MAX_FRAME_BYTES, PATH

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

#: The result of a `Wait`.
WaitResult: TypeAlias = bool | Reply
#: Sends a GET to a URL.
Ask: TypeAlias = Callable[[str], Awaitable[httpx.Response]]

ASK_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 65_536
_OPEN_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0
#: Timers stop while the machine sleeps: a timer that is 3 s late shows that the machine has slept.
_LOOK_SECONDS: Final = 5.0
_LATE_SECONDS: Final = 3.0
#: If the server answers no pings, TCP notices a connection that was cut on the way.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
#: The URL of each origin's socket. None if the origin has no socket, or only a silent one.
_urls: Final[dict[str, str | None]] = {}
#: A socket without readers is removed, because it keeps its event loop in memory.
_sockets: Final[dict[tuple[asyncio.AbstractEventLoop, str], ClientSocket]] = {}


class SocketFollower:
    """Follows a stream by the socket of its server. Use each follower in one event loop."""

    def __init__(self, url: str, ask: Ask, *, insists: bool) -> None:
        self._is_possible = find_spec("websockets") is not None
        if insists and not self._is_possible:
            raise ModuleNotFoundError(
                'follow(live="socket") needs websockets: pip install websockets', name="websockets"
            )
        self._url, self._ask = httpx.URL(url), ask
        self._joined: tuple[ClientSocket, SocketReader] | None = None

    async def wait(self, offset: str, token: str | None) -> WaitResult | None:
        """Wait for news. None: call `wait` again, with a fresh token."""
        if not self._is_possible:
            return False
        if self._joined is None:
            origin = f"{self._url.scheme}://{self._url.netloc.decode()}"
            there = _sockets.setdefault((asyncio.get_running_loop(), origin), ClientSocket(origin))
            # The path as in the request: with its escapes, without the query.
            self._joined = there, there.watches.join(self._url.raw_path.partition(b"?")[0].decode())
        there, reader = self._joined
        return await there.wait(reader, offset, token, self._ask)

    def leave(self) -> None:
        if self._joined is not None:
            (there, reader), self._joined = self._joined, None
            there.leave(reader)


class ClientSocket:
    def __init__(self, origin: str) -> None:
        self.watches = Watches()
        self._origin = origin
        self._ask: Ask
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._slept_seconds = 0.0

    def _now(self) -> float:
        """Return the time, with the time asleep: leases end although the machine sleeps."""
        return monotonic() + self._slept_seconds

    async def wait(self, reader: SocketReader, offset: str, token: str | None, ask: Ask) -> WaitResult | None:
        woken: asyncio.Future[Woken] = asyncio.get_running_loop().create_future()

        def wake(why: Woken) -> None:
            if not woken.done():  # The waiting task was cancelled.
                woken.set_result(why)

        self._ask = ask  # The client of an earlier follower may be closed.
        self.watches.wait(reader, offset, token, self._now(), wake)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        match await woken:
            case Woken.READ:
                return reader.take(offset) or True
            case Woken.ELSEWHERE:
                return False
            case Woken.AGAIN:
                return None

    def leave(self, reader: SocketReader) -> None:
        self.watches.leave(reader)
        self._changed.set()

    async def _run(self) -> None:
        watches = self.watches
        try:
            while watches.is_used:
                pause = watches.connect_at - self._now()
                if not watches.needs_connection or pause > 0:
                    await self._change(pause if watches.needs_connection else _LOOK_SECONDS)
                else:
                    await self._try()
        finally:
            _sockets.pop((asyncio.get_running_loop(), self._origin), None)
            watches.closed()  # If a program cancels all tasks, the readers wait anew.

    async def _try(self) -> None:
        try:
            await self._connect()
        except Exception as why:  # noqa: BLE001 - after any error the readers must be woken
            log.info("no socket at %s now: %r", self._origin, why)
            self.watches.lost(self._now())
            if self.watches.is_silent:
                _urls[self._origin] = None
            else:
                _urls.pop(self._origin, None)  # The socket may have a new URL.

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect

        if self._origin not in _urls:
            _urls[self._origin] = socket_url(await self._ask(self._origin + PATH))
        url = _urls[self._origin]
        if url is None:
            self.watches.absent()
            return
        options: dict[str, Any] = {"ssl": httpx.create_ssl_context()} if url.startswith("wss:") else {}
        opened = await connect(
            url,
            compression=None,
            ping_interval=None,
            open_timeout=_OPEN_SECONDS,
            close_timeout=_CLOSE_SECONDS,
            max_size=2 * MAX_FRAME_BYTES,
            **options,
        )
        try:
            _keep_alive(opened)
            await self._serve(opened)
            await opened.close()
        finally:  # The event loop may end before the server answers the close.
            opened.transport.abort()

    async def _serve(self, connection: ClientConnection) -> None:
        watches = self.watches
        watches.opened(self._now())
        receiving = asyncio.create_task(self._receive(connection))
        try:
            while watches.is_used and not watches.is_broken and not receiving.done():
                watches.tick(self._now())
                for frame in watches.frames(self._now()):
                    async with asyncio.timeout(ANSWER_SECONDS):  # The server may stop reading.
                        await connection.send(frame)
                await self._change(watches.next_at() - self._now())
        finally:
            receiving.cancel()
        if watches.is_used:
            raise ConnectionError("the connection has ended")
        watches.closed()

    async def _receive(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                self.watches.received(text, self._now())
                self._changed.set()
        self._changed.set()

    async def _change(self, seconds: float) -> None:
        """Wait for a change, a few seconds at most: a late timer shows that the machine slept."""
        seconds = max(0.0, min(seconds, _LOOK_SECONDS))
        due, ahead = time() + seconds, time() - monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        if time() > due + _LATE_SECONDS:
            self._slept_seconds += max(0.0, time() - monotonic() - ahead)
            self.watches.doubt(self._now())


def socket_url(answer: httpx.Response) -> str | None:
    """Return the URL in the answer of `GET /v1/socket`. None if there is no socket, or if it is not safe to
    send a token to. Raises HTTPStatusError if a retry may succeed."""
    if answer.status_code == 429 or answer.status_code >= 500:
        answer.raise_for_status()
    try:
        given = answer.json()["url"]
        url = answer.url.join(given)
    except (ValueError, TypeError, KeyError, httpx.InvalidURL):
        return None
    scheme = {"http": "ws", "https": "wss"}.get(url.scheme, url.scheme)
    allowed = {"wss"} if answer.url.scheme == "https" else {"ws", "wss"}
    return str(url.copy_with(scheme=scheme)) if answer.is_success and scheme in allowed else None


def bearer_token(client: httpx.AsyncClient | None, headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of a request with these headers."""
    sent = httpx.Headers(client.headers if client else None)
    sent.update(headers)
    kind, _, token = sent.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _keep_alive(connection: ClientConnection) -> None:
    """Turn TCP keep-alive on, as far as the system supports it."""
    opened = connection.transport.get_extra_info("socket")
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            if hasattr(socket, option):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class LoopThread:
    """The thread of an event loop, in which the followers of a program with threads wait."""

    def __init__(self) -> None:
        #: The garbage collector may end a follower while another one enters, in the same thread.
        self._lock = threading.RLock()
        self._followers = 0
        self._loop: asyncio.AbstractEventLoop

    def enter(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if not self._followers:
                begun = Future[asyncio.AbstractEventLoop]()
                # Made in the thread, because Ctrl-C in the main thread would leave half a loop.
                threading.Thread(target=partial(_run, begun), name="tidemark-socket", daemon=True).start()
                self._loop = begun.result()
            self._followers += 1
            return self._loop

    def leave(self) -> None:
        with self._lock:
            self._followers -= 1
            if not self._followers:
                self._loop.call_soon_threadsafe(self._loop.stop)
                del self._loop


def _run(begun: Future[asyncio.AbstractEventLoop]) -> None:
    try:
        begun.set_result(loop := asyncio.new_event_loop())
    except OSError as error:  # Too many open files.
        begun.set_exception(error)
        return
    loop.run_forever()
    # Some connections are still being closed.
    loop.run_until_complete(_ended(loop))
    loop.close()


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


#: A forked process has a thread of its own.
loop_threads: Final[dict[int, LoopThread]] = {}
