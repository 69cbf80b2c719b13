"""Transport `http`: catch-up reads of any Durable Streams server.

Offsets of a server are opaque, and a page says only where it begins and ends. So a row of a
JSON stream carries its page's two offsets and its `position` between them; of any other
content type a row is a page's bytes, or a piece of them, numbered in the same way. One task
reads a stream, because nobody but the server knows where else in it a read could begin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final
from urllib.parse import quote

import orjson
import pyarrow as pa
import urllib3

from tidemark.protocol.offset import parse_token
from tidemark.spark.clients.http import HttpClient, HttpFault
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.readers.columns import BATCH_ROWS, make_batch
from tidemark.spark.readers.json_array import split_array, split_arriving
from tidemark.spark.readers.port import (
    BEGINNING,
    BadOffset,
    DataLoss,
    Head,
    MissingStream,
    Position,
    StreamPartition,
    is_past,
)

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1024 * 1024
#: A page that runs past the pinned end is cut by comparing; it must fit in memory for that.
_COMPARABLE_BYTES: Final = 64 * 1024 * 1024
_COMPARISONS: Final = 10


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

    def chunks(self) -> Iterator[bytes]:
        yield from self.response.stream(_CHUNK_BYTES)
        self.response.release_conn()

    def leave(self) -> None:
        """Without its body: read to its end where that is near, so that the connection serves again."""
        if int(self.response.headers.get("Content-Length", _CHUNK_BYTES)) < _CHUNK_BYTES:
            self.response.drain_conn()
        else:
            self.response.close()

    def pieces(self) -> Iterator[list[bytes]]:
        """The page's messages, or its bytes, a list at a time."""
        if self.is_json:
            return split_arriving(self.chunks())
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


class HttpReader:
    beginning = BEGINNING

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(connection.token, retry_seconds=connection.retry_seconds)

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """By the bucket's listing (extensions, §1.4)."""
        found: list[str] = []
        root, after = f"{self._connection.url}{self._connection.stream_path}/streams?limit=1000", ""
        while True:
            listed = orjson.loads(self._client.request("GET", root + after).data)
            found += [each["stream_id"] for each in listed["streams"]]
            if not listed.get("has_more"):
                return [name for name in found if pattern.fullmatch(name)]
            after = f"&after={quote(listed['next_cursor'], safe='')}"

    def head(self, name: str) -> Head:
        response = self._client.request("HEAD", self._connection.stream_url(name), allow=frozenset({404}))
        if response.status == 404:
            raise MissingStream(name)
        tail, incarnation = response.headers["Stream-Next-Offset"], ""
        try:
            # Only a read tells the incarnation. What is appended, or created again, in between
            # moves the tail with it: the two that are returned belong together.
            page = self._open(name, tail)
        except HttpFault as fault:
            if fault.status == 404:
                raise MissingStream(name) from fault
            # The tail is none of a new stream's, or the server reads nothing there.
        else:
            page.leave()
            tail, incarnation = page.end, page.incarnation
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        earliest = response.headers.get("Stream-Snapshot-Offset", BEGINNING)
        return Head(
            name, Position(earliest, incarnation, content_type), Position(tail, incarnation, content_type)
        )

    def check_offset(self, head: Head, offset: str) -> None:
        try:
            page = self._open(head.name, offset)
        except HttpFault as fault:
            raise BadOffset(f"{head.name}: the server refuses offset {offset!r}: {fault.text}") from fault
        page.leave()

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        raise NotImplementedError("maxOffsetsPerTrigger is refused over HTTP")

    def backlog(self, start: Position, end: Position) -> int:
        return int(start.offset != end.offset)

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        if start.offset == end.offset:
            return []
        incarnation = end.incarnation
        return [StreamPartition(name, end.content_type, start.offset, end.offset, incarnation=incarnation)]

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        start = partition.start
        while start != partition.end:
            page = self._open_retained(partition, start)
            if page is None:
                return
            if partition.incarnation and page.incarnation not in ("", partition.incarnation):
                page.leave()
                _lose(partition, f"it was deleted and created again before {partition.end} was read")
                return
            if page.end == start and page.up_to_date:
                _lose(partition, f"it ends at {start} now, before {partition.end}")
                return
            is_last = is_past(page.end, partition.end)
            pieces = iter([self._cut(partition, page)]) if is_last else page.pieces()
            end = partition.end if is_last else page.end
            position = 0
            for values in pieces:
                for low in range(0, len(values), BATCH_ROWS):
                    some = values[low : low + BATCH_ROWS]
                    yield make_batch(
                        (self._connection.bucket, partition.name, partition.content_type),
                        offsets=pa.repeat(pa.scalar(page.start, pa.string()), len(some)),
                        end_offsets=pa.repeat(pa.scalar(end, pa.string()), len(some)),
                        positions=pa.array(range(position, position + len(some)), pa.int32()),
                        values=pa.array(some, pa.binary()),
                        timestamps=pa.nulls(len(some), pa.timestamp("us", tz="UTC")),
                    )
                    position += len(some)
            if is_last:
                return
            start = page.end

    def _open(self, name: str, offset: str) -> HttpPage:
        url = f"{self._connection.stream_url(name)}?offset={quote(offset, safe='')}"
        response = self._client.request("GET", url, stream=True)
        content_type = response.headers.get("Content-Type", "")
        end = response.headers["Stream-Next-Offset"]
        return HttpPage(
            offset,
            end,
            incarnation_in(response.headers.get("ETag", ""), end),
            response.headers.get("Stream-Up-To-Date", "").lower() == "true",
            content_type.partition(";")[0].strip().lower() == "application/json",
            response,
        )

    def _open_retained(self, partition: StreamPartition, start: str) -> HttpPage | None:
        """The page at `start`. Where that is gone, and may be, the page at the first retained offset."""
        try:
            return self._open(partition.name, start)
        except HttpFault as fault:
            if fault.status not in (404, 410):
                raise
            _lose(partition, f"offset {start} is not there any more ({fault.status})")
        try:
            retained = self.head(partition.name).earliest.offset
        except MissingStream:
            return None
        if retained in (start, BEGINNING) or is_past(retained, partition.end):
            return None
        return self._open(partition.name, retained)

    def _cut(self, partition: StreamPartition, page: HttpPage) -> list[bytes]:
        """What a page that runs on beyond the pinned end has before it: more was written since the
        end was pinned."""
        for _ in range(_COMPARISONS):
            values = page.values()
            kept = _cut_by_position(page, partition.end, values)
            if kept is not None:
                return kept
            surplus = self._surplus(partition, page.end)
            if surplus is not None and page.is_json:
                return values[: len(values) - surplus]
            if surplus is not None:
                return [values[0][: len(values[0]) - surplus]]
            page = self._open(partition.name, page.start)
        page.leave()
        raise RanPastTheEnd(
            f"tidemark: stream {partition.name}: a page runs past {partition.end}, and it is written too fast"
            " to find where the page must be cut; read it with transport=dynamodb"
        )

    def _surplus(self, partition: StreamPartition, page_end: str) -> int | None:
        """How many messages, or bytes, lie between the pinned end and the end of the page. None where
        the server's pages do not end there any more."""
        start, count = partition.end, 0
        while start != page_end:
            page = self._open(partition.name, start)
            values = page.values()
            if is_past(page.end, page_end) or page.end == start:
                return None
            count += len(values) if page.is_json else len(values[0])
            start = page.end
        return count


def _lose(partition: StreamPartition, what: str) -> None:
    """Raises DataLoss, unless the reader may go on without what is lost."""
    lost = DataLoss(partition.name, what)
    if partition.fail_on_data_loss:
        raise lost
    _log.warning("%s", lost)


def _cut_by_position(page: HttpPage, end: str, values: list[bytes]) -> list[bytes] | None:
    """Where the server's offsets are byte positions, as this project's are, and only there."""
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


def incarnation_in(etag: str, end: str) -> str:
    """The stream's own id in an entity tag `"{id}:{start}:{end}"` (§10.1), or nothing. Of a
    server that puts a stream's path there, it is the same after the stream was created again."""
    named = re.fullmatch(rf'(?:W/)?"(.+):[^:]*:{re.escape(end)}(?::c)?"', etag)
    return named[1] if named else ""
