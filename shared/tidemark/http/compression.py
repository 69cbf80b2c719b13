"""Compressed responses of a server of one's own. In front of the functions, CloudFront compresses."""

from __future__ import annotations

import re
import zlib
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipResponder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemark.log.pack_format import fast_zlib

#: Below that, headers and the client's work are as much as what is saved.
MIN_BYTES: Final = 1024
#: Media, archives, bytes of which nothing is known, and event streams: an event leaves when it is there.
_AS_THEY_ARE: Final = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")
_LOOPBACK: Final = re.compile(r"127\.|::1$|::ffff:127\.")


class _Gzip(GZipResponder):
    """By ISA-L where it is: a third to a quarter of JSON and text, for 2 to 3 ms of CPU a megabyte, of which
    zlib takes 7 to 10."""

    @property
    def compressor(self) -> Any:
        if self._compressor is None:
            self._compressor = fast_zlib().compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        return self._compressor


class Compressed:
    """ASGI middleware. Reads of `MIN_BYTES` and more go by gzip to a client that takes it. Not to one on this
    machine, where bytes cost less than the CPU; but a proxy on it says that it has come from elsewhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address, _ = scope.get("client") or ("", 0)
        is_read = scope["type"] == "http" and scope["method"] in {"GET", "HEAD"}
        if not is_read or (_LOOPBACK.match(address) and "X-Forwarded-For" not in Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        app = self._app
        if scope["method"] == "GET" and accepts_gzip(Headers(scope=scope)):
            app = _Gzip(app, MIN_BYTES, exclude_content_types=_AS_THEY_ARE)
        await app(scope, receive, _varied(send))


def accepts_gzip(headers: Headers) -> bool:
    codings = ",".join(headers.getlist("Accept-Encoding")).lower().replace(" ", "").split(",")
    return any(each.startswith("gzip") and not re.search(r";q=0(\.0*)?$", each) for each in codings)


def _varied(send: Send) -> Send:
    """Tells caches that other clients get other bytes. The entity tag of compressed bytes is a weak one: a
    strong one has one form of the bytes (RFC 9110 §8.8.3.3). Refusals stay alike, wherever they are made."""

    async def send_varied(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] in {200, 304}:
            headers = MutableHeaders(raw=message["headers"])
            varies = [*filter(None, headers.get("Vary", "").split(", ")), "Accept-Encoding"]
            headers["Vary"] = ", ".join(dict.fromkeys(varies))
            tag = headers.get("ETag", "")
            if tag.startswith('"') and "Content-Encoding" in headers:
                headers["ETag"] = f"W/{tag}"
        await send(message)

    return send_varied
