"""The socket for programs with threads: an event loop in a thread of its own, while anybody follows."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import httpx

from tidemark.client.exchange import Request, Wait
from tidemark.client.socket import ASK_SECONDS, MAX_ANSWER_BYTES, SocketFollower, Told
from tidemark.client.wire import Body, check_process


class _SocketThread:
    def __init__(self) -> None:
        #: The garbage collector may end a follower while another one enters, in the same thread.
        self._lock = threading.RLock()
        self._followers = 0
        self._loop: asyncio.AbstractEventLoop

    def enter(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            self._followers += 1
            if self._followers == 1:
                self._start()
            return self._loop

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            threading.Thread(target=partial(_run, loop), name="tidemark-socket", daemon=True).start()
        except RuntimeError:  # The system has no more threads: the next follower tries again.
            self._followers = 0
            loop.close()
            raise
        self._loop = loop

    def leave(self) -> None:
        with self._lock:
            self._followers -= 1
            if not self._followers:
                self._loop.call_soon_threadsafe(self._loop.stop)
                del self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    # Connections that nobody needs any more are being closed.
    loop.run_until_complete(_ended(loop))
    loop.close()


async def _ended(loop: asyncio.AbstractEventLoop) -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    await loop.shutdown_default_executor()


def _ask(client: httpx.Client, url: str) -> httpx.Response:
    body = Body(Request("GET", url, timeout_seconds=ASK_SECONDS, max_bytes=MAX_ANSWER_BYTES))
    with client.stream("GET", url, follow_redirects=True, timeout=ASK_SECONDS) as response:
        for piece in response.iter_bytes():
            body.add(piece)
    return body.of(response)


#: A forked process has a thread of its own.
_threads: Final[dict[int, _SocketThread]] = {}


class BlockingFollower:
    """A `SocketFollower` for one thread."""

    def __init__(self, client: httpx.Client, wait: Wait) -> None:
        self._follower = SocketFollower(
            wait.url, lambda url: asyncio.to_thread(_ask, client, url), insists=wait.insists
        )
        self._process = os.getpid()
        self._thread = _threads.setdefault(self._process, _SocketThread())
        self._loop = self._thread.enter()

    def wait(self, offset: str, token: Callable[[], str | None]) -> Told:
        check_process(self._process, "follower")
        while True:
            told = self._run(self._follower.wait(offset, token()))
            if told is not None:
                return told

    def _run(self, steps: Coroutine[Any, Any, Told | None]) -> Told | None:
        waiting = asyncio.run_coroutine_threadsafe(steps, self._loop)
        try:
            return waiting.result()
        finally:
            waiting.cancel()  # Ctrl-C.

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._follower.leave)
        self._thread.leave()
