"""Transport `http`: catch-up reads of any Durable Streams server.

On Tidemark's servers an offset is a place in the stream's bytes, so each row has its own two offsets, as by
the table. Offsets of other servers are opaque, and only the first and last offset of a page are known: the
rows have these two, and their `position` in the page. A row is a JSON message, or a piece of a page's body:
an append, if the times of appends are loaded. Only the server knows where pages end: one task reads a stream.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import orjson
import pyarrow as pa
import urllib3

from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.spark.http_client import HttpClient, HttpFault, RetryableHttpFault
from tidemark.spark.options import ConnectionOptions, InvalidOptions
from tidemark.spark.options.read import DEFAULT_COLUMNS
from tidemark.spark.readers import port
from tidemark.spark.readers.http_bulk import BulkReads
from tidemark.spark.readers.http_page import (
    HttpPage,
    PagePlaces,
    PlacesDoNotFit,
    RanPastTheEnd,
    Values,
    head_in,
    incarnation_in,
    rows_of,
)

_log = logging.getLogger(__name__)

_COMPARISONS: Final = 10
#: Assumed backlog of a stream with opaque offsets: above any limit.
_UNKNOWN_BYTES: Final = 1 << 50


class _PageGone(Exception):
    """The stream has no longer the page that was read."""


class HttpReader:
    beginning = port.BEGINNING

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(connection)
        self._bulk = BulkReads(connection, self._client)
        #: The heads in the last listing.
        self._listed: dict[str, port.Head] = {}
        #: Whether `/v1/times` may have the places of messages; False after a refusal.
        self._tells_places = True
        self.lost = Counter[tuple[str, str]]()

    def now_ms(self) -> int:
        return self._client.now_ms()

    def names(self, pattern: re.Pattern[str]) -> Sequence[str]:
        """Return the names in the listing (extensions, §1.4), in pages of up to 1,000 streams."""
        found: list[str] = []
        root, after = self._connection.listing_url, "?limit=1000"
        while True:
            answer = self._client.request("GET", root + after, allow=frozenset({404}))
            if answer.status == 404 and self._connection.bucket != PLAIN_BUCKET:
                return []
            try:
                listed = orjson.loads(answer.data)
                streams = listed["streams"]
            except (ValueError, KeyError, TypeError) as fault:
                raise _no_server(root, "a list of streams") from fault
            for each in streams:
                name = each["stream_id"]
                if pattern.fullmatch(name):
                    found.append(name)
                    if head := head_in(each):
                        self._listed[name] = head
            if not listed.get("has_more"):
                return found
            after = f"?limit=1000&after={quote(listed['next_cursor'], safe='')}"

    def has_bucket(self) -> bool:
        if self._connection.bucket == PLAIN_BUCKET:
            return True
        root = self._connection.listing_url
        return self._client.request("GET", f"{root}?limit=1", allow=frozenset({404})).status != 404

    def heads(self, names: Sequence[str]) -> dict[str, port.Head]:
        def find(name: str) -> port.Head | None:
            with suppress(port.MissingStream):
                return self._load_head(name)
            return None

        listed = {name: self._listed.pop(name) for name in names if name in self._listed}
        with ThreadPoolExecutor(port.ASKED_AT_ONCE, thread_name_prefix="tidemark-head") as pool:
            loaded = pool.map(find, [name for name in names if name not in listed])
            return listed | {head.name: head for head in loaded if head is not None}

    def earliest(self, names: Sequence[str]) -> dict[str, port.Position]:
        return {name: head.earliest for name, head in self.heads(names).items()}

    def _load_head(self, name: str) -> port.Head:
        response = self._client.request("HEAD", self._connection.stream_url(name), allow=frozenset({404}))
        if response.status == 404:
            raise port.MissingStream(name)
        if "Stream-Next-Offset" not in response.headers:
            raise _no_server(self._connection.stream_url(name), "a stream's offset")
        tail, closed = response.headers["Stream-Next-Offset"], "Stream-Closed" in response.headers
        incarnation = incarnation_in(response.headers.get("ETag", ""), tail)
        if not incarnation:
            tail, incarnation, closed = self._read_tail(name, tail, closed=closed)
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        snapshot = response.headers.get("Stream-Snapshot-Offset", port.BEGINNING)
        earliest = response.headers.get("Stream-Retained-Offset", snapshot)
        begin = port.Position(earliest, incarnation, content_type)
        return port.Head(name, begin, replace(begin, offset=tail, closed=closed))

    def _read_tail(self, name: str, tail: str, *, closed: bool) -> tuple[str, str, bool]:
        """Read tail, incarnation and closure, for servers whose HEAD lacks the incarnation. One response has
        all three, so they are consistent despite concurrent appends or a re-creation."""
        try:
            page = self._open(name, tail)
        except HttpFault as fault:
            if fault.status == 404:
                raise port.MissingStream(name) from fault
            # A new stream does not have this tail, or the server refuses a read there.
            return tail, "", closed
        page.leave()
        return page.end, page.incarnation, "Stream-Closed" in page.response.headers

    def check_offset(self, head: port.Head, offset: str) -> None:
        try:
            page = self._open(head.name, offset)
        except HttpFault as fault:
            raise port.BadOffset(
                f"{head.name}: the server refuses offset {offset!r}: {fault.text}"
            ) from fault
        page.leave()

    def position_at(self, head: port.Head, at_ms: int) -> port.Position:
        """Find the position with `/v1/start`, which only this project's server has."""
        since = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        try:
            answer = self._ask("/v1/start", head.name, f"from={quote(since, safe='')}")
            found = orjson.loads(answer.data)["offset"]
        except (HttpFault, ValueError, KeyError, TypeError) as fault:
            reason = fault.text if isinstance(fault, HttpFault) else "it does not answer with an offset"
            raise port.BadOffset(f"{head.name}: this server finds no offset by its time: {reason}") from fault
        return head.tail if port.is_past(found, head.tail.offset) else head.tail.at(found)

    def check_times(self, head: port.Head) -> None:
        """Try `/v1/times`, which only this project's server has. Raises NoTimes."""
        try:
            self._ask_times(head.name, head.tail.offset)
        except RetryableHttpFault:
            raise
        except HttpFault as fault:
            what = "this server does not tell when messages were appended (GET /v1/times)"
            raise port.NoTimes(f"{head.name}: {what}: {fault.status} {fault.text}") from fault

    def _ask(self, path: str, name: str, asked: str) -> urllib3.BaseHTTPResponse:
        """Send a request of an extension for a stream."""
        stream = quote(f"{self._connection.stream_path}/{quote(name)}", safe="")
        return self._client.request("GET", f"{self._connection.url}{path}?stream={stream}&{asked}")

    def _ask_times(self, name: str, offset: str) -> tuple[dict[str, Any], str]:
        """Return the times from an offset on, and their incarnation. Raises NoTimes if the answer has
        none."""
        answer = self._ask("/v1/times", name, f"offset={quote(offset, safe='')}")
        try:
            reply = orjson.loads(answer.data)
            found = {each: reply[each] for each in ("times_ms", "messages", "bytes", "end_offset")}
            found["message_ends"] = reply.get("message_ends", [])
        except (ValueError, KeyError, TypeError) as fault:
            raise port.NoTimes(f"{name}: this server answers GET /v1/times with no times") from fault
        return found, incarnation_in(answer.headers.get("ETag", ""), found["end_offset"])

    def limit(self, name: str, start: port.Position, end: port.Position, limit_bytes: int) -> port.Position:
        """Go page by page, because on every server a read may end where a page ends. The headers have the
        page's size, so its body is discarded."""
        reached, taken = start.offset, 0
        while True:
            try:
                page = self._open(name, reached)
            except HttpFault as fault:
                if fault.status not in (404, 410):
                    raise
                return end  # The read itself reports the loss.
            page.leave()
            taken += port.bytes_between(page.start, page.end) or page.content_length
            if taken > limit_bytes and reached != start.offset:
                return end.at(reached)
            if page.end == reached or not port.is_past(end.offset, page.end):
                return end
            reached = page.end

    def backlog(self, start: port.Position, end: port.Position) -> int:
        if start.offset == end.offset:
            return 0
        return port.bytes_between(start.offset, end.offset) or _UNKNOWN_BYTES

    def partitions(
        self, name: str, start: port.Position, end: port.Position, partition_bytes: int
    ) -> Sequence[port.StreamPartition]:
        sides = start.offset, end.offset
        size = port.bytes_between(*sides)
        if size == 0 or start.offset == end.offset:
            return []
        return [
            port.StreamPartition(name, end.content_type, *sides, incarnation=end.incarnation, size=size or 0)
        ]

    def read_all(
        self, partitions: Sequence[port.StreamPartition], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read small streams together, if the server has bulk reads."""
        for each in self._bulk.read(partitions, columns):
            if isinstance(each, port.StreamPartition):
                yield from self.read(each, columns)
            else:
                yield each

    def read(
        self, partition: port.StreamPartition, columns: Sequence[str] = DEFAULT_COLUMNS
    ) -> Iterator[pa.RecordBatch]:
        start = partition.start
        while start != partition.end:
            page = self._open_retained(partition, start)
            if page is None:
                return self._pass_over(partition, start, partition.end)
            if partition.incarnation and page.incarnation not in ("", partition.incarnation):
                page.leave()
                _lose(partition, f"it was deleted and created again before {partition.end} was read")
                return self._pass_over(partition, start, partition.end)
            if page.end == start and page.up_to_date:
                _lose(partition, f"it ends at {start} now, before {partition.end}")
                return self._pass_over(partition, start, partition.end)
            self._pass_over(partition, start, page.start)
            end = partition.end if port.is_past(page.end, partition.end) else page.end
            page = page.sized()
            try:
                places = self._places(partition, page, end)
            except _PageGone:
                page.leave()
                _lose(partition, f"it ended, or let go of {start}, before its times were read")
                continue
            constants = {
                "bucket": self._connection.bucket,
                "stream": partition.name,
                "content_type": partition.content_type,
                "incarnation": page.incarnation or None,
                "offset": page.start,
                "end_offset": end,
                "position": 0,
            }
            pieces = self._pieces(partition, page, end) if places is None else places.pieces()
            yield from rows_of(page, places, pieces, columns, constants)
            if end != page.end:
                return
            start = end

    def _pass_over(self, partition: port.StreamPartition, start: str, end: str) -> None:
        if start != end:
            self.lost[partition.name, partition.incarnation] += port.bytes_between(start, end) or 0

    def _places(self, partition: port.StreamPartition, page: HttpPage, end: str) -> PagePlaces | None:
        """Return the places of the page's messages; None if the server's offsets are opaque. Raises
        _PageGone."""
        if not port.bytes_between(page.start, page.end) or not (self._tells_places or page.has_every_byte):
            return None
        places = PagePlaces(page, end)
        if page.has_every_byte and not partition.with_times:
            return places
        try:
            self._load_times(partition.name, page, places)
        except (HttpFault, port.NoTimes) as fault:
            if partition.with_times or isinstance(fault, RetryableHttpFault):
                raise
            self._tells_places = False
            return None
        return places

    def _load_times(self, name: str, page: HttpPage, places: PagePlaces) -> None:
        """Load the times of a page. Times of another incarnation would be of other messages. Raises
        _PageGone."""
        while port.is_past(page.end, places.end):
            try:
                reply, incarnation = self._ask_times(name, places.end)
            except HttpFault as fault:
                if fault.status in (404, 410) and not self._still_has(name, page):
                    raise _PageGone from fault
                raise
            if incarnation != page.incarnation or reply["end_offset"] == places.end:
                if self._still_has(name, page):
                    raise PlacesDoNotFit(f"tidemark: stream {name}: no times for the page at {page.start}")
                raise _PageGone
            places.add(reply)
        places.check()

    def _still_has(self, name: str, page: HttpPage) -> bool:
        try:
            head = self._load_head(name)
        except port.MissingStream:
            return False
        return head.tail.incarnation == page.incarnation and not port.is_past(
            head.earliest.offset, page.start
        )

    def _open(self, name: str, offset: str) -> HttpPage:
        url = f"{self._connection.stream_url(name)}?offset={quote(offset, safe='')}"
        return HttpPage.of(partial(self._client.request, "GET", url, stream=True), offset)

    def _open_retained(self, partition: port.StreamPartition, start: str) -> HttpPage | None:
        """Return the page at `start`. If the offset is gone, and data loss is allowed, return the page at the
        first retained offset."""
        try:
            page = self._open(partition.name, start)
            if page.start == start:
                return page
            page.leave()
            _lose(partition, f"it begins at {page.start} now")
        except HttpFault as fault:
            if fault.status not in (404, 410):
                raise
            _lose(partition, f"offset {start} is not there any more ({fault.status})")
        try:
            retained = self._load_head(partition.name).earliest.offset
        except port.MissingStream:
            return None
        if retained in (start, port.BEGINNING) or not port.is_past(partition.end, retained):
            return None
        return self._open(partition.name, retained)

    def _pieces(self, partition: port.StreamPartition, page: HttpPage, end: str) -> Iterator[Values]:
        """Yield the messages up to `end` of a page with opaque offsets. If later messages follow, counts
        them."""
        if end == page.end:
            yield from page.pieces()
            return
        for _ in range(_COMPARISONS):
            values = page.values()
            surplus = self._surplus(partition, page.end)
            if surplus is not None:
                yield values[: len(values) - surplus] if page.is_json else [values[0][: -surplus or None]]
                return
            page = self._open(partition.name, page.start)
        page.leave()
        raise RanPastTheEnd(
            f"tidemark: stream {partition.name}: a page runs past {partition.end}, and it is written too fast"
            " to find where the page must be cut; read it with transport=dynamodb"
        )

    def _surplus(self, partition: port.StreamPartition, page_end: str) -> int | None:
        """Count the messages, or bytes, between the pinned end and the end of the page. None if the server no
        longer has a page that ends there."""
        start, count = partition.end, 0
        while start != page_end:
            page = self._open(partition.name, start)
            values = page.values()
            if port.is_past(page.end, page_end) or page.end == start:
                return None
            count += len(values) if page.is_json else len(values[0])
            start = page.end
        return count


def _no_server(url: str, lacks: str) -> InvalidOptions:
    what = f"url: {url} answers without {lacks}: is it the root of a Durable Streams server?"
    return InvalidOptions([what])


def _lose(partition: port.StreamPartition, what: str) -> None:
    """Raise DataLoss, or log a warning if `failOnDataLoss` is false."""
    lost = port.DataLoss(partition.name, what)
    if partition.fail_on_data_loss:
        raise lost
    _log.warning("%s", lost)
