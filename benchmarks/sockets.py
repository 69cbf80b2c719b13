"""Compare sockets with long-polls on a local server: `python -m benchmarks.sockets [READERS]`.

Readers wait on one stream: by sockets, each of which watches nine more streams, then by long-polls. The
output is the server's memory for each waiting reader, and the time until an append reaches all readers, and
until it reaches one (the median of many appends). A long-poll delivers the data; a socket only a notice.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import httpx

from tests.ports import free_port
from tidemark.protocol.socket import PATH
from tidemark.server.http_server import loop_factory
from tidemark.server.ports import LOOPBACK

READERS: Final = 5_000
STREAMS: Final = 10
WAKES: Final = 200
REPEATS: Final = 5
#: Readers that connect at once.
_AT_ONCE: Final = 200
#: Readers that warm up the server before the measurement.
_WARM: Final = 100
_HANDSHAKE: Final = (
    "GET {path} HTTP/1.1\r\nhost: {host}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
_POLL: Final = "GET /v1/stream/{name}?offset={offset}&live=long-poll HTTP/1.1\r\nhost: {host}\r\n\r\n"


class Reader(asyncio.Protocol):
    """Counts wake-ups and answers. Each contains `marker` once."""

    def __init__(self, marker: bytes) -> None:
        self.marker = marker
        self._seen = b""
        self._told = 0
        self._waiting: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *behind, self._seen = (self._seen + data).split(self.marker)
        self._told += len(behind)
        self._seen = self._seen[-len(self.marker) :]
        if self._told and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def told(self, times: int = 1) -> None:
        while self._told < times:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._told -= times


class Server:
    """An empty server in its own process."""

    def __init__(self, port: int, pid: int) -> None:
        self.host = f"{LOOPBACK}:{port}"
        self.port = port
        self._pid = pid
        self.http = httpx.AsyncClient(base_url=f"http://{self.host}", timeout=60)

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def append(self, name: str) -> str:
        """Return the offset behind the message."""
        answer = await self.http.post(
            f"/v1/stream/{name}", content=b"12345678", headers={"content-type": "text/plain"}
        )
        answer.raise_for_status()
        return answer.headers["stream-next-offset"]

    async def reader(self) -> Reader:
        loop, made = asyncio.get_running_loop(), lambda: Reader(b"stream-next-offset:")
        return (await loop.create_connection(made, LOOPBACK, self.port))[1]

    async def socket(self, names: list[str]) -> Reader:
        """Open a socket that watches these streams, and wait for the first answers."""
        reader = await self.reader()
        reader.marker = b"\r\n\r\n"
        reader.transport.write(_HANDSHAKE.format(path=PATH, host=self.host).encode())
        await reader.told()
        reader.marker = b'"offset"'
        reader.transport.write(frame({"watch": [f"/v1/stream/{name}" for name in names]}))
        await reader.told(len(names))
        return reader

    def poll(self, reader: Reader, name: str, offset: str) -> None:
        reader.transport.write(_POLL.format(name=name, offset=offset, host=self.host).encode())


def frame(message: object) -> bytes:
    """Return a client's text frame, masked with zeros (RFC 6455 §5.2)."""
    text = json.dumps(message).encode()
    length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack("!H", len(text))
    return b"\x81" + length + bytes(4) + text


@contextmanager
def serving() -> Iterator[Server]:
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "LONG_POLL_SECONDS": "600", "JANITOR_SECONDS": "0"}
    environment["PYTHONMALLOC"] = "malloc"  # As `make run` sets it.
    command = [sys.executable, "-m", "tidemark.cli", "serve", "--in-memory"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield Server(port, process.pid)
        finally:
            process.terminate()


async def many(count: int, make: Callable[[], Awaitable[Reader]]) -> list[Reader]:
    made: list[Reader] = []
    while len(made) < count:
        made += await asyncio.gather(*(make() for _ in range(min(_AT_ONCE, count - len(made)))))
    return made


async def measure(server: Server, kind: str, readers: int) -> tuple[float, float, float]:
    """Return the kilobytes per reader, and the milliseconds until an append reached all readers, and one."""
    names = [f"bench-{kind}-{number}" for number in range(STREAMS)]
    for name in names:
        await server.http.put(f"/v1/stream/{name}", headers={"content-type": "text/plain"})
    offset = "0" * 16
    before = server.resident_bytes()
    if kind == "socket":
        waiting = await many(readers, lambda: server.socket(names))
    else:
        waiting = await many(readers, server.reader)
        for reader in waiting:
            server.poll(reader, names[0], offset)
        await asyncio.sleep(5)
    kilobytes = (server.resident_bytes() - before) / readers / 1024
    all_ms = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        offset = await server.append(names[0])
        await asyncio.gather(*(reader.told() for reader in waiting))
        all_ms.append((time.perf_counter() - began) * 1000)
        if kind != "socket":
            for reader in waiting:
                server.poll(reader, names[0], offset)
            await asyncio.sleep(5)
    for reader in waiting:
        reader.transport.abort()
    await asyncio.sleep(5)
    return kilobytes, statistics.median(all_ms), await median_of_one(server, kind, names[1:2])


async def median_of_one(server: Server, kind: str, names: list[str]) -> float:
    reader = await (server.socket(names) if kind == "socket" else server.reader())
    offset, took = "0" * 16, []
    for _ in range(WAKES):
        if kind != "socket":
            server.poll(reader, names[0], offset)
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        offset, _ = await asyncio.gather(server.append(names[0]), reader.told())
        took.append((time.perf_counter() - began) * 1000)
    reader.transport.abort()
    return statistics.median(took)


async def run(readers: int) -> None:
    print("| readers wait by | KB each | an append reaches all, ms | one, ms |")
    print("| --- | ---: | ---: | ---: |")
    found = {}
    for kind in ("socket", "long-poll"):
        with serving() as server:
            await measure(server, kind, _WARM)
            kilobytes, all_ms, one_ms = found[kind] = await measure(server, kind, readers)
            print(f"| {kind} | {kilobytes:.0f} | {all_ms:.0f} | {one_ms:.2f} |", flush=True)
            await server.http.aclose()
    _, all_ratio, one_ratio = (a / b for a, b in zip(found["socket"], found["long-poll"], strict=True))
    print(f"A socket takes {all_ratio:.2f} times as long as a long-poll for all, {one_ratio:.2f} for one.")


def main() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(int(sys.argv[1]) if len(sys.argv) > 1 else READERS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
