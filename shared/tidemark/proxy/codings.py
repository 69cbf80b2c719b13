"""Decodes an upstream's answer, which some send compressed although `identity` is asked for."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import httpcore

#: Most bytes that come of one step, in memory: a few bytes may stand for gigabytes.
_PIECE_BYTES: Final = 64 * 1024
_CODINGS: Final = frozenset({"", "gzip", "x-gzip", "deflate"})


def coding_of(answer: httpcore.Response) -> str:
    """Empty for none."""
    values = [
        value.decode("latin-1") for name, value in answer.headers if name.lower() == b"content-encoding"
    ]
    codings = [each.strip().lower() for each in ",".join(values).split(",")]
    return ", ".join(each for each in codings if each not in {"", "identity"})


def unreadable(answer: httpcore.Response) -> str:
    """The error about a coding that is not decoded; empty where `decoded` gives the body."""
    coding = coding_of(answer)
    if coding in _CODINGS:
        return ""
    return f"Upstream answered in the coding {coding!r:.80}: only identity, gzip and deflate can be decoded"


async def decoded(answer: httpcore.Response) -> AsyncIterator[bytes]:
    """The body, in pieces of a bounded size; nothing of an unreadable one. Raises RemoteProtocolError for one
    that breaks its coding."""
    coding, decoder = coding_of(answer), cast("Any", None)
    if unreadable(answer):
        return
    try:
        async for data in answer.aiter_stream():
            if not coding:
                yield data
                continue
            left, piece = data, b""
            while left or (len(piece) == _PIECE_BYTES and not decoder.eof):
                if decoder is None or decoder.eof:  # A body of gzip may have several members.
                    decoder = _decoder(coding, left)
                piece = decoder.decompress(left, _PIECE_BYTES)
                left = decoder.unused_data or decoder.unconsumed_tail
                yield piece
    except zlib.error:
        raise httpcore.RemoteProtocolError("the body breaks its coding") from None
    if decoder and not decoder.eof:
        raise httpcore.RemoteProtocolError("the body ends inside its coding")


def _decoder(coding: str, data: bytes) -> Any:
    """A body of deflate begins with the byte of zlib (RFC 1950 §2.2), or is raw, as from some servers."""
    if coding != "deflate":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    is_raw = data[0] & 0x0F != zlib.DEFLATED
    return zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS)
