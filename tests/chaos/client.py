"""A client of HTTP/1.1 that takes nothing for an answer but a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httptools

TIMEOUT_SECONDS: Final = 20.0
JSON: Final = {"Content-Type": "application/json"}


class NoAnswer(Exception):
    """Nobody knows whether the request was carried out."""


class ProtocolError(NoAnswer):
    """The connection was not even made: it was not."""


class TimedOut(NoAnswer):
    """It may still be carried out: whoever was asked is still there."""


@dataclass(slots=True)
class Answer:
    """Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def next_offset(self) -> int:
        """-1 where none is named."""
        return int(self.headers.get("stream-next-offset", "-1"))

    @property
    def up_to_date(self) -> bool:
        return "stream-up-to-date" in self.headers

    @property
    def closed(self) -> bool:
        return "stream-closed" in self.headers


class Client:
    """One request at a time over a connection that is kept as long as it lasts."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: _Connection | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Raises NoAnswer."""
        head = _head(method, path, self._port, headers, len(body))
        try:
            async with asyncio.timeout(timeout_seconds):
                connection = await self._connect()
                return await connection.exchange(head + body, method)
        except TimeoutError as late:
            self.close()
            raise TimedOut from late
        except asyncio.CancelledError:
            self.close()
            raise

    async def events(self, path: str, idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of an event stream as it comes. The first item is the status, as bytes. Raises NoAnswer,
        also where nothing comes for so long; ends where the answer does."""
        connection = await self._connect()
        connection.pieces = asyncio.Queue()
        connection.send(_head("GET", path, self._port, None, 0), "GET")
        try:
            while True:
                async with asyncio.timeout(idle_seconds):
                    piece = await connection.pieces.get()
                if piece is None:
                    return
                if isinstance(piece, NoAnswer):
                    raise piece
                yield piece
        except TimeoutError as late:
            raise TimedOut from late
        finally:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connect(self) -> _Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        try:
            _, self._connection = await asyncio.get_running_loop().create_connection(
                _Connection, "127.0.0.1", self._port
            )
        except OSError as failure:
            raise ProtocolError from failure
        return self._connection


def _head(method: str, path: str, port: int, headers: Mapping[str, str] | None, length: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = False
        #: Where the answer is handed on piece by piece; None ends it.
        self.pieces: asyncio.Queue[bytes | NoAnswer | None] | None = None
        self._transport: Any = None
        self._parser: Any = None
        self._method = ""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None

    async def exchange(self, request: bytes, method: str) -> Answer:
        self._answer = asyncio.get_running_loop().create_future()
        self.send(request, method)
        return await self._answer

    def send(self, request: bytes, method: str) -> None:
        self._method, self._headers, self._body = method, {}, []
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.is_open = True

    def connection_lost(self, _cause: Exception | None) -> None:
        self.is_open = False
        self._fail()

    def data_received(self, data: bytes) -> None:
        try:
            if self._parser is not None:
                self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail()
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.pieces is not None:
            self.pieces.put_nowait(str(self._parser.get_status_code()).encode())
        elif self._method == "HEAD":
            self._settle()

    def on_body(self, body: bytes) -> None:
        if self.pieces is not None:
            self.pieces.put_nowait(body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self.pieces is not None:
            self.pieces.put_nowait(None)
        elif self._parser.get_http_version() == "1.1" and not self._is_delimited():
            self._fail()
        else:
            self._settle()

    def _is_delimited(self) -> bool:
        """An answer that only the end of the connection ends may have been cut off."""
        has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        return has_length or self._parser.get_status_code() in {204, 304} or self._method == "HEAD"

    def _settle(self) -> None:
        answer = Answer(self._parser.get_status_code(), self._headers, b"".join(self._body))
        if self._method == "HEAD" or not self._parser.should_keep_alive():
            # A parser that was not told of HEAD waits for a body.
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self) -> None:
        if self.pieces is not None:
            self.pieces.put_nowait(NoAnswer())
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoAnswer())
