"""Loopback ports: free ones for the engines, and the asked-for one for the server."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def listening_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that already listens, so that nobody can take the port in between. Raises OSError.

    Several `shared` ones may listen on one port; Linux then spreads connections over them. Whoever binds the
    first of them makes sure before that nobody else has the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def shareable_socket(host: str, port: int) -> socket.socket:
    """The first of several that will share the port. Raises OSError where anybody else has it."""
    with listening_socket(host, port) as alone:
        port = port_of(alone)
    return listening_socket(host, port, shared=True)


def free_port() -> int:
    """A port that is free now. Another process may take it first: whoever binds it must expect that."""
    with listening_socket(LOOPBACK, 0) as listener:
        return port_of(listener)


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])
