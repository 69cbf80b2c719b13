"""Bodies made smaller for storage: DynamoDB bills a write by the kilobyte, a read by four.

Text and JSON shrink to a third or so, for a few microseconds. Readers get exactly the bytes that were
appended, and offsets count uncompressed bytes.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

#: A smaller body leaves its item within the one kilobyte that every write is billed.
_FROM_BYTES: Final = 768
#: A start of this size that does not shrink says that the rest will not either.
_PROBE_BYTES: Final = 2048
#: Raw deflate: no header, no checksum (DynamoDB has its own).
_RAW: Final = -zlib.MAX_WBITS
#: The level that is a tenth larger and several times faster than the default.
_LEVEL: Final = 1


def deflate(data: bytes) -> bytes | None:
    """`data` in fewer bytes, by an eighth at least; None if it is to be stored as it is."""
    if len(data) < _FROM_BYTES:
        return None
    if len(data) > 2 * _PROBE_BYTES and _smaller(data[:_PROBE_BYTES]) is None:
        return None
    return _smaller(data)


def inflate(deflated: bytes, size: int, library: Any = zlib) -> bytes:
    """The bytes again, `size` of them, by `zlib` or a library with its interface. Raises ValueError if it
    would be more or fewer."""
    inflating = library.decompressobj(_RAW)
    try:
        data: bytes = inflating.decompress(deflated, size + 1)
    except library.error as failure:
        raise ValueError(str(failure)) from failure
    if len(data) != size or not inflating.eof or inflating.unused_data:
        raise ValueError(f"{len(deflated)} bytes do not inflate to {size}")
    return data


def _smaller(data: bytes) -> bytes | None:
    deflated = zlib.compress(data, _LEVEL, _RAW)
    return deflated if len(deflated) <= len(data) * 7 // 8 else None
