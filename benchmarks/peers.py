"""`make benchpeers`: appends to Tidemark, Redis streams and NATS JetStream, in turn on one machine.

Tidemark and Redis sync the disk before each acknowledgement. JetStream cannot before 2.10 (Debian has 2.9):
it syncs every two minutes. Needs the Debian packages `redis-server` and `nats-server`; a missing one is left
out. One client in Python sends all requests, so its own time is in each figure.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.conformance.servers import running, temporary_directory, tidemark_server
from tests.ports import free_port

MESSAGE = b"x" * 100
STREAMS = 32

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Sends one append to the stream of this number, and returns when it is acknowledged.
Append = Callable[[Streams, int], Awaitable[None]]


@dataclass
class Peer:
    name: str
    port: int
    append: Append
    #: Is sent first on each connection.
    hello: bytes = b""
    #: Milliseconds of a sequential append (p50), appends a second of 32 clients on 32 streams.
    sequential: list[float] = field(default_factory=list)
    parallel: list[float] = field(default_factory=list)

    async def connect(self) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        if self.hello:
            await reader.readline()
            writer.write(self.hello)
        return reader, writer


async def append_to_tidemark(streams: Streams, number: int) -> None:
    reader, writer = streams
    head = b"POST /v1/stream/%d HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n" % number
    writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(MESSAGE), MESSAGE))
    answer = await reader.readuntil(b"\r\n\r\n")
    assert b" 204 " in answer[:16], answer


async def append_to_redis(streams: Streams, number: int) -> None:
    reader, writer = streams
    parts = [b"XADD", b"s%d" % number, b"*", b"m", MESSAGE]
    writer.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts))
    assert (await reader.readline()).startswith(b"$")
    await reader.readline()


async def append_to_nats(streams: Streams, number: int) -> None:
    reader, writer = streams
    inbox = b"_INBOX.%d" % id(writer)
    if not hasattr(writer, "subscribed"):
        writer.write(b"SUB %b 1\r\n" % inbox)
        writer.subscribed = True  # type: ignore[attr-defined]
    writer.write(b"PUB s.%d %b %d\r\n%b\r\n" % (number, inbox, len(MESSAGE), MESSAGE))
    while not (line := await reader.readline()).startswith(b"MSG"):
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
    answer = await reader.readexactly(int(line.split()[-1]) + 2)
    assert b'"seq"' in answer, answer


async def measure(peer: Peer, appends: int, seconds: float) -> None:
    streams, times = await peer.connect(), list[float]()
    for _ in range(appends):
        began = time.perf_counter()
        await peer.append(streams, 0)
        times.append((time.perf_counter() - began) * 1000)
    peer.sequential.append(median(times[appends // 10 :]))
    ends, counts = time.perf_counter() + seconds, [0] * STREAMS

    async def write(number: int) -> None:
        own = await peer.connect()
        while time.perf_counter() < ends:
            await peer.append(own, number)
            counts[number] += 1
        own[1].close()

    await asyncio.gather(*map(write, range(STREAMS)))
    peer.parallel.append(sum(counts) / seconds)
    streams[1].close()


@contextmanager
def serving(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait()


def redis(stack: ExitStack, directory: Path) -> Peer:
    port = free_port()
    options = ("--port", str(port), "--dir", str(directory), "--appendonly", "yes", "--appendfsync", "always")
    stack.enter_context(serving("redis-server", *options))
    return Peer("Redis streams", port, append_to_redis)


def nats(stack: ExitStack, directory: Path) -> Peer:
    port, file = free_port(), directory / "nats.conf"
    file.write_text(f'port: {port}\njetstream {{ store_dir: "{directory}"}}\n')
    stack.enter_context(serving("nats-server", "-c", str(file)))
    peer = Peer("NATS JetStream, no sync", port, append_to_nats, b'CONNECT {"verbose":false}\r\n')

    async def create() -> None:
        reader, writer = await peer.connect()
        asked = b'{"name":"S","subjects":["s.*"],"storage":"file"}'
        writer.write(b"SUB r 9\r\nPUB $JS.API.STREAM.CREATE.S r %d\r\n%b\r\n" % (len(asked), asked))
        while not (await reader.readline()).startswith(b"MSG"):
            pass
        writer.close()

    asyncio.run(create())
    return peer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with ExitStack() as stack:
        directories = [stack.enter_context(temporary_directory()) for _ in range(3)]
        server = stack.enter_context(running(tidemark_server("asgi", directories[0])))
        port = int(server.base_url.rpartition(":")[2])
        peers = [Peer("Tidemark", port, append_to_tidemark)]
        peers += [
            make(stack, directory)
            for make, directory in ((redis, directories[1]), (nats, directories[2]))
            if shutil.which(f"{make.__name__}-server")
        ]
        create_streams(port)
        for _ in range(given.repeats):
            for peer in peers:
                asyncio.run(measure(peer, 500, 4.0))
    print("| | sequential append, p50, ms | 32 clients → 32 streams, appends/s |\n| --- | ---: | ---: |")
    for peer in peers:
        print(f"| {peer.name} | {median(peer.sequential):.2f} | {median(peer.parallel):,.0f} |")


def create_streams(port: int) -> None:
    import httpx

    for number in range(STREAMS):
        place = f"http://127.0.0.1:{port}/v1/stream/{number}"
        httpx.put(place, headers={"Content-Type": "text/plain"}).raise_for_status()


if __name__ == "__main__":
    main()
