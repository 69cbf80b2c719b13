"""A port and a data directory, which one server has at a time, and the health check on a port.

The lock of a directory is an flock on a file. Child processes inherit the descriptor, so the kernel releases
the lock only when all these processes have ended. No earlier run then has data files open.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
HEALTH_SECONDS = 60.0
LOCK_NAME = "lock"
#: Longest wait for the lock: after kill -9 of a server, its child processes end some milliseconds later.
_PATIENCE_SECONDS = 2.0
_POLL_SECONDS = 0.02


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


class DataDirectoryInUse(OSError):
    """Another process uses the data directory. The message names its process id."""


@contextmanager
def locked(directory: Path, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[int]:
    """Hold the lock until the end of the block, and of each process that inherited the descriptor. Yield the
    descriptor. Make the directory if it is missing. Raises DataDirectoryInUse, OSError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{directory} cannot be used: {error.strerror}; choose another DATA_DIR") from error
    path = directory / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, path, time.monotonic() + patience_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            holder = path.read_text(errors="replace").strip()
            who = f"process {holder}" if holder else "another process"
            raise DataDirectoryInUse(f"{path.parent} is in use by {who}: stop it, or choose another DATA_DIR")
        time.sleep(_POLL_SECONDS)
