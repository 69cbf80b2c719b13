"""Transport `http`: catch-up reads of any Durable Streams server.

Offsets of a server are opaque, and a page says only where it begins and ends. So a row of a
JSON stream carries its page's two offsets and its `position` between them; of any other
content type a row is a page's bytes, or a piece of them, numbered in the same way. One task
reads a stream, because nobody but the server knows where else in it a read could begin.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, takewhile
from typing import Any, Final
from urllib.parse import quote

import orjson
import pyarrow as pa
import urllib3

from tidemark.protocol.offset import parse_token
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.spark.clients.http import HttpClient, HttpFault
from tidemark.spark.options.connection import ConnectionOptions
from tidemark.spark.options.read import DEFAULT_COLUMNS
from tidemark.spark.readers.columns import BATCH_ROWS, make_batch
from tidemark.spark.readers.json_array import split_array, split_arriving
from tidemark.spark.readers.json_columns import json_arrays
from tidemark.spark.readers.port import (
    ASKED_AT_ONCE,
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
#: Of a stream whose offsets do not tell how much lies between them: more than any limit.
_UNKNOWN_BYTES: Final = 1 << 50


Listed = tuple[int | None, int | None, str | None]
"""When a stream was created, in ms, its tail, and its status, as far as a listing tells."""
_NOTHING: Final[Listed] = (None, None, None)


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

    @property
    def content_length(self) -> int:
        """Where the server does not say, a guess."""
        return int(self.response.headers.get("Content-Length", _CHUNK_BYTES))

    def leave(self) -> None:
        """Without its body: read to its end where that is near, so that the connection serves again."""
        if self.content_length < _CHUNK_BYTES:
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
        #: What the last listing said of a stream: its head, where it told all of that; else a part of it.
        self._listed: dict[str, Head | Listed] = {}
        #: The head that was loaded when a listing told a part.
        self._known: dict[str, tuple[Listed, Head]] = {}

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """By the bucket's listing (extensions, §1.4), a thousand streams at a time."""
        found: list[str] = []
        root, after = f"{self._connection.url}{self._connection.stream_path}/streams", "?limit=1000"
        while True:
            answer = self._client.request("GET", root + after, allow=frozenset({404}))
            if answer.status == 404:
                return []
            listed = orjson.loads(answer.data)
            for each in listed["streams"]:
                name = each["stream_id"]
                if pattern.fullmatch(name):
                    found.append(name)
                    part = (each.get("created_at_ms"), each.get("tail_offset"), each.get("status"))
                    self._listed[name] = head_in(each) or part
            if not listed.get("has_more"):
                self._known = {name: self._known[name] for name in self._listed.keys() & self._known.keys()}
                return found
            after = f"?limit=1000&after={quote(listed['next_cursor'], safe='')}"

    def has_bucket(self) -> bool:
        if self._connection.bucket == PLAIN_BUCKET:
            return True
        root = f"{self._connection.url}{self._connection.stream_path}/streams?limit=1"
        return self._client.request("GET", root, allow=frozenset({404})).status != 404

    def head(self, name: str) -> Head:
        """A stream that the listing tells as it told it before is not asked again."""
        listed = self._listed.pop(name, _NOTHING)
        if isinstance(listed, Head):
            return listed
        if None not in listed and self._known.get(name, _NOTHING)[0] == listed:
            return self._known[name][1]
        head = replace(self._load_head(name), created_ms=listed[0] or 0)
        self._known[name] = (listed, head)
        return head

    def heads(self, names: Sequence[str]) -> dict[str, Head]:
        def find(name: str) -> Head | None:
            with suppress(MissingStream):
                return self.head(name)
            return None

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
            return {head.name: head for head in pool.map(find, names) if head is not None}

    def earliest(self, names: Sequence[str]) -> dict[str, Position]:
        return {name: head.earliest for name, head in self.heads(names).items()}

    def _load_head(self, name: str) -> Head:
        response = self._client.request("HEAD", self._connection.stream_url(name), allow=frozenset({404}))
        if response.status == 404:
            raise MissingStream(name)
        tail, closed = response.headers["Stream-Next-Offset"], "Stream-Closed" in response.headers
        incarnation = incarnation_in(response.headers.get("ETag", ""), tail)
        if not incarnation:
            tail, incarnation, closed = self._read_tail(name, tail, closed=closed)
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        snapshot = response.headers.get("Stream-Snapshot-Offset", BEGINNING)
        earliest = response.headers.get("Stream-Retained-Offset", snapshot)
        begin = Position(earliest, incarnation, content_type)
        return Head(name, begin, replace(begin, offset=tail, closed=closed))

    def _read_tail(self, name: str, tail: str, *, closed: bool) -> tuple[str, str, bool]:
        """Tail, incarnation and closure by a read, where a HEAD does not tell the second. What is appended,
        or created again, in between moves the tail with it: the three that are returned belong together."""
        try:
            page = self._open(name, tail)
        except HttpFault as fault:
            if fault.status == 404:
                raise MissingStream(name) from fault
            # The tail is none of a new stream's, or the server reads nothing there.
            return tail, "", closed
        page.leave()
        return page.end, page.incarnation, "Stream-Closed" in page.response.headers

    def check_offset(self, head: Head, offset: str) -> None:
        try:
            page = self._open(head.name, offset)
        except HttpFault as fault:
            raise BadOffset(f"{head.name}: the server refuses offset {offset!r}: {fault.text}") from fault
        page.leave()

    def position_at(self, head: Head, at_ms: int) -> Position:
        """By this project's own server: the protocol has no way to ask."""
        path = f"{self._connection.stream_path}/{quote(head.name)}"
        since = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        asked = f"stream={quote(path, safe='')}&from={quote(since, safe='')}"
        try:
            answer = self._client.request("GET", f"{self._connection.url}/v1/start?{asked}")
            found = orjson.loads(answer.data)["offset"]
        except (HttpFault, ValueError, KeyError, TypeError) as fault:
            told = fault.text if isinstance(fault, HttpFault) else "it does not answer with an offset"
            raise BadOffset(f"{head.name}: this server finds no offset by its time: {told}") from fault
        return head.tail if is_past(found, head.tail.offset) else head.tail.at(found)

    def limit(self, name: str, start: Position, end: Position, limit_bytes: int) -> Position:
        """The pages are asked for and left: their headers say how large they are."""

        def size_of(page: HttpPage) -> int:
            page.leave()
            return _bytes_between(page.start, page.end) or page.content_length

        return self._end_within(name, start, end, limit_bytes, size_of)

    def limit_messages(self, name: str, start: Position, end: Position, limit: int) -> Position:
        def count(page: HttpPage) -> int:
            return sum(map(len, page.pieces()))

        return self._end_within(name, start, end, limit, count)

    def _end_within(
        self, name: str, start: Position, end: Position, limit: int, measure: Callable[[HttpPage], int]
    ) -> Position:
        """Page by page, because on every server a read may end where a page ends."""
        reached, taken = start.offset, 0
        while True:
            try:
                page = self._open(name, reached)
            except HttpFault as fault:
                if fault.status not in (404, 410):
                    raise
                return end  # The read itself says what is lost.
            taken += measure(page)
            if taken > limit and reached != start.offset:
                return end.at(reached)
            if page.end == reached or not is_past(end.offset, page.end):
                return end
            reached = page.end

    def backlog(self, start: Position, end: Position) -> int:
        if start.offset == end.offset:
            return 0
        return _bytes_between(start.offset, end.offset) or _UNKNOWN_BYTES

    def partitions(
        self, name: str, start: Position, end: Position, partition_bytes: int
    ) -> Sequence[StreamPartition]:
        if start.offset == end.offset:
            return []
        return [
            StreamPartition(
                name,
                end.content_type,
                start.offset,
                end.offset,
                incarnation=end.incarnation,
                size=_bytes_between(start.offset, end.offset) or 0,
            )
        ]

    def read(
        self, partition: StreamPartition, columns: Sequence[str] = DEFAULT_COLUMNS
    ) -> Iterator[pa.RecordBatch]:
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
                    constants = {
                        "bucket": self._connection.bucket,
                        "stream": partition.name,
                        "content_type": partition.content_type,
                        "incarnation": page.incarnation or None,
                        "offset": page.start,
                        "end_offset": end,
                    }
                    arrays = {
                        "position": pa.array(range(position, position + len(some)), pa.int32()),
                        "value": pa.array(some, pa.binary()),
                    }
                    if page.is_json:
                        arrays |= json_arrays(columns, some)
                    yield make_batch(columns, len(some), constants, arrays)
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


def _bytes_between(start: str, end: str) -> int | None:
    """Where the server's offsets are byte positions, as this project's are; None where they are opaque."""
    low, high = 0 if start == BEGINNING else parse_token(start), parse_token(end)
    return None if low is None or high is None else high - low


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


def head_in(listed: Mapping[str, Any]) -> Head | None:
    """The head of a stream from what this project's listing says of it: its entity tag, which names the
    incarnation and the tail, and the first offset that is retained. None where these are not there."""
    told = re.fullmatch(r'"(.+):([0-9]{16})(:c)?"', str(listed.get("etag")))
    retained, content_type = str(listed.get("retained_offset")), listed.get("content_type")
    if told is None or not re.fullmatch("[0-9]{16}", retained) or not content_type:
        return None
    # HEAD names no offset where all is retained.
    begin = Position(retained if int(retained) else BEGINNING, told[1], content_type)
    tail = replace(begin, offset=told[2], closed=told[3] is not None)
    return Head(listed["stream_id"], begin, tail, listed.get("created_at_ms") or 0)


def incarnation_in(etag: str, end: str) -> str:
    """The stream's own id in an entity tag `"{id}:{start}:{end}"` (§10.1), or nothing. Of a
    server that puts a stream's path there, it is the same after the stream was created again."""
    named = re.fullmatch(rf'(?:W/)?"(.+):[^:]*:{re.escape(end)}(?::c)?"', etag)
    return named[1] if named else ""
