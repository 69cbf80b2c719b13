"""A page of the transport `http`: a response whose body is still to be read, its messages, and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import urllib3

from tidemark.protocol.offset import parse_token
from tidemark.spark.options.read import JSON_COLUMNS
from tidemark.spark.readers.columns import BATCH_ROWS, make_batch
from tidemark.spark.readers.json_array import PIECE_BYTES, split_array, split_arriving
from tidemark.spark.readers.json_columns import json_arrays
from tidemark.spark.readers.port import BEGINNING
from tidemark.spark.readers.times import PageTimes

_CHUNK_BYTES: Final = 1024 * 1024
#: A page that runs past the pinned end is cut by comparing; it must fit in memory for that.
_COMPARABLE_BYTES: Final = 64 * 1024 * 1024

Values: TypeAlias = "list[bytes] | pa.Array"
"""Messages, or pieces of bytes: as a list, or as an Arrow array of them."""


class RanPastTheEnd(Exception):
    """A page cannot be cut where the read must end."""


@dataclass(frozen=True)
class HttpPage:
    """A response whose headers have come: the page's bounds, and the body still to be read."""

    start: str
    end: str
    incarnation: str
    up_to_date: bool
    is_json: bool
    response: urllib3.BaseHTTPResponse

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
        # urllib3 copies a chunk that has not all that was asked for.
        yield from self.response.stream(max(1, min(size, self.content_length)))
        self.response.release_conn()

    @property
    def content_length(self) -> int:
        """A guess if the server sends no Content-Length."""
        return int(self.response.headers.get("Content-Length", _CHUNK_BYTES))

    def leave(self) -> None:
        """Discard the body. A short one is read to its end, so that the connection can be reused."""
        if self.content_length < _CHUNK_BYTES:
            self.response.drain_conn()
        else:
            self.response.close()

    def pieces(self) -> Iterator[Values]:
        """The page's messages, or its bytes, some at a time."""
        if self.is_json:
            return split_arriving(self.chunks(PIECE_BYTES))
        return ([chunk] for chunk in self.chunks())

    def values(self) -> list[bytes]:
        """All of the page's messages, or its bytes as the only value. Raises RanPastTheEnd."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) > _COMPARABLE_BYTES:
                self.response.close()
                raise RanPastTheEnd(f"tidemark: a page of over {_COMPARABLE_BYTES} bytes cannot be cut")
        return split_array(bytes(body)) if self.is_json else [bytes(body)]


def rows_of(
    pieces: Iterator[Values],
    constants: Mapping[str, Any],
    columns: Sequence[str],
    times: PageTimes | None,
    *,
    is_json: bool,
) -> Iterator[pa.RecordBatch]:
    """A page as Arrow batches."""
    position = 0
    for values in pieces:
        for low in range(0, len(values), BATCH_ROWS):
            some = values[low : low + BATCH_ROWS]
            arrays = {
                "position": pa.array(np.arange(position, position + len(some), dtype=np.int32)),
                "value": pa.array(some, pa.binary()) if isinstance(some, list) else some,
            }
            if is_json and not JSON_COLUMNS.isdisjoint(columns):
                arrays |= json_arrays(columns, arrays["value"].to_pylist())
            if times is not None:
                arrays["timestamp"] = times.take(some)
            yield make_batch(columns, len(some), constants, arrays)
            position += len(some)


def bytes_between(start: str, end: str) -> int | None:
    """None if the server's offsets are opaque, not byte positions as this project's are."""
    low, high = 0 if start == BEGINNING else parse_token(start), parse_token(end)
    return None if low is None or high is None else high - low


def cut_by_position(page: HttpPage, end: str, values: list[bytes]) -> list[bytes] | None:
    """Works only if the server's offsets are byte positions, as this project's are; else None."""
    low = 0 if page.start == BEGINNING else parse_token(page.start)
    high, stop = parse_token(page.end), parse_token(end)
    separator = 1 if page.is_json else 0
    if low is None or high is None or stop is None:
        return None
    ends = list(accumulate((len(value) + separator for value in values), initial=low))[1:]
    if not ends or ends[-1] != high:
        return None
    if not page.is_json:
        return [values[0][: stop - low]]
    kept = list(takewhile(lambda place: place <= stop, ends))
    return values[: len(kept)] if kept and kept[-1] == stop else None
