"""A page of the transport `http`: a response whose body is not read yet, its messages and its rows."""

from __future__ import annotations

import io
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
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
from tidemark.spark.readers.columns import BATCH_ROWS, json_arrays, make_batch, offset_arrays, time_column
from tidemark.spark.readers.port import BEGINNING, Head, Position, bytes_between, place_of

#: Bytes of an array that are collected before a piece is cut off.
PIECE_BYTES: Final = 4 * 1024 * 1024
#: Most commas that are tried for a cut, from the end. Deeper nesting waits for more data.
_TRIES: Final = 64
_CHUNK_BYTES: Final = 1024 * 1024
#: Breaks of a page's body after which the read fails. The client retries each request by itself.
_MOST_BREAKS: Final = 8
#: Limit in bytes of a page that runs past the pinned end: to be cut, it must fit in memory.
_COMPARABLE_BYTES: Final = 64 * 1024 * 1024

Values: TypeAlias = "list[bytes] | pa.Array"
"""Messages, or pieces of bytes, as a list or as an Arrow array."""

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

    @property
    def message_bytes(self) -> int:
        """The bytes of the page's messages as Tidemark counts them: each JSON message with a comma."""
        return 0 if self.is_json and self.content_length == len("[]") else self.content_length - self.is_json

    @property
    def has_every_byte(self) -> bool:
        """Whether the page has as many bytes as lie between its offsets."""
        return self.message_bytes == bytes_between(self.start, self.end)

    def sized(self) -> HttpPage:
        """Return the page with its length. If a proxy has removed Content-Length, reads the body of a page of
        Tidemark's servers into memory."""
        if "Content-Length" in self.response.headers or not bytes_between(self.start, self.end):
            return self
        body = b"".join(self.chunks())
        headers = {**self.response.headers, "Content-Length": str(len(body))}
        return replace(self, response=urllib3.HTTPResponse(io.BytesIO(body), headers, preload_content=False))

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


class PlacesDoNotFit(Exception):
    """The bytes or times from the server are not those of the page's messages."""


class PagePlaces:
    """The place of each message of a page in the stream's bytes, as on Tidemark's servers, and after `add`
    the time of its append. A JSON message takes one byte more, for its comma. Rows end at `until`."""

    def __init__(self, page: HttpPage, until: str) -> None:
        self._page, self._until = page, place_of(until) or 0
        self._reached = place_of(page.start) or 0
        #: The end of each write, and its time.
        self._edges: list[int] = []
        self._times_ms: list[int] = []
        #: The end of each message: of an append of bytes, and of JSON if messages between are gone.
        self._ends: list[int] = []
        self._bytes = self._taken = 0
        #: Whether messages of the page lie behind `until`.
        self.is_cut = False
        # Not -1: if the page's first messages are no longer retained, a request for its times must fail.
        self.end = render_offset(self._reached)

    def add(self, reply: Mapping[str, Any]) -> None:
        """Add an answer of `/v1/times` that begins at `end`. Raises PlacesDoNotFit."""
        ends, page_end = list(map(int, reply["message_ends"])), place_of(self._page.end) or 0
        edges = list(accumulate(reply["bytes"], initial=place_of(self.end) or 0))[1:]
        if self._page.is_json and self._edges and bool(ends) != bool(self._ends):
            raise PlacesDoNotFit("tidemark: a compaction has changed a page that was being read")
        if self._page.is_json and ends:
            edges = [ends[count - 1] for count in accumulate(reply["messages"])]
        elif not self._page.is_json:
            ends = ends or edges
        self._bytes += sum(size for size, edge in zip(reply["bytes"], edges, strict=True) if edge <= page_end)
        self._edges, self._times_ms = self._edges + edges, self._times_ms + reply["times_ms"]
        self._ends, self.end = self._ends + ends, reply["end_offset"]

    def check(self) -> None:
        """Raise PlacesDoNotFit if the answers are not of the page's messages, as after a compaction."""
        if self._bytes != self._page.message_bytes:
            what = f"a page of {self._page.message_bytes} bytes, and times of {self._bytes} bytes"
            raise PlacesDoNotFit(f"tidemark: {what}")

    def pieces(self) -> Iterator[Values]:
        """Yield the page's messages, or its bytes, in pieces: if the appends are known, by append."""
        if self._page.is_json or not self._ends:
            return self._page.pieces()
        return split_at(self._page.chunks(), self._reached, self._ends)

    def take(self, values: Values) -> tuple[Values, Any, Any]:
        """Return the next values that begin before `until`, and where each begins and ends."""
        lengths = pc.binary_length(values) if isinstance(values, pa.Array) else list(map(len, values))
        sizes = np.asarray(lengths, np.int64) + int(self._page.is_json)
        ends = self._reached + np.cumsum(sizes)
        if self._ends and self._page.is_json:
            ends = np.array(self._ends[self._taken : self._taken + len(values)], np.int64)
        starts = ends - sizes
        wanted = int(np.searchsorted(starts, self._until))
        self.is_cut = wanted < len(values)
        values, starts, ends = values[:wanted], starts[:wanted], ends[:wanted]
        if wanted and isinstance(values, list) and ends[-1] > self._until:
            values, ends[-1] = [*values[:-1], values[-1][: self._until - starts[-1]]], self._until
        self._taken, self._reached = self._taken + wanted, int(ends[-1]) if wanted else self._reached
        return values, starts, ends

    def times_of(self, starts: Any) -> pa.Array:
        """Return the time of the append that has each of these places."""
        writes = np.searchsorted(self._edges, starts, side="right")
        return time_column(np.array(self._times_ms, np.int64)[writes])

    def finish(self) -> None:
        """Raise PlacesDoNotFit if a page that has all bytes between its offsets has ended before its end."""
        if self._page.has_every_byte and not self.is_cut and self._reached < self._until:
            raise PlacesDoNotFit(
                f"tidemark: a page up to {self._page.end} has no message behind {self._reached}"
            )


def split_at(chunks: Iterable[bytes], start: int, ends: Sequence[int]) -> Iterator[Values]:
    """Yield the bytes from `start` up to each of the ends, which include the last byte's."""
    held, taken, places = b"", 0, np.array(ends, np.int64)
    for chunk in chunks:
        held += chunk
        last = int(np.searchsorted(places, start + len(held), side="right"))
        cuts = (places[taken:last] - start).tolist()
        if cuts:
            yield [held[low:high] for low, high in pairwise([0, *cuts])]
            held, start, taken = held[cuts[-1] :], int(places[last - 1]), last


def rows_of(
    page: HttpPage,
    places: PagePlaces | None,
    pieces: Iterable[Values],
    columns: Sequence[str],
    constants: Mapping[str, Any],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a page. Without `places` all rows have the page's offsets, and `position` numbers
    them."""
    position = 0
    for values in pieces:
        for low in range(0, len(values), BATCH_ROWS):
            some, arrays = values[low : low + BATCH_ROWS], dict[str, pa.Array]()
            if places is None:
                arrays["position"] = pa.array(np.arange(position, position + len(some), dtype=np.int32))
                position += len(some)
            else:
                some, starts, ends = places.take(some)
                arrays = {} if {"offset", "end_offset"}.isdisjoint(columns) else offset_arrays(starts, ends)
                if "timestamp" in columns:
                    arrays["timestamp"] = places.times_of(starts)
            arrays["value"] = pa.array(some, pa.binary()) if isinstance(some, list) else some
            if page.is_json and not JSON_COLUMNS.isdisjoint(columns):
                arrays |= json_arrays(columns, arrays["value"].to_pylist())
            yield make_batch(columns, len(some), constants, arrays)
            if places is not None and places.is_cut:
                return page.leave()
    if places is not None:
        places.finish()
