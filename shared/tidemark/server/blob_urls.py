"""Signed URLs of blobs, as S3 has them: a URL allows reading, or writing, one blob for an hour."""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import Final
from urllib.parse import parse_qs

import orjson

from tidemark.engine.files import BLOBS_PATH, BlobFiles
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.snapshot import MAX_UPLOAD_BYTES
from tidemark.server import Application, Receive, Scope, Send

_PIECE_BYTES: Final = 256 * 1024
#: Pages of other origins use these URLs too, and a browser saves what comes, whatever its type.
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
    """ASGI middleware in front of everything else: the signature is the right."""

    def __init__(self, application: Application, blobs: BlobFiles) -> None:
        self._application = application
        self._blobs = blobs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(BLOBS_PATH):
            return await self._application(scope, receive, send)
        method, key = scope["method"], scope["path"].removeprefix(BLOBS_PATH)
        asked = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        if method == "OPTIONS":
            return await _answer(send, 204, b"")
        if not self._may(method, key, asked):
            return await _refuse(send, 403, "The URL's signature does not allow this, or its time is over")
        if method == "PUT":
            return await self._take(key, receive, send)
        return await self._hand_out(key, asked.get("type", "application/octet-stream"), send)

    def _may(self, method: str, key: str, asked: dict[str, str]) -> bool:
        until = asked.get("until", "")
        signature = self._blobs.signature(method, key, until, asked.get("type", ""))
        is_signed = hmac.compare_digest(signature, asked.get("signature", ""))
        return is_signed and time.time() <= int(until)

    async def _hand_out(self, key: str, content_type: str, send: Send) -> None:
        try:
            file = await asyncio.to_thread(self._blobs.path_of(key).open, "rb")
        except FileNotFoundError:
            return await _refuse(send, 404, "There is no such blob: it was removed, or never put there")
        with file:
            size = self._blobs.size(key) or 0
            headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % size)]
            await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]})
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        return None

    async def _take(self, key: str, receive: Receive, send: Send) -> None:
        """A client that leaves before its end has put nothing there."""
        size, more = 0, True
        with self._blobs.writing(key) as file:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionAbortedError("the client left during its upload")
                piece, more = message.get("body", b""), message.get("more_body", False)
                size += len(piece)
                if size > MAX_UPLOAD_BYTES:
                    break
                await asyncio.to_thread(file.write, piece)
        if more:
            await asyncio.to_thread(self._blobs.delete, key)
            return await _refuse(send, 413, f"A snapshot has at most {MAX_UPLOAD_BYTES} bytes")
        return await _answer(send, 200, b"")


async def _refuse(send: Send, status: int, reason: str) -> None:
    await _answer(send, status, orjson.dumps({"error": reason}), (b"content-type", b"application/json"))


async def _answer(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [*_HEADERS, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
