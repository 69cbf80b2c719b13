"""A listener at a free port, for proxies: on the caller's event loop, or on one of its own."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import uvloop

from tests.chaos.exchange import BUFFER

_SECONDS: Final = 60


class Listener(ABC):
    """Serves each connection in a task of its own, which ends with the listener."""

    port = 0

    def __init__(self) -> None:
        self._connections: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which is closed behind it. EOFError and OSError say that one side has ended."""

    async def start(self, **options: Any) -> None:
        """`options` are those of `asyncio.start_server`."""
        asked: dict[str, Any] = {"limit": BUFFER, "backlog": 1024, **options}
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, **asked)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.serve(reader, writer)
        except (EOFError, OSError, asyncio.CancelledError, asyncio.LimitOverrunError):
            pass
        except RuntimeError:
            # uvloop's word for a connection that has just been closed.
            if not writer.is_closing():
                raise
        finally:
            self._connections.discard(task)
            writer.close()

    @contextmanager
    def on_a_thread(self, **options: Any) -> Iterator[Self]:
        """Listens until the end of the block, on an event loop of its own."""
        loop = uvloop.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def run(call: Coroutine[Any, Any, Any]) -> None:
            asyncio.run_coroutine_threadsafe(call, loop).result(_SECONDS)

        run(self.start(**options))
        try:
            yield self
        finally:
            run(self.close())
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_SECONDS)
            loop.close()
