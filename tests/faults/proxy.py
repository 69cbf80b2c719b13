"""A proxy between a client and a storage engine that spoils replies: it cuts them, changes them, or
says more than was asked for. Requests pass as they are."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
#: boto3 asks before it sends a large body.
_EXPECT: Final = re.compile(rb"\r\nexpect: *100-continue", re.IGNORECASE)
_TARGET: Final = re.compile(rb"\r\nx-amz-target: *DynamoDB_20120810\.(\w+)", re.IGNORECASE)
_SECONDS: Final = 60
#: Parts of a query that tell S3's operations apart; "x-id" says what the others do not.
_S3: Final = {"delete": "DeleteObjects", "list-type": "ListObjectsV2", "uploads": "CreateMultipartUpload"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply of the engine, as bytes on the wire."""

    operation: str
    raw: bytes

    @property
    def head(self) -> bytes:
        """With the blank line that ends it."""
        return self.raw[: self.raw.index(_END) + len(_END)]

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


@dataclass
class Proxy:
    """In front of one engine. `spoil` decides on each reply; `seen` are the replies that came by."""

    upstream: str
    spoil: Spoil = unspoiled
    seen: list[Reply] = field(default_factory=list)
    _listener: socket.socket = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread in `accept` is woken by this, and not by `close`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @contextmanager
    def spoiling(self, spoil: Spoil) -> Iterator[list[Reply]]:
        """For so long; what comes by meanwhile."""
        self.spoil, self.seen = spoil, []
        try:
            yield self.seen
        finally:
            self.spoil = unspoiled

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        parts = urlsplit(self.upstream)
        engine: socket.socket | None = None
        client.settimeout(_SECONDS)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while request := read_message(client):
                if engine is None:
                    engine = socket.create_connection((parts.hostname, parts.port or 80), _SECONDS)
                engine.sendall(request)
                raw = read_message(engine)
                assert raw is not None, "the engine hung up"
                reply = Reply(_operation(request), raw)
                with self._lock:
                    self.seen.append(reply)
                    sent = self.spoil(reply)
                client.sendall(sent.data)
                if sent.close:
                    break
        except OSError:
            pass  # The client has gone, or the test is over.
        finally:
            client.close()
            if engine is not None:
                engine.close()


def read_message(peer: socket.socket) -> bytes | None:
    """One request or reply; None where there is no more. The engines say how long each is."""
    data = b""
    while _END not in data:
        piece = peer.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, _ = data.partition(_END)
    if _EXPECT.search(head):
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        data = _EXPECT.sub(b"", data, count=1)
        head, _, _ = data.partition(_END)
    found = _LENGTH.search(head)
    pieces, left = [data], len(head) + len(_END) + (int(found[1]) if found else 0) - len(data)
    while left > 0:
        piece = peer.recv(min(left, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _operation(request: bytes) -> str:
    """By DynamoDB's and S3's own names."""
    found = _TARGET.search(request[:4096])
    if found:
        return found[1].decode()
    method, target, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    named = next((name for part, name in _S3.items() if part in query), None)
    if named is None and "partNumber" in query:
        named = "UploadPartCopy" if b"x-amz-copy-source" in request[:4096].lower() else "UploadPart"
    if named is None and "uploadId" in query:
        named = {"POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method]
    return named or {"GET": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject"}.get(method, method)
