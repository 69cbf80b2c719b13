"""Sending to AWS from the event loop: one exchange at a time over kept connections."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import httptools

from tidemark.aws.clock import CLOCK
from tidemark.aws.http import whole
from tidemark.aws.retry import NoAnswer
from tidemark.aws.sigv4 import AwsRequest, Service
from tidemark.local.on_loop.greenlets import await_only

_Reply = tuple[int, dict[str, str], bytes]
"""Status, headers by names in lower case, and body."""


class LoopHttp:
    """An `Http` for functions that `greenlet_spawn` runs."""

    def __init__(self, service: Service, answer_seconds: float) -> None:
        parts = urlsplit(service.endpoint)
        self._host, self._is_tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._authority = parts.netloc
        self._service = service
        self._answer_seconds = answer_seconds
        self._idle: deque[_Connection] = deque()

    def __call__(self, request: AwsRequest) -> tuple[int, bytes]:
        headers = self._service.sign(request)
        headers |= {"Host": self._authority, "Content-Length": str(len(request.body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{request.method} {request.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")
        sent = CLOCK.sent()
        status, reply_headers, body = await_only(self._exchange(head, request.body))
        if sent is not None:
            CLOCK.received(sent, reply_headers)
        return whole(request, status, reply_headers, body)

    async def _exchange(self, head: bytes, body: bytes) -> _Reply:
        """Raises NoAnswer: the request may have arrived all the same."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._answer_seconds):
                while self._idle and connection is None:
                    kept = self._idle.pop()
                    if kept.is_quiet():
                        connection = kept
                    else:
                        kept.close()
                if connection is None:
                    _, connection = await asyncio.get_running_loop().create_connection(
                        _Connection, self._host, self._port, ssl=self._is_tls or None
                    )
                reply = await connection.exchange(head, body)
        except (OSError, TimeoutError, httptools.HttpParserError) as failure:
            raise NoAnswer(str(failure)) from failure
        if connection.is_open:
            self._idle.append(connection)
        return reply

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # Transports close in the loop's next turn.


class _Connection(asyncio.Protocol):
    """Closed as soon as an exchange fails: bytes that arrive later would be taken for the reply to the
    next request."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: Any = None
        self._unread = select.poll()
        self._parser: Any = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._reply: asyncio.Future[_Reply] | None = None

    async def exchange(self, head: bytes, body: bytes) -> _Reply:
        self._reply = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines((head, body))
        try:
            return await self._reply
        except BaseException:
            self.close()
            raise

    def is_quiet(self) -> bool:
        """Open, and no bytes have arrived without a request. It polls the socket, because the loop may not
        have read them yet."""
        return self.is_open and not self._unread.poll(0)

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    def _settle(self, failure: Exception | None = None) -> None:
        if self._reply is None or self._reply.done():
            return
        if failure is None:
            status = self._parser.get_status_code()
            self._reply.set_result((status, self._headers, b"".join(self._body)))
        else:
            self._reply.set_exception(failure)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._unread.register(transport.get_extra_info("socket"), select.POLLIN)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            self.close()  # No request is open, and these bytes must not answer the next one.
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as failure:
            self.close()
            self._settle(failure)

    def connection_lost(self, _cause: Exception | None) -> None:
        self.is_open = False
        self._settle(ConnectionResetError("the connection was closed"))

    def on_message_begin(self) -> None:
        """Called by httptools, as the methods below. A second reply right behind the first has no request."""
        self._headers, self._body = {}, []
        if self._reply is not None and self._reply.done():
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._settle()
