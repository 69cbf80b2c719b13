"""A proxy between a client and a storage engine that spoils replies: it cuts them, changes them, or
says more than was asked for. Requests pass as they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.chaos.exchange import BUFFER, HEAD_END, Request, read_reply, read_request
from tests.chaos.listener import Listener


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply of the engine, as bytes on the wire."""

    operation: str
    raw: bytes

    @property
    def head(self) -> bytes:
        """With the blank line that ends it."""
        return self.raw[: self.raw.index(HEAD_END) + len(HEAD_END)]

    @property
    def body(self) -> bytes:
        return self.raw[len(self.head) :]

    def with_header(self, name: str, value: str | None) -> Reply:
        """Another value of a header, or none of it."""
        line = re.compile(rb"\r\n" + name.encode() + rb":[^\r]*", re.IGNORECASE)
        new = b"" if value is None else f"\r\n{name}: {value}".encode()
        assert line.search(self.head), f"the reply has no {name}"
        return Reply(self.operation, line.sub(new, self.head) + self.body)

    def with_body(self, body: bytes) -> Reply:
        """Another body, and its length."""
        return Reply(self.operation, self.head + body).with_header("content-length", str(len(body)))


@dataclass(frozen=True, slots=True)
class Sent:
    """What the client gets of a reply, and whether the connection is closed behind it."""

    data: bytes
    close: bool = False


Spoil = Callable[[Reply], Sent]


def unspoiled(reply: Reply) -> Sent:
    return Sent(reply.raw)


class Proxy(Listener):
    """In front of one engine, on a thread of its own. `spoil` decides on each reply, `seen` has them."""

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self.upstream = urlsplit(upstream)
        self.spoil: Spoil = unspoiled
        self.seen: list[Reply] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def spoiling(self, spoil: Spoil) -> Iterator[list[Reply]]:
        """For so long; what comes by meanwhile."""
        self.spoil, self.seen = spoil, []
        try:
            yield self.seen
        finally:
            self.spoil = unspoiled

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine, to_engine = await asyncio.open_connection(
            self.upstream.hostname, self.upstream.port, limit=BUFFER
        )
        try:
            while request := await read_request(reader, writer):
                to_engine.write(request.raw)
                raw = b"".join([piece async for piece in read_reply(engine, request.method)])
                reply = Reply(_operation(request), raw)
                self.seen.append(reply)
                sent = self.spoil(reply)
                writer.write(sent.data)
                if sent.close:
                    break
        finally:
            to_engine.close()


def _operation(request: Request) -> str:
    """By AWS's own name, or by S3's method, and whether it is of a part."""
    if "partNumber=" not in request.path:
        return request.operation
    return "COPY part" if b"x-amz-copy-source" in request.head.lower() else "PUT part"
