"""A JSON array's elements as the bytes they were sent in, from a body of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: How much of an array is held before its first part is split off.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: The number of places tried from the end, to cut a piece off; deeper nesting waits for more data.
_TRIES: Final = 64

_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class NotAnArray(ValueError):
    """The body is not the JSON array that a read of a JSON stream answers with."""


def _elements(body: bytes) -> list[msgspec.Raw]:
    try:
        elements: list[msgspec.Raw] = _decoder.decode(body)
    except msgspec.MsgspecError as fault:
        raise NotAnArray(str(fault)) from None
    return elements


def split_array(body: bytes) -> list[bytes]:
    """Raises NotAnArray."""
    return list(map(bytes, _elements(body)))


def split_column(body: bytes) -> pa.Array:
    """The same as an Arrow array. Elements with nothing but a comma between two of them, as this project's
    server sends them, are copied together. Raises NotAnArray."""
    elements = _elements(body)
    count = len(elements)
    lengths = np.fromiter(map(len, elements), np.int32, count)
    if len(body) != lengths.sum() + count + 1:
        return pa.array(list(map(bytes, elements)), pa.binary())
    edges = np.zeros(count + 1, np.int32)
    np.cumsum(lengths + 1, out=edges[1:])
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(body).slice(1)]
    with_separators = pa.Array.from_buffers(pa.binary(), count, buffers)
    return pc.binary_slice(with_separators, 0, -1)


def split_arriving(chunks: Iterable[bytes]) -> Iterator[pa.Array]:
    """The elements in Arrow arrays, each as soon as it is there. Raises NotAnArray.

    A text between two brackets that is itself an array of values ended at a comma between
    elements, and nowhere else: so where a cut is tried, the parser says if it was right.
    """
    held: list[bytes] = []
    size, wanted = 0, PIECE_BYTES
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= wanted:
            body = b"".join(held)
            cut, elements = _cut(body)
            if cut:
                yield elements
                body = b"[" + body[cut + 1 :]
            held, size = [body], len(body)
            wanted = max(PIECE_BYTES, 2 * size)
    # A single chunk is not copied.
    yield split_column(b"".join(held))


def _cut(held: bytes) -> tuple[int, pa.Array]:
    """The last comma between two elements that can be found, and the elements before it."""
    for mark in (b"},{", b","):
        place = len(held)
        for _ in range(_TRIES):
            place = held.rfind(mark, 1, place)
            if place < 0:
                break
            comma = place + mark.index(b",")
            try:
                return comma, split_column(b"".join((memoryview(held)[:comma], b"]")))
            except NotAnArray:
                continue
    return 0, None
