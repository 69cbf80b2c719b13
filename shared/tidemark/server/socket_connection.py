"""WebSockets of the local server, with the limits that uvicorn lacks."""

from __future__ import annotations

import json
import socket
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response
from websockets.server import ServerProtocol

from tidemark.server.connections import Connection, CutsOffUnread, Limits

#: A read takes at most twice that, and all of its frames are parsed before another connection has its turn.
RECEIVE_BUFFER_BYTES: Final = 32 * 1024
#: A message has no more fragments. An empty one costs its sender only six bytes.
MAX_FRAGMENTS: Final = 100


class _Handshakes(ServerProtocol):
    """A refused handshake gets a JSON body with its `error`, as every refused request does."""

    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        error = text.strip() or HTTPStatus(status).phrase
        response = super().reject(status, json.dumps({"error": error}))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response


class SocketConnection(CutsOffUnread, WebSocketsSansIOProtocol):
    """A WebSocket."""

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
        """uvicorn does not answer one that websockets cannot read: it is too large, or has a body."""
        answer, fault = b"".join(self.conn.data_to_send()), self.conn.handshake_exc
        if not answer:
            reason = f"Failed to open a WebSocket connection: {fault and fault.__cause__}."
            answer = self.conn.reject(400, reason).serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    def handle_ping(self) -> None:
        """A client that reads nothing gets no pongs either."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Any) -> None:
        super().handle_cont(event)
        if len(self.frames) > MAX_FRAGMENTS:
            self._close(1009)

    def send_receive_event_to_app(self) -> None:
        """uvicorn closes a socket for text that is not UTF-8 (RFC 6455 §8.1), and logs a traceback."""
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
            raise ClientDisconnected  # uvicorn takes that for a mistake of the application.
        await super().send(message)
        # uvicorn would report a handshake that was refused as one that nobody answered.
        self.handshake_complete = self.handshake_complete or self.close_sent

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        super().connection_lost(exc)
        Connection.freed.ended(self.loop)


def sockets_of(limits: Limits) -> type[SocketConnection]:
    """The class of WebSockets that uvicorn is to make."""
    return type("SocketConnection", (SocketConnection,), {"limits": limits})
