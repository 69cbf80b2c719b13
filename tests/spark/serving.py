"""An HTTP server on a thread of the test's own process, whose answers a test may spoil."""

import asyncio
import socket
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Self

import uvicorn

from tidemark.server.http_server import UvicornServer
from tidemark.server.ports import listening_socket, port_of
from tidemark.spark.writer.publish import PROBE_SEQ

Spoil = Callable[[str, str, dict[str, str]], str | None]
"""Given method, path and headers: None, `before` (not carried out) or `after` (carried out, unanswered)."""


def is_append(method: str, headers: dict[str, str], *, probes: bool = False) -> bool:
    """Or, with `probes`, the question whether a batch was begun: an append that is always refused."""
    return method == "POST" and (headers.get("producer-seq") == str(PROBE_SEQ)) == probes


def posts_fail(fault: str, *, behind: int) -> Spoil:
    """The first appends are carried out and answered. Those behind them are not (`before`), or are not
    answered (`after`)."""
    numbers = count(1)
    return lambda method, _path, headers: (
        fault if is_append(method, headers) and next(numbers) > behind else None
    )


class ThreadedServer:
    """`spoil` is asked at every request; `seen` lists what came."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._listener: socket.socket = listening_socket("127.0.0.1", 0)
        self._server = UvicornServer(
            uvicorn.Config(
                self._spoiling, interface="asgi3", log_level="critical", access_log=False, lifespan="auto"
            )
        )
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self.spoil: Spoil = lambda _method, _path, _headers: None
        self.seen: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{port_of(self._listener)}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    async def _spoiling(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append((scope["method"], scope["path"]))
        fault = self.spoil(scope["method"], scope["path"], headers)
        if fault is None:
            await self._application(scope, receive, send)
            return
        if fault == "after":

            async def swallow(_message: Any) -> None:
                return None

            await self._application(scope, receive, swallow)
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
