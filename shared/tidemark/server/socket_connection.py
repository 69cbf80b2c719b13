"""WebSockets of the local server, with the limits that uvicorn lacks."""

from __future__ import annotations

from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tidemark.server.connections import Connection, Limits, UnreadTimer


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket. A client that does not read what it is told is cut off."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unread = UnreadTimer()

    def send_receive_event_to_app(self) -> None:
        """uvicorn closes a socket for text that is not UTF-8 (RFC 6455 §8.1), and logs a traceback."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        await super().send(message)
        # uvicorn would report a handshake that was refused as one that nobody answered.
        self.handshake_complete = self.handshake_complete or self.close_sent

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start(self.loop, self.limits.send_seconds, self.transport)

    def resume_writing(self) -> None:
        self._unread.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        super().connection_lost(exc)
        Connection.freed.ended(self.loop)


def sockets_of(limits: Limits) -> type[SocketConnection]:
    """The class of WebSockets that uvicorn is to make."""
    return type("SocketConnection", (SocketConnection,), {"limits": limits})
