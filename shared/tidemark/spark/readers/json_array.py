"""A JSON array's elements as the bytes they were sent in, from a body of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

#: How much of an array is held before its first part is split off.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: Where a piece may be cut is tried from its end; what is nested deeper than this waits for more.
_TRIES: Final = 64

_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class NotAnArray(ValueError):
    """The body is not the JSON array that a read of a JSON stream answers with."""


def split_array(body: bytes) -> list[bytes]:
    """Raises NotAnArray."""
    try:
        return list(map(bytes, _decoder.decode(body)))
    except msgspec.MsgspecError as fault:
        raise NotAnArray(str(fault)) from None


def split_arriving(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The elements in lists, each as soon as it is there. Raises NotAnArray.

    A text between two brackets that is itself an array of values ended at a comma between
    elements, and nowhere else: so where a cut is tried, the parser says if it was right.
    """
    held = bytearray()
    wanted = PIECE_BYTES
    for chunk in chunks:
        held += chunk
        if len(held) >= wanted:
            cut, elements = _cut(bytes(held))
            if cut:
                yield elements
                del held[1 : cut + 1]
            wanted = max(PIECE_BYTES, 2 * len(held))
    yield split_array(bytes(held))


def _cut(held: bytes) -> tuple[int, list[bytes]]:
    """The last comma between two elements that can be found, and the elements before it."""
    for mark in (b"},{", b","):
        place = len(held)
        for _ in range(_TRIES):
            place = held.rfind(mark, 1, place)
            if place < 0:
                break
            comma = place + mark.index(b",")
            try:
                return comma, split_array(held[:comma] + b"]")
            except NotAnArray:
                continue
    return 0, []
