"""Bulk reads: the new messages of up to 1,000 small streams in one request, which only this project's server
has (`POST /v1/read`). A page without all messages of its partition is read by itself."""

from __future__ import annotations

from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa

from tidemark.spark.http_client import HttpClient, HttpFault
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.readers.columns import json_arrays, make_batch, offset_arrays, time_column
from tidemark.spark.readers.http_page import incarnation_in
from tidemark.spark.readers.port import StreamPartition, place_of

_MOST_READS: Final = 1000
#: The size of a stream that is read together with others: all its messages are in one page.
_TOGETHER_BYTES: Final = 256 * 1024


class _Times(msgspec.Struct):
    times_ms: list[int]
    messages: list[int]
    bytes: list[int]
    message_ends: list[str] | None = None


class _Page(msgspec.Struct):
    etag: str = ""
    offset: str = ""
    next_offset: str = ""
    messages: list[msgspec.Raw] | None = None
    base64: str = ""
    times: _Times | None = None


_Found = tuple[StreamPartition, list[bytes], _Page]
_decoder: Final = msgspec.json.Decoder(dict[str, list[_Page]])


class BulkReads:
    """Reads partitions of small streams, many in a request."""

    def __init__(self, connection: ConnectionOptions, client: HttpClient) -> None:
        self._connection, self._client = connection, client
        #: Whether the server has bulk reads; False after a refusal.
        self._is_offered = True

    def read(
        self, parts: Sequence[StreamPartition], columns: Sequence[str]
    ) -> Iterator[StreamPartition | pa.RecordBatch]:
        """Yield the rows of many streams in each batch, and the partitions that must be read alone."""
        left = [part for part in parts if 0 < part.size <= _TOGETHER_BYTES]
        yield from (part for part in parts if not 0 < part.size <= _TOGETHER_BYTES)
        while pages := self._ask(left[:_MOST_READS]) if left and self._is_offered else []:
            asked, left = left[: len(pages)], left[len(pages) :]
            found = [(part, messages_of(part, page), page) for part, page in zip(asked, pages, strict=True)]
            yield from (part for part, messages, _ in found if messages is None)
            together = [(part, messages, page) for part, messages, page in found if messages is not None]
            if together:
                yield rows_of_pages(self._connection.bucket, columns, together)
        yield from left

    def _ask(self, parts: Sequence[StreamPartition]) -> list[_Page]:
        """Return the pages of the first partitions; none if the server has no bulk reads."""
        root = self._connection.stream_path
        reads = [{"stream": f"{root}/{quote(part.name)}", "offset": part.start} for part in parts]
        body = msgspec.json.encode({"reads": reads, "times": parts[0].with_times})
        url, kind = f"{self._connection.url}/v1/read", {"Content-Type": "application/json"}
        try:
            return _decoder.decode(self._client.request("POST", url, headers=kind, body=body).data)["pages"]
        except HttpFault:
            self._is_offered = False  # A read by itself repeats the request, and explains the error.
        except msgspec.DecodeError:
            pass  # A message has a lone surrogate escape (`protocol/json_text.py`).
        return []


def messages_of(part: StreamPartition, page: _Page) -> list[bytes] | None:
    """Return the messages of a page that has all messages of the partition; else None. Bytes are a message
    for each append if the page has times, else one."""
    places = [place_of(each) for each in (part.start, part.end, page.offset, page.next_offset)]
    low, high, start, end = (-1 if place is None else place for place in places)
    is_same = incarnation_in(page.etag, page.next_offset) == part.incarnation
    if min(low, high, end) < 0 or low != start or not is_same or (part.with_times and page.times is None):
        return None
    if page.messages is None:
        body = b64decode(page.base64)
        return _appends(body[: high - low], page.times, low) if low + len(body) == end else None
    ends = list(accumulate((len(each) + 1 for each in page.messages), initial=low))
    kept = bisect_right(ends, high) - 1
    return list(map(bytes, page.messages[:kept])) if ends[kept] == high and ends[-1] == end else None


def _appends(body: bytes, times: _Times | None, low: int) -> list[bytes]:
    ends = [low + len(body)] if times is None else list(map(int, times.message_ends or ()))
    ends = ends or list(accumulate(times.bytes if times else (), initial=low))[1:]
    pieces = (body[first - low : last - low] for first, last in pairwise([low, *ends]))
    return [piece for piece in pieces if piece]


def rows_of_pages(bucket: str, columns: Sequence[str], found: Sequence[_Found]) -> pa.RecordBatch:
    """Return the rows of several streams, stream after stream."""
    parts, counts = [part for part, _, _ in found], [len(messages) for _, messages, _ in found]
    values = list(chain.from_iterable(messages for _, messages, _ in found))
    commas = np.repeat([page.messages is not None for _, _, page in found], counts)
    sizes = np.fromiter(map(len, values), np.int64, len(values)) + commas
    firsts, ends = np.cumsum([0, *counts])[:-1], np.cumsum(sizes)
    starts = np.array([place_of(part.start) for part in parts], np.int64)
    ends += np.repeat(starts - (ends - sizes)[firsts], counts)
    of_row = pa.array(np.repeat(np.arange(len(parts)), counts))
    arrays: dict[str, Any] = {
        "stream": pa.array([part.name for part in parts]).take(of_row),
        "incarnation": pa.array([part.incarnation or None for part in parts], pa.string()).take(of_row),
        "content_type": pa.array([part.content_type for part in parts]).take(of_row),
        **offset_arrays(ends - sizes, ends),
        "value": pa.array(values, pa.binary()),
        **json_arrays(
            columns, [value if comma else b"null" for value, comma in zip(values, commas, strict=True)]
        ),
    }
    if "timestamp" in columns:
        each = (page.times for _, _, page in found)
        times = [np.repeat(np.array(known.times_ms, np.int64), known.messages) for known in each if known]
        kept = [some[:count] for some, count in zip(times, counts, strict=True)]
        arrays["timestamp"] = time_column(np.concatenate(kept))
    return make_batch(columns, len(values), {"bucket": bucket, "position": 0}, arrays)
