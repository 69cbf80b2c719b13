"""A relay between a client and a server, as networks have it: it loses connections without a word, or it
buffers answers and lets no WebSocket pass."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

UPGRADE = b"upgrade: websocket"
EVENTS = b"live=sse"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Relay:
    def __init__(self, upstream: str, *, buffers: bool) -> None:
        self._upstream = urlsplit(upstream)
        #: Event streams are passed on when they have ended.
        self._buffers = buffers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = list[socket.socket]()
        self._upgraded, self._swallowed = set[socket.socket](), set[socket.socket]()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def swallow(self) -> None:
        """Nothing passes any more on the WebSockets that are open by now."""
        self._swallowed |= self._upgraded

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._upstream.hostname, self._upstream.port))
                self._open += [client, server]
                for pump in (self._forth, self._back):
                    threading.Thread(target=pump, args=[client, server], daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if UPGRADE in data.lower():
                    self._upgraded.add(server)
                    if self._buffers:
                        client.sendall(REFUSED)
                        break
                if self._buffers and EVENTS in data:
                    data = data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                if server not in self._swallowed:
                    server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        held = b""
        with suppress(OSError):
            while data := server.recv(65536):
                if self._buffers and (held or b"text/event-stream" in data):
                    held += data
                elif server not in self._swallowed:
                    client.sendall(data)
            client.sendall(held)
            if server not in self._swallowed:
                client.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(upstream: str, *, buffers: bool = False) -> Iterator[Relay]:
    relay = Relay(upstream, buffers=buffers)
    thread = threading.Thread(target=relay.run, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.close()
        thread.join()
