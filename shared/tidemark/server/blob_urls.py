"""Signed URLs of blobs, like S3's presigned URLs: a URL allows reading, or writing, one blob for an hour."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import IO, Final
from urllib.parse import parse_qs

import orjson

from tidemark.engine.files import BLOBS_PATH, BlobFiles, WrittenBefore
from tidemark.engine.rows import crc32
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.errors import PayloadTooLarge
from tidemark.protocol.snapshot import MAX_UPLOAD_BYTES
from tidemark.server import Application, Receive, Scope, Send

_log: Final = logging.getLogger("tidemark")

_PIECE_BYTES: Final = 256 * 1024
_WRITTEN_BEFORE: Final = (
    "A body was uploaded to this URL before, and a URL takes one: publish it with Snapshot-Upload, or POST "
    "to .../upload again for another URL"
)
#: Allow pages of other origins, and make a browser save the blob, because it could be HTML with scripts.
_HEADERS: Final = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, PUT"),
    (b"access-control-allow-headers", b"*"),
    (b"content-security-policy", b"sandbox"),
    (b"content-disposition", b"attachment"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", NO_STORE.encode()),
]


class BlobUrls:
    """ASGI middleware in front of the whole application. The signature of a URL is the permission."""

    def __init__(self, application: Application, blobs: BlobFiles) -> None:
        self._application = application
        self._blobs = blobs

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or not scope["path"].startswith(BLOBS_PATH):
            return self._application(scope, receive, send)
        method, key = scope["method"], scope["path"].removeprefix(BLOBS_PATH)
        asked = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        if method == "OPTIONS":
            return _answer(send, 204, b"")
        signature = self._blobs.signature(method, key, asked)
        is_signed = hmac.compare_digest(signature.encode(), asked.get("signature", "").encode())
        if not is_signed or time.time() > int(asked["until"]):
            return _refuse(send, 403, "The URL has expired, or its signature does not allow this request")
        if method == "PUT":
            return self._take(key, receive, send)
        return self._hand_out(key, asked, send)

    async def _hand_out(self, key: str, asked: dict[str, str], send: Send) -> None:
        """Send a blob. If its checksum is wrong, the connection is cut off before the last piece."""
        try:
            file = await asyncio.to_thread(self._blobs.path_of(key).open, "rb")
        except FileNotFoundError:
            return await _refuse(send, 404, "There is no such blob: it was removed, or never uploaded")
        with file:
            content_type = asked.get("type", "application/octet-stream")
            size = os.fstat(file.fileno()).st_size
            headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % size)]
            await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]})
            crc, piece = 0, b""
            while following := await asyncio.to_thread(file.read, _PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                crc, piece = crc32(following, crc), following
            if asked.get("crc", f"{crc:08x}") != f"{crc:08x}":
                _log.error("a stored blob is damaged: %s does not fit its checksum", key)
                return None
            await send({"type": "http.response.body", "body": piece})
        return None

    async def _take(self, key: str, receive: Receive, send: Send) -> None:
        """Store an upload. Nothing is stored if the client disconnects early or sends too much. An existing
        blob is never overwritten, because it may be published already."""
        try:
            if await asyncio.to_thread(self._blobs.path_of(key).exists):
                raise WrittenBefore
            async with _on_threads(self._blobs.writing(key, once=True)) as file:
                await _copy(receive, file)
        except WrittenBefore:
            return await _refuse(send, 412, _WRITTEN_BEFORE)
        except PayloadTooLarge:
            return await _refuse(send, 413, f"A snapshot has at most {MAX_UPLOAD_BYTES} bytes")
        return await _answer(send, 200, b"")


@asynccontextmanager
async def _on_threads(writing: AbstractContextManager[IO[bytes]]) -> AsyncIterator[IO[bytes]]:
    """Enter and leave the context manager on threads, because both wait for the disk."""
    file = await asyncio.to_thread(writing.__enter__)
    try:
        yield file
    except BaseException as failure:
        await asyncio.to_thread(writing.__exit__, type(failure), failure, failure.__traceback__)
        raise
    await asyncio.to_thread(writing.__exit__, None, None, None)


async def _copy(receive: Receive, file: IO[bytes]) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the client left during its upload")
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > MAX_UPLOAD_BYTES:
            raise PayloadTooLarge(MAX_UPLOAD_BYTES)
        await asyncio.to_thread(file.write, piece)


async def _refuse(send: Send, status: int, reason: str) -> None:
    await _answer(send, status, orjson.dumps({"error": reason}), (b"content-type", b"application/json"))


async def _answer(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [*_HEADERS, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
