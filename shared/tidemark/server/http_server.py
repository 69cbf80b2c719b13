"""The HTTP server: uvicorn with a shutdown that does not wait for long polls, and its WebSockets with the
limits that uvicorn lacks."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response
from websockets.server import ServerProtocol

from tidemark.cold_start import spare_what_is_loaded
from tidemark.protocol.socket import MAX_FRAME_BYTES
from tidemark.server import Application, Message, Receive, Scope, Send, connections
from tidemark.server.ports import LOOPBACK, health, port_of
from tidemark.server.request_log import CLIENT_LEFT, LoggedRequest, RequestLog

#: Receive buffer of a WebSocket. A read returns at most twice this size, and all its frames are parsed before
#: another connection is served.
RECEIVE_BUFFER_BYTES: Final = 32 * 1024
#: The most fragments of a WebSocket message. An empty fragment costs its sender only 6 bytes.
MAX_FRAGMENTS: Final = 100


class _Handshakes(ServerProtocol):
    """Answers a refused handshake with a JSON body with `error`, as for every refused request."""

    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        error = text.strip() or HTTPStatus(status).phrase
        response = super().reject(status, json.dumps({"error": error}))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response


class SocketConnection(connections.CutsOffUnread, WebSocketsSansIOProtocol):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _Handshakes(max_size=self.config.ws_max_size, logger=self.conn.logger)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_handshake()

    def _refuse_handshake(self) -> None:
        """Answer a handshake that is too large or has a body: the websockets library cannot parse it, and
        uvicorn then sends no response."""
        answer, fault = b"".join(self.conn.data_to_send()), self.conn.handshake_exc
        if not answer:
            reason = f"Failed to open a WebSocket connection: {fault and fault.__cause__}."
            answer = self.conn.reject(400, reason).serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def handle_ping(self) -> None:
        """Drop the pong if the client does not read, because pongs would pile up in the buffer."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Any) -> None:
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAGMENTS:
            self._close(1009)

    def send_receive_event_to_app(self) -> None:
        """Close the socket if a text is not UTF-8 (RFC 6455 §8.1), where uvicorn would log a traceback."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._close(1007)
                return
        super().send_receive_event_to_app()

    def _close(self, code: int) -> None:
        if not self.close_sent:
            self.conn.send_close(code)
            self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected  # uvicorn would report an error of the application.
        await super().send(message)
        # Without this, uvicorn reports a refused handshake as unanswered.
        self.handshake_complete = self.handshake_complete or self.close_sent

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        super().connection_lost(exc)
        connections.Connection.freed.ended(self.loop)


def sockets_of(limits: connections.Limits) -> type[SocketConnection]:
    """The class that uvicorn instantiates for each WebSocket."""
    return type("SocketConnection", (SocketConnection,), {"limits": limits})


#: Seconds in which running requests can finish after SIGTERM; then they are cut off.
GRACE_SECONDS: Final = 1.0
#: Seconds after the grace period until uvicorn itself cuts requests off, and reports each as an error.
BACKSTOP_SECONDS: Final = 10
READY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02
HEALTH_PATH: Final = "/v1/health"
DEFAULT_LIMITS: Final = connections.Limits()
#: The interval between pings on a WebSocket, and the longest wait for the pong before it is closed.
PING_SECONDS: Final = 60.0
#: A status above all real ones: nothing is logged.
_NEVER: Final = 1000
WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - compared with, not bound to


class NotHealthy(RuntimeError):
    """The server ended at its start, or its health check failed."""


class Requests:
    """Tracks the requests in flight, so that a shutdown can end each with a 503 or the end of its stream.
    Sockets get uvicorn's shutdown event before that, and then wait at most for storage."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False
        #: The end of the grace period, by the event loop's clock.
        self.ends_at = 0.0
        #: None until the server is ready, so that its own health checks are not logged.
        self.log: RequestLog | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] == "lifespan" or task is None:
            await self._application({**scope, "seconds_left": self.seconds_left}, receive, send)
            return
        self._tasks.add(task)
        try:
            serve = self._serve if scope["type"] == "http" else self._application
            await serve(scope, receive, send)
        except asyncio.CancelledError:
            if not self._ending:
                raise
        finally:
            self._tasks.discard(task)

    def seconds_left(self) -> float:
        """The rest of the grace period, for work outside of requests."""
        return max(0.0, self.ends_at - asyncio.get_running_loop().time())

    def end(self) -> None:
        self._ending = True
        for task in self._tasks:
            task.cancel()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = completed = False
        log, logged = self.log, LoggedRequest()
        from_status = log.from_status if log else _NEVER

        async def watched(message: Message) -> None:
            nonlocal started, completed
            started = started or message["type"] == "http.response.start"
            completed = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message.get("status", logged.status) >= from_status:
                logged.watch(message)
            await send(message)

        async def counted() -> Message:
            message = await receive()
            logged.received += len(message.get("body", b""))
            return message

        try:
            await self._application(scope, counted, watched)
        except asyncio.CancelledError:
            if not self._ending:
                raise
            if not started:
                headers = [(b"content-length", b"0"), (b"retry-after", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
            if not completed:
                await send({"type": "http.response.body", "body": b""})
        finally:
            is_error = logged.status >= from_status and logged.status != CLIENT_LEFT and not logged.overtook
            if log and (is_error or not from_status):
                log.write(scope, logged)


class UvicornServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    application: Application,
    listener: socket.socket,
    on_ready: Callable[[], None],
    stopping: asyncio.Event,
    limits: connections.Limits = DEFAULT_LIMITS,
    *,
    log: RequestLog | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Serve until `stopping` is set or, on the main thread, SIGINT or SIGTERM arrives. Call `on_ready` when
    the health check succeeds. Running requests and proxy calls then have `grace_seconds` to finish.

    Raises NotHealthy.
    """
    requests = Requests(application)
    server = UvicornServer(_configuration(requests, limits, grace_seconds))
    if threading.current_thread() is threading.main_thread():  # The process does nothing but serve.
        spare_what_is_loaded()
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(_wait_until_healthy(listener))
    asked = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((serving, ready, asked), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            requests.log = log
            on_ready()
            await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise NotHealthy("the server ended by itself; see the log above")
    finally:
        server.should_exit = True
        loop = asyncio.get_running_loop()
        requests.ends_at = loop.time() + grace_seconds
        loop.call_at(requests.ends_at, _end, server, requests)
        for task in (ready, asked):
            task.cancel()
        await serving


def _end(server: UvicornServer, requests: Requests) -> None:
    """Cut off the running requests. A connection whose client does not read is aborted."""
    for connection in list(server.server_state.connections):
        if isinstance(connection, connections.CutsOffUnread) and connection.is_unread:
            connection.transport.abort()
    requests.end()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop, if uvloop is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def _configuration(
    application: Application, limits: connections.Limits, grace_seconds: float
) -> uvicorn.Config:
    max_connections = connections.connections_within(limits, connections.raise_descriptor_limit())
    return uvicorn.Config(
        application,
        http=connections.protocol_of(limits, max_connections),
        timeout_keep_alive=math.ceil(limits.keep_alive_seconds),
        # Without this header a client may send on a connection that the server is closing, and get a reset.
        headers=[("keep-alive", f"timeout={math.ceil(limits.keep_alive_seconds)}")],
        ws=sockets_of(limits),
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        access_log=False,
        proxy_headers=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(grace_seconds) + BACKSTOP_SECONDS,
    )


async def _wait_until_healthy(listener: socket.socket) -> None:
    """Poll the health check. Raises NotHealthy."""
    bound, port = str(listener.getsockname()[0]), port_of(listener)
    host = WILDCARDS.get(bound, bound)
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while (status := await asyncio.to_thread(health, host, port, HEALTH_PATH)) != 200:
        if asyncio.get_running_loop().time() > deadline:
            raise NotHealthy(f"GET {HEALTH_PATH} responds with {status} after {READY_SECONDS:.0f} s")
        await asyncio.sleep(_POLL_SECONDS)
