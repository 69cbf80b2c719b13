"""Ports: bind the configured port, and probe the health check on a port."""

from __future__ import annotations

import http.client
import socket

LOOPBACK = "127.0.0.1"
HEALTH_SECONDS = 60.0


def listening_socket(host: str, port: int) -> socket.socket:
    """Bind and listen at once, so that no other process can take the port meanwhile. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; uvloop sets it always. Without TCP_NODELAY each
    # response on a kept connection waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        why = f"port {port} on {host} cannot be used: {error.strerror}; choose another HOST or PORT"
        raise OSError(why) from error
    return listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def health(host: str, port: int, path: str) -> int | None:
    """Return the status of a GET, or None without a complete response."""
    connection = http.client.HTTPConnection(host, port, timeout=HEALTH_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
