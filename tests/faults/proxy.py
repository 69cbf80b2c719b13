"""A proxy between a client and a storage engine that spoils replies: it cuts them, changes them, or
says more than was asked for. Requests pass as they are."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

import uvloop

from tests.chaos.exchange import BUFFER, HEAD_END, Request, read_reply, read_request

_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply of the engine, as bytes on the wire."""

    operation: str
    raw: bytes

    @property
    def head(self) -> bytes:
        """With the blank line that ends it."""
        return self.raw[: self.raw.index(HEAD_END) + len(HEAD_END)]

    @property
    def body(self) -> bytes:
        return self.raw[len(self.head) :]

    def with_header(self, name: str, value: str | None) -> Reply:
        """Another value of a header, or none of it."""
        line = re.compile(rb"\r\n" + name.encode() + rb":[^\r]*", re.IGNORECASE)
        new = b"" if value is None else f"\r\n{name}: {value}".encode()
        assert line.search(self.head), f"the reply has no {name}"
        return Reply(self.operation, line.sub(new, self.head) + self.body)

    def with_body(self, body: bytes) -> Reply:
        """Another body, and its length."""
        return Reply(self.operation, self.head + body).with_header("content-length", str(len(body)))


@dataclass(frozen=True, slots=True)
class Sent:
    """What the client gets of a reply, and whether the connection is closed behind it."""

    data: bytes
    close: bool = False


Spoil = Callable[[Reply], Sent]


def unspoiled(reply: Reply) -> Sent:
    return Sent(reply.raw)


@dataclass
class Proxy:
    """In front of one engine, on a thread of its own. `spoil` decides on each reply, `seen` has them."""

    upstream: str
    spoil: Spoil = unspoiled
    seen: list[Reply] = field(default_factory=list)
    endpoint: str = ""
    _loop: asyncio.AbstractEventLoop = field(default_factory=uvloop.new_event_loop)
    _connections: set[asyncio.Task[Any]] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._run(
            asyncio.start_server(self._accept, "127.0.0.1", 0, limit=BUFFER, backlog=256)
        )
        self.endpoint = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()

    @contextmanager
    def spoiling(self, spoil: Spoil) -> Iterator[list[Reply]]:
        """For so long; what comes by meanwhile."""
        self.spoil, self.seen = spoil, []
        try:
            yield self.seen
        finally:
            self.spoil = unspoiled

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_SECONDS)

    async def _close(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        parts = urlsplit(self.upstream)
        engine, to_engine = await asyncio.open_connection(parts.hostname, parts.port, limit=BUFFER)
        try:
            while request := await read_request(reader, writer):
                to_engine.write(request.raw)
                raw = b"".join([piece async for piece in read_reply(engine, request.method)])
                reply = Reply(_operation(request), raw)
                self.seen.append(reply)
                sent = self.spoil(reply)
                writer.write(sent.data)
                if sent.close:
                    break
        except (EOFError, OSError, asyncio.CancelledError):
            pass  # The client has gone, or the test is over.
        finally:
            self._connections.discard(task)
            writer.close()
            to_engine.close()


def _operation(request: Request) -> str:
    """By AWS's own name, or by S3's method, and whether it is of a part."""
    if "partNumber=" not in request.path:
        return request.operation
    return "COPY part" if b"x-amz-copy-source" in request.head.lower() else "PUT part"
