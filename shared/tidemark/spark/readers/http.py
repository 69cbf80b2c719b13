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
    """An answer whose headers have come: the page's bounds, and the body still to be read."""

    start: str
    end: str
    incarnation: str
    up_to_date: bool
    is_json: bool
    answer: urllib3.BaseHTTPResponse

    def chunks(self) -> Iterator[bytes]:
        yield from self.answer.stream(_CHUNK_BYTES)
        self.answer.release_conn()

    def leave(self) -> None:
        """Without its body: read to its end where that is near, so that the connection serves again."""
        if int(self.answer.headers.get("Content-Length", _CHUNK_BYTES)) < _CHUNK_BYTES:
            self.answer.drain_conn()
        else:
            self.answer.close()

    def pieces(self) -> Iterator[list[bytes]]:
        """The page's messages, or its bytes, a list at a time."""
        if self.is_json:
            return split_arriving(self.chunks())
        return ([chunk] for chunk in self.chunks())


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
            listed = orjson.loads(self._client.ask("GET", root + after).data)
            found += [each["stream_id"] for each in listed["streams"]]
            if not listed.get("has_more"):
                return [name for name in found if pattern.fullmatch(name)]
            after = f"&after={quote(listed['next_cursor'], safe='')}"

    def head(self, name: str) -> Head:
        try:
            answer = self._client.ask("HEAD", self._connection.stream_url(name))
        except HttpFault as fault:
            if fault.status == 404:
                raise MissingStream(name) from fault
            raise
        content_type = answer.headers.get("Content-Type", "application/octet-stream")
        earliest = answer.headers.get("Stream-Snapshot-Offset", BEGINNING)
        tail, incarnation = self._incarnation_at(name, answer.headers["Stream-Next-Offset"])
        return Head(
            name, Position(earliest, incarnation, content_type), Position(tail, incarnation, content_type)
        )

    def _incarnation_at(self, name: str, tail: str) -> tuple[str, str]:
        """Only a read tells it. What was appended, or created again, since the tail was asked
        for moves the tail with it: the two that are returned belong together."""
        try:
            page = self._open(name, tail)
        except HttpFault as fault:
            if fault.status == 404:
                raise MissingStream(name) from fault
            # The old tail is none of the new stream's, or the server reads nothing there.
            return tail, ""
        page.leave()
        return page.end, page.incarnation

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
        return [StreamPartition(name, end.content_type, end.incarnation, start.offset, end.offset)]

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        start = partition.start
        while start != partition.end:
            page = self._page_from(partition, start)
            if page is None or self._is_anothers(partition, page):
                return
            if page.end == start and page.up_to_date:
                self._ended_early(partition, start)
                return
            pieces = self._within(partition, page)
            for values in _bounded(pieces):
                yield self._batch(partition, page, values)
            if is_past(page.end, partition.end):
                return
            start = page.end

    def _page_from(self, partition: StreamPartition, start: str) -> HttpPage | None:
        """The page at `start`, or, where that is gone and may be, at what is retained."""
        try:
            return self._open(partition.name, start)
        except HttpFault as fault:
            if fault.status not in (404, 410):
                raise
            lost = DataLoss(partition.name, f"offset {start} is not there any more ({fault.status})")
            if partition.fail_on_data_loss:
                raise lost from fault
            _log.warning("%s", lost)
        try:
            retained = self.head(partition.name).earliest.offset
        except MissingStream:
            return None
        if retained in (start, BEGINNING) or is_past(retained, partition.end):
            return None
        return self._open(partition.name, retained)

    def _is_anothers(self, partition: StreamPartition, page: HttpPage) -> bool:
        """Whether the stream was created again since the partition was planned."""
        if not (partition.segment and page.incarnation) or partition.segment == page.incarnation:
            return False
        page.leave()
        lost = DataLoss(partition.name, f"it was deleted and created again before {partition.end} was read")
        if partition.fail_on_data_loss:
            raise lost
        _log.warning("%s", lost)
        return True

    def _open(self, name: str, offset: str) -> HttpPage:
        url = f"{self._connection.stream_url(name)}?offset={quote(offset, safe='')}"
        answer = self._client.ask("GET", url, stream=True)
        content_type = answer.headers.get("Content-Type", "")
        end = answer.headers["Stream-Next-Offset"]
        return HttpPage(
            offset,
            end,
            incarnation_in(answer.headers.get("ETag", ""), end),
            answer.headers.get("Stream-Up-To-Date", "").lower() == "true",
            content_type.partition(";")[0].strip().lower() == "application/json",
            answer,
        )

    def _ended_early(self, partition: StreamPartition, start: str) -> None:
        if partition.fail_on_data_loss:
            raise DataLoss(partition.name, f"it ends at {start} now, before {partition.end}")

    def _within(self, partition: StreamPartition, page: HttpPage) -> Iterator[list[bytes]]:
        """The page's messages before the partition's end."""
        if not is_past(page.end, partition.end):
            return page.pieces()
        return iter([self._cut(partition, page)])

    def _cut(self, partition: StreamPartition, page: HttpPage) -> list[bytes]:
        """A page that runs on beyond the pinned end: more was written since it was pinned."""
        body = _whole(page)
        values = split_array(body) if page.is_json else [body]
        by_position = _cut_by_position(page, partition.end, values)
        if by_position is not None:
            return by_position
        for _ in range(_COMPARISONS):
            surplus = self._surplus(partition, page.end)
            if surplus is not None:
                return values[: len(values) - surplus] if page.is_json else [body[: len(body) - surplus]]
            page = self._open(partition.name, page.start)
            body = _whole(page)
            values = split_array(body) if page.is_json else [body]
        raise RanPastTheEnd(
            f"tidemark: stream {partition.name}: a page runs past {partition.end}, and it is written too fast"
            " to find where the page must be cut; read it with transport=dynamodb"
        )

    def _surplus(self, partition: StreamPartition, page_end: str) -> int | None:
        """How many messages, or bytes, lie between the pinned end and the end of the page."""
        start, count = partition.end, 0
        while start != page_end:
            page = self._open(partition.name, start)
            body = _whole(page)
            if is_past(page.end, page_end) or page.end == start:
                return None
            count += len(split_array(body)) if page.is_json else len(body)
            start = page.end
        return count

    def _batch(
        self, partition: StreamPartition, page: HttpPage, numbered: tuple[int, list[bytes]]
    ) -> pa.RecordBatch:
        first, values = numbered
        rows = len(values)
        end = partition.end if is_past(page.end, partition.end) else page.end
        return make_batch(
            (self._connection.bucket, partition.name, partition.content_type),
            offsets=pa.repeat(pa.scalar(page.start, pa.string()), rows),
            end_offsets=pa.repeat(pa.scalar(end, pa.string()), rows),
            positions=pa.array(range(first, first + rows), pa.int32()),
            values=pa.array(values, pa.binary()),
            timestamps=pa.nulls(rows, pa.timestamp("us", tz="UTC")),
        )


def _whole(page: HttpPage) -> bytes:
    body = bytearray()
    for chunk in page.chunks():
        body += chunk
        if len(body) > _COMPARABLE_BYTES:
            page.answer.close()
            raise RanPastTheEnd(f"tidemark: a page of over {_COMPARABLE_BYTES} bytes cannot be cut")
    return bytes(body)


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


def _bounded(pieces: Iterator[list[bytes]]) -> Iterator[tuple[int, list[bytes]]]:
    """The messages in lists of a bounded size, each with the number of its first."""
    first = 0
    for values in pieces:
        for start in range(0, len(values), BATCH_ROWS):
            some = values[start : start + BATCH_ROWS]
            yield first, some
            first += len(some)


def incarnation_in(etag: str, end: str) -> str:
    """The stream's own id in an entity tag `"{id}:{start}:{end}"` (§10.1), or nothing. Of a
    server that puts a stream's path there, it is the same after the stream was created again."""
    named = re.fullmatch(rf'(?:W/)?"(.+):[^:]*:{re.escape(end)}(?::c)?"', etag)
    return named[1] if named else ""
