"""Bodies of appends in a staged file, one behind the other, each with its length before it.

No list of where each body begins is kept, so neither the task nor the manifest grows with their
number. They are read back many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

_PREFIX_BYTES: Final = 4
#: How much of a staged file is asked for at once.
PIECE_BYTES: Final = 4 * 1024 * 1024


def encode_body(file: BinaryIO, body: Any) -> int:
    """Write a body (anything with a length and bytes); how many bytes that took."""
    file.write(len(body).to_bytes(_PREFIX_BYTES, "big"))
    file.write(body)
    return _PREFIX_BYTES + len(body)


def decode_bodies(read: Callable[[int, int], bytes], start: int, length: int) -> Iterator[bytes]:
    """The bodies between two places; `read` is given a place and a number of bytes."""
    held, place, end = b"", start, start + length
    while place < end:
        piece = read(place, min(PIECE_BYTES, end - place))
        place += len(piece)
        held += piece
        low = 0
        while low + _PREFIX_BYTES <= len(held):
            begin = low + _PREFIX_BYTES
            high = begin + int.from_bytes(held[low:begin], "big")
            if high > len(held):
                break
            yield held[begin:high]
            low = high
        held = held[low:]
        if not piece:
            raise EOFError(f"a staged file ends at {place}, before {end}")
