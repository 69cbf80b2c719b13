"""A page of the transport `http`: a response whose body is not read yet, its messages and its rows."""

from __future__ import annotations

import re
import sys
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import urllib3

from tidemark.protocol import json_text
from tidemark.protocol.errors import Malformed
from tidemark.protocol.offset import parse_token, render_offset
from tidemark.spark.options.read import JSON_COLUMNS
from tidemark.spark.readers.columns import BATCH_ROWS, json_arrays, make_batch, time_column
from tidemark.spark.readers.port import BEGINNING, Head, Position, place_of

#: Bytes of an array that are collected before a piece is cut off.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: Most commas that are tried for a cut, from the end. Deeper nesting waits for more data.
_TRIES: Final = 64

_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class NotAnArray(ValueError):
    """The body is not a JSON array, which every read of a JSON stream returns."""


def _elements(body: bytes) -> Sequence[bytes | msgspec.Raw]:
    try:
        elements: list[msgspec.Raw] = _decoder.decode(body)
    except msgspec.MsgspecError as fault:
        if b"\\ud" not in body.lower():
            raise NotAnArray(str(fault)) from None
        # A lone surrogate escape is JSON that msgspec refuses (`protocol/json_text.py`).
        try:
            return json_text.split_array(body)
        except Malformed as malformed:
            raise NotAnArray(malformed.message) from None
    return elements


def split_array(body: bytes) -> list[bytes]:
    """Split a JSON array into its elements. Raises NotAnArray."""
    return list(map(bytes, _elements(body)))


def split_column(body: bytes) -> pa.Array:
    """Split a JSON array into an Arrow array. If only commas separate the elements, as in this project's
    server, they are copied together. Raises NotAnArray."""
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
    """Yield the elements in Arrow arrays while the body arrives. Raises NotAnArray.

    A cut is tried at a comma. The text before the comma, with a closing bracket, is a valid array only if the
    comma separates two elements, so the parser decides whether the cut is right.
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
    # `join` does not copy a single chunk.
    yield split_column(b"".join(held))


def _cut(held: bytes) -> tuple[int, pa.Array]:
    """Find the last comma between two elements. Returns its place and the elements before it; 0 if not
    found."""
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


class TimesDoNotFit(Exception):
    """The times from the server do not match the page's messages."""


class PageTimes:
    """The times of a page's rows. `add` collects the writes from `start` to `end` from the server's answers;
    then `take` returns the times of the rows in order."""

    def __init__(self, start: str, *, is_json: bool) -> None:
        #: The start of the first write and the end of each write.
        self._edges = [place_of(start) or 0]
        # 0, not -1: if the page's first messages are no longer retained, the request must fail, not begin
        # later.
        self.end = render_offset(0) if start == BEGINNING else start
        self._is_json = is_json
        self._writes: dict[str, list[int]] = {"times_ms": [], "messages": [], "bytes": []}
        self._taken = 0

    def add(self, reply: Mapping[str, Any]) -> None:
        """Add an answer that begins at `end`."""
        if reply.get("message_ends"):
            ends = [reply["message_ends"][count - 1] for count in accumulate(reply["messages"])]
            self._edges += map(int, ends)
        else:
            self._edges += list(accumulate(reply["bytes"], initial=place_of(self.end) or 0))[1:]
        for name in self._writes:
            self._writes[name] += reply[name]
        self.end = reply["end_offset"]

    def take(self, values: Sequence[bytes]) -> pa.Array:
        """Return the times of the next rows; a row of bytes has the time of its first byte. Raises
        TimesDoNotFit if there are more rows, or bytes, than the writes have."""
        unit = "messages" if self._is_json else "bytes"
        sizes = np.ones(len(values), np.int64) if self._is_json else np.array(list(map(len, values)))
        edges = self._taken + np.cumsum([0, *sizes])
        ends = np.cumsum([0, *self._writes[unit]])
        self._taken = int(edges[-1])
        if self._taken > ends[-1]:
            raise TimesDoNotFit(f"tidemark: {self._taken} {unit}, and times of {ends[-1]}")
        writes = np.searchsorted(ends[1:], edges[:-1], side="right")
        return time_column(np.array(self._writes["times_ms"], np.int64)[writes])

    def check(self, end: str) -> None:
        """Check the number of rows after the last `take`. Raises TimesDoNotFit if it differs from the
        server's. Skips the check if `end` is inside a write."""
        place = place_of(end) or 0
        expected = place - self._edges[0]
        if self._is_json:
            if end != self.end and place not in self._edges:
                return
            expected = sum(self._writes["messages"][: bisect_right(self._edges, place) - 1])
        if expected != self._taken:
            raise TimesDoNotFit(f"tidemark: {self._taken} rows up to {end}, and times of {expected}")


_CHUNK_BYTES: Final = 1024 * 1024
#: Breaks of a page's body after which the read fails. The client retries each request by itself.
_MOST_BREAKS: Final = 8
#: Limit in bytes of a page that runs past the pinned end: to be cut, it must fit in memory.
_COMPARABLE_BYTES: Final = 64 * 1024 * 1024

Values: TypeAlias = "list[bytes] | pa.Array"
"""Messages, or pieces of bytes, as a list or as an Arrow array."""


class RanPastTheEnd(Exception):
    """A page cannot be cut at the end of the read."""


@dataclass(frozen=True)
class HttpPage:
    """A response with its headers: the page's bounds, and a body that is not read yet."""

    start: str
    end: str
    incarnation: str
    up_to_date: bool
    is_json: bool
    response: urllib3.BaseHTTPResponse
    repeat: Callable[[], HttpPage]

    @classmethod
    def of(cls, request: Callable[[], urllib3.BaseHTTPResponse], offset: str) -> HttpPage:
        """Return the page that a read at `offset` responds with."""
        response = request()
        headers = response.headers
        end, content_type = headers["Stream-Next-Offset"], headers.get("Content-Type", "")
        return cls(
            # A read from -1 begins at the first retained offset, which our server sends in this header.
            headers.get("Stream-Retained-Offset", offset) if offset == BEGINNING else offset,
            end,
            incarnation_in(headers.get("ETag", ""), end),
            headers.get("Stream-Up-To-Date", "").lower() == "true",
            content_type.partition(";")[0].strip().lower() == "application/json",
            response,
            partial(cls.of, request, offset),
        )

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[bytes]:
        """Yield the body. If it breaks off, read the page again and go on behind the yielded bytes. Raises
        HTTPError after too many breaks, or if the page has changed."""
        # urllib3 copies a chunk that is shorter than the requested size.
        size = max(1, min(size, self.content_length))
        page, taken, crc = self, 0, 0
        for tries_left in range(_MOST_BREAKS, -1, -1):
            try:
                for chunk in self._behind(taken, crc, page, size):
                    taken, crc = taken + len(chunk), zlib.crc32(chunk, crc)
                    yield chunk
                return page.response.release_conn()
            except urllib3.exceptions.HTTPError:
                page.response.close()
                if not tries_left:
                    raise
                page = self.repeat()
                same = page.start == self.start and page.incarnation == self.incarnation
                if not same or (page.end != self.end and "Content-Length" not in self.response.headers):
                    page.leave()
                    raise

    def _behind(self, taken: int, crc: int, page: HttpPage, size: int) -> Iterator[bytes]:
        """Yield the bytes behind the first `taken`, whose checksum is `crc`, from this page or a later
        read of it, which may have messages that followed meanwhile."""
        place, seen, end = 0, 0, self.content_length if page.end != self.end else sys.maxsize
        for chunk in page.response.stream(size):
            skipped, rest = chunk[: max(0, taken - place)], chunk[max(0, taken - place) : end - place]
            place, seen = place + len(chunk), zlib.crc32(skipped, seen)
            if rest and seen != crc:
                raise urllib3.exceptions.ProtocolError("the page has changed")
            # A comma follows the last message of a page that has grown.
            yield rest[:-1] + b"]" if self.is_json and place >= end else rest
            if place >= end:
                page.response.close()
                return
        if place < taken or end < sys.maxsize:
            raise urllib3.exceptions.ProtocolError("the page has become shorter")

    @property
    def content_length(self) -> int:
        """The length of the body; a guess if the server sends no Content-Length."""
        return int(self.response.headers.get("Content-Length", _CHUNK_BYTES))

    def leave(self) -> None:
        """Discard the body. Reads a short body to its end, so that the connection can be reused."""
        if self.content_length < _CHUNK_BYTES:
            self.response.drain_conn()
        else:
            self.response.close()

    def pieces(self) -> Iterator[Values]:
        """Yield the page's messages, or its bytes, in pieces."""
        if self.is_json:
            return split_arriving(self.chunks(PIECE_BYTES))
        return ([chunk] for chunk in self.chunks())

    def values(self) -> list[bytes]:
        """Return all messages of the page, or its bytes as the only value. Raises RanPastTheEnd."""
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            if len(body) > _COMPARABLE_BYTES:
                self.response.close()
                raise RanPastTheEnd(f"tidemark: a page of over {_COMPARABLE_BYTES} bytes cannot be cut")
        return split_array(bytes(body)) if self.is_json else [bytes(body)]


def incarnation_in(etag: str, end: str) -> str:
    """Return the stream's id in an entity tag `"{id}:{start}:{end}"` (§10.1), or `"{id}:{end}"` of a HEAD on
    this project's server; else "". On a server that uses the stream's path as the id, it does not change when
    the stream is created again."""
    start = "[^:]*:" if parse_token(end) is None else "(?:[^:]*:)?"
    named = re.fullmatch(rf'(?:W/)?"(.+?):{start}{re.escape(end)}(?::c)?"', etag)
    return named[1] if named else ""


def head_in(listed: Mapping[str, Any]) -> Head | None:
    """Return the head of a stream from its entry in this project's listing: the entity tag has incarnation
    and tail, another member the first retained offset. None if an entry lacks these."""
    tag = re.fullmatch(r'"(.+):([0-9]{16})(:c)?"', str(listed.get("etag")))
    retained, content_type = str(listed.get("retained_offset")), listed.get("content_type")
    if tag is None or not re.fullmatch("[0-9]{16}", retained) or not content_type:
        return None
    # As in a HEAD, which has no retained offset if the stream has all its messages.
    begin = Position(retained if int(retained) else BEGINNING, tag[1], content_type)
    tail = replace(begin, offset=tag[2], closed=tag[3] is not None)
    return Head(listed["stream_id"], begin, tail, listed.get("created_at_ms") or 0)


def rows_of(
    pieces: Iterator[Values],
    constants: Mapping[str, Any],
    columns: Sequence[str],
    times: PageTimes | None,
    *,
    is_json: bool,
) -> Iterator[pa.RecordBatch]:
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


def cut_by_position(page: HttpPage, end: str, values: list[bytes]) -> list[bytes] | None:
    """Cut a page's values at `end`. Returns None unless the server's offsets are byte positions, as on this
    project's server."""
    low, high, stop = map(place_of, (page.start, page.end, end))
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
