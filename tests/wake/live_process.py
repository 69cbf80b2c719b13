"""The live function's process, started as Lambda Web Adapter starts it."""

from __future__ import annotations

import http.client
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.support import World
from tests.waiting import PATIENCE_SECONDS, until
from tests.wake.support import ROOT, make_prefix, make_queues
from tidemark.aws.sqs import Queues


@dataclass
class Function:
    """The running process."""

    port: int
    process: subprocess.Popen[bytes]
    queues: Queues
    health: int = 200

    @contextmanager
    def get(self, target: str, headers: Mapping[str, str] = {}) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            connection.request("GET", target, headers=dict(headers))
            with connection.getresponse() as response:
                yield response

    def status(self, target: str) -> int:
        with self.get(target) as response:
            return response.status

    def is_up(self) -> bool:
        assert self.process.poll() is None, "it has ended by itself"
        try:
            return self.status("/v1/health") == self.health
        except OSError:
            return False

    def memory(self) -> int:
        """Bytes of memory that belong to this process alone."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(
    world: World,
    *,
    sse_seconds: int = 55,
    long_poll_seconds: int = 25,
    variables: Mapping[str, str] | None = None,
    health: int = 200,
) -> Iterator[Function]:
    prefix, port = make_prefix(), free_port()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AWS_LWA_PORT": str(port),
        "TABLE_NAME": world.table_name,
        "BUCKET_NAME": world.bucket_name,
        "QUEUE_PREFIX": prefix,
        "SSE_SECONDS": str(sse_seconds),
        "LONG_POLL_SECONDS": str(long_poll_seconds),
        **(variables or {}),
    }
    process = subprocess.Popen([ROOT / "functions" / "live" / "run.sh"], env=environment)
    function = Function(port, process, make_queues(prefix), health)
    try:
        until(function.is_up)
        yield function
    finally:
        process.kill()
        process.wait()
        for url in function.queues.all():
            function.queues.delete(url)


def read_until(response: http.client.HTTPResponse, wanted: bytes) -> None:
    received = b""
    while wanted not in received:
        chunk = response.read1()
        assert chunk, f"the events ended without {wanted!r}: {received!r}"
        received += chunk


class Crowd:
    """Many connections, read together."""

    def __init__(self, port: int, target: str, size: int) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: dict[socket.socket, bytes] = {}
        for _ in range(size):
            connection = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            self.selector.register(connection, selectors.EVENT_READ)
            self.received[connection] = b""

    def until_all_have(self, wanted: bytes) -> float:
        """How long the last one took, in seconds."""
        began = time.monotonic()
        while not all(wanted in received for received in self.received.values()):
            for key, _ in self.selector.select(PATIENCE_SECONDS):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                data = connection.recv(65536)
                assert data, "a connection ended"
                self.received[connection] += data
            assert time.monotonic() - began < PATIENCE_SECONDS
        return time.monotonic() - began

    def close(self) -> None:
        for connection in self.received:
            connection.close()
        self.selector.close()
