"""Raw deflate (RFC 1951) of bodies and of the blocks of packs.

ISA-L (the package `isal`) is several times as fast as zlib and takes its place where it is installed. Each
reads what the other wrote. There is no checksum: DynamoDB has its own, and packs have one in their index.
"""

from __future__ import annotations

import zlib
from functools import cache
from types import ModuleType
from typing import Final

#: The `wbits` of deflate without a header.
RAW: Final = -zlib.MAX_WBITS
#: If this many bytes at the start of a body do not shrink, the rest is not tried.
_PROBE_BYTES: Final = 2048
#: The fastest level of ISA-L for text. zlib's takes a third of its default's time, for a tenth more bytes.
_LEVEL: Final = 2


@cache
def library() -> ModuleType:
    """ISA-L, or zlib, whose interface it has. The first body or block imports it."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def deflate(data: bytes) -> bytes | None:
    """`data` in fewer bytes, by an eighth at least; None if it is to be stored as it is."""
    if len(data) > 2 * _PROBE_BYTES and _smaller(data[:_PROBE_BYTES]) is None:
        return None
    return _smaller(data)


def inflate(deflated: bytes, size: int) -> bytes:
    """The bytes again, `size` of them. Raises ValueError if it would be more or fewer."""
    inflating = library().decompressobj(RAW)
    try:
        data: bytes = inflating.decompress(deflated, size + 1)
    except library().error as failure:
        raise ValueError(str(failure)) from failure
    if len(data) != size or not inflating.eof or inflating.unused_data:
        raise ValueError(f"{len(deflated)} bytes do not inflate to {size}")
    return data


def inflate_all(deflated: bytes) -> bytes:
    """The bytes again, if they are few and were deflated here. Raises ValueError if they are not whole."""
    try:
        data: bytes = library().decompress(deflated, RAW)
    except library().error as failure:
        raise ValueError(str(failure)) from failure
    return data


def _smaller(data: bytes) -> bytes | None:
    deflated: bytes = library().compress(data, _LEVEL, RAW)
    return deflated if len(deflated) <= len(data) * 7 // 8 else None
