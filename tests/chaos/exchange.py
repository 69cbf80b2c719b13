"""HTTP/1.1 as far as a proxy must know it: where a request and a reply end. EOFError is raised where the
connection ended inside of one."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

HEAD_END: Final = b"\r\n\r\n"
PIECE: Final = 64 * 1024
#: Of a stream: no line is longer.
BUFFER: Final = 8 * 1024 * 1024
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[^\r]*chunked", re.IGNORECASE)
_EXPECT: Final = re.compile(rb"\r\nexpect:[^\r]*", re.IGNORECASE)
_TARGET: Final = re.compile(rb"\r\nx-amz-target:[ \t]*[^\r.]*\.?(\w+)", re.IGNORECASE)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[ \t]*websocket", re.IGNORECASE)
_PRODUCER: Final = re.compile(rb"\r\nproducer-id:", re.IGNORECASE)
_DYNAMODB_WRITES: Final = frozenset(
    {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}
)


@dataclass(frozen=True, slots=True)
class Request:
    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode("latin-1")

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")

    @property
    def operation(self) -> str:
        """Of AWS's JSON protocols; else the method."""
        target = _TARGET.search(self.head)
        return target[1].decode("latin-1") if target else self.method

    @property
    def has_producer(self) -> bool:
        return _PRODUCER.search(self.head) is not None

    @property
    def opens_socket(self) -> bool:
        return _UPGRADE.search(self.head) is not None

    @property
    def is_to_dynamodb(self) -> bool:
        """Or to SQS, which is not throttled here."""
        return _TARGET.search(self.head) is not None

    @property
    def is_write(self) -> bool:
        """To DynamoDB or S3."""
        if self.is_to_dynamodb:
            return self.operation in _DYNAMODB_WRITES
        return self.method in {"PUT", "POST", "DELETE"}


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next one, or None where the connection has ended. Raises EOFError, OSError."""
    head = await _read_head(reader)
    if head is None:
        return None
    if _EXPECT.search(head):
        # Whoever waits for leave to send gets it here; the service is sent the whole at once.
        head = _EXPECT.sub(b"", head)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if _CHUNKED.search(head):
        body = b"".join([piece async for piece in _chunks(reader)])
    else:
        body = await reader.readexactly(_content_length(head) or 0)
    return Request(head, body)


async def read_reply(reader: asyncio.StreamReader, method: str) -> AsyncIterator[bytes]:
    """The reply's bytes as they come, to its end; the head first. A reply that only the end of the connection
    ends may have been cut off. Raises EOFError, OSError."""
    head = await _read_head(reader)
    while head is not None and head.startswith(b"HTTP/1.1 1"):
        head = await _read_head(reader)
    if head is None:
        raise EOFError
    yield head
    if method == "HEAD" or head[9:12] in {b"204", b"304"}:
        return
    if _CHUNKED.search(head):
        async for piece in _chunks(reader):
            yield piece
        return
    left = _content_length(head)
    while left is None or left > 0:
        piece = await reader.read(PIECE if left is None else min(left, PIECE))
        if not piece:
            raise EOFError
        left = None if left is None else left - len(piece)
        yield piece


def _content_length(head: bytes) -> int | None:
    found = _LENGTH.search(head)
    return int(found[1]) if found else None


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(HEAD_END)
    except asyncio.IncompleteReadError as ended:
        if ended.partial:
            raise
        return None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The last and empty one included; trailers are not used here."""
    size = 1
    while size:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as wrong:
            raise EOFError from wrong
        yield line + await reader.readexactly(size + 2)
