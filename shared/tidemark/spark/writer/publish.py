"""Appends staged bodies to streams. A query, or a batch write, is one idempotent producer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

from urllib3 import BaseHTTPResponse

from tidemark.protocol.errors import Conflict, StaleEpoch, StreamNotFound
from tidemark.protocol.header_values import MAX_SAFE_INTEGER
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.spark.http_client import ForbiddenHttpFault, HttpClient, HttpFault
from tidemark.spark.options import ConnectionOptions
from tidemark.spark.staging import Staging, decode_bodies
from tidemark.spark.writer.manifest import AppendRun

_STREAMS_AT_ONCE: Final = 8
#: Concurrent POSTs to one stream, each on its own connection.
_POSTS_AT_ONCE: Final = 16
#: Limit of concurrent bodies: larger bodies gain little from concurrency and fill the memory.
_BYTES_AT_ONCE: Final = 256 * 1024
#: Producer-Seq of a probe. No producer reaches it, so the server refuses the append and returns the current
#: sequence number.
PROBE_SEQ: Final = MAX_SAFE_INTEGER
#: Valid as JSON, text and bytes.
_PROBE_BODY: Final = b"0"


class NotPublished(Exception):
    """A stream refused an append. The batch is still staged and can be repeated."""


@dataclass(frozen=True)
class Publication:
    """The appends of one batch to one stream, in order, as one producer. The batch number is the epoch, and
    an append's index is the sequence number. The server therefore takes each append once and fences older
    batches."""

    stream: str
    content_type: ContentType
    runs: Sequence[AppendRun]
    producer_id: str
    batch: int

    def headers(self, seq: int) -> dict[str, str]:
        return {
            "Content-Type": self.content_type.value,
            "Producer-Id": self.producer_id,
            "Producer-Epoch": str(self.batch),
            "Producer-Seq": str(seq),
        }

    def bodies(self, files: Staging) -> Iterator[bytes]:
        return chain.from_iterable(
            decode_bodies(partial(files.read, run.file), run.start, run.length) for run in self.runs
        )


@dataclass(frozen=True)
class TargetStream:
    """A stream's state before the write."""

    content_type: ContentType
    closed: bool


class Publisher:
    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(connection)

    def find(self, stream: str) -> TargetStream | None:
        answer = self._client.request("HEAD", self._connection.stream_url(stream), allow=frozenset({404}))
        if answer.status == 404:
            return None
        content_type = parse_content_type(answer.headers["Content-Type"])
        return TargetStream(content_type, answer.headers.get("Stream-Closed", "").lower() == "true")

    def create(self, stream: str, content_type: ContentType) -> None:
        headers = {"Content-Type": content_type.value}
        self._client.request("PUT", self._connection.stream_url(stream), headers=headers)

    def find_use(self, publication: Publication) -> str | None:
        """Describe the appends of this batch, or of a newer one, in the stream. The probe writes nothing,
        because the first append of an epoch must have number 0 (§5.2.1). Raises NotPublished."""
        refusals = frozenset({400, 403, 404, 409})
        answer = self._post(publication, PROBE_SEQ, _PROBE_BODY, refusals)
        if answer.status not in refusals:
            raise NotPublished(
                f"tidemark: {self._connection.stream_url(publication.stream)}: the server does not know"
                f" Producer-Seq (§5.2.1): it took append {PROBE_SEQ} before any other, so nothing arrives"
                " exactly once"
            )
        return _describe_use(publication, answer.headers)

    def append(self, publication: Publication, bodies: Iterator[bytes]) -> None:
        """Send the appends, several concurrently. The server refuses an append that overtakes another as a
        gap (§5.2.1); it is sent again after the earlier appends. If the server accepts few in order, fewer
        are sent concurrently. Raises NotPublished."""
        seq, width = 0, 1
        with closing(self._client.posts_in_order(self._connection.stream_url(publication.stream))) as posts:
            while some := _take(bodies, width, _BYTES_AT_ONCE):
                numbers = range(seq, seq + len(some))
                taken = [False]
                if len(some) > 1:
                    taken = posts.send(list(map(publication.headers, numbers)), some)
                for body, number, is_there in zip(some, numbers, taken, strict=True):
                    if not is_there:
                        self._post(publication, number, body)
                seq += len(some)
                width = min(_POSTS_AT_ONCE, 2 * max(1, sum(taken)))

    def _post(
        self, publication: Publication, seq: int, body: bytes, allow: frozenset[int] = frozenset()
    ) -> BaseHTTPResponse:
        """Send one append, with retries. Raises NotPublished."""
        headers, url = publication.headers(seq), self._connection.stream_url(publication.stream)
        try:
            return self._client.request("POST", url, headers=headers, body=body, allow=allow)
        except HttpFault as fault:
            # The text of a ForbiddenHttpFault is complete, and its 403 does not mean a stale epoch.
            status = None if isinstance(fault, ForbiddenHttpFault) else fault.status
            raise NotPublished(_explain(publication, seq, status, str(fault))) from fault

    def close(self, stream: str) -> None:
        """Close the stream. Does nothing if it is closed already. Raises NotPublished."""
        url = self._connection.stream_url(stream)
        try:
            self._client.request("POST", url, headers={"Stream-Closed": "true"})
        except HttpFault as fault:
            raise NotPublished(f"tidemark: {stream} could not be closed: {fault}") from fault


def _take(bodies: Iterator[bytes], count: int, size: int) -> list[bytes]:
    """Take the next `count` bodies, or fewer once they have `size` bytes."""
    some: list[bytes] = []
    while len(some) < count and size > 0 and (body := next(bodies, None)) is not None:
        some.append(body)
        size -= len(body)
    return some


def _describe_use(publication: Publication, refusal: Mapping[str, str]) -> str | None:
    """Describe the appends from the headers of the refusal. None for other refusals, which the append itself
    reports."""
    expected, newer = refusal.get("Producer-Expected-Seq"), refusal.get("Producer-Epoch")
    if expected is not None and int(expected):
        return f"{publication.stream} has appends 0 to {int(expected) - 1} of batch {publication.batch}"
    if expected is None and newer is not None:
        return f"{publication.stream} has batch {newer}"
    return None


def _explain(publication: Publication, seq: int, status: int | None, text: str) -> str:
    meanings: dict[int | None, str] = {
        StaleEpoch.status: "a newer batch of this producer id is there already: does another driver run?",
        StreamNotFound.status: "the stream is gone",
        Conflict.status: "the stream is closed, of another content type, or was created again in between",
        0: "the server does not answer; a repetition of the batch continues where it stopped",
    }
    cause = text.removeprefix("tidemark: ")
    meaning = meanings.get(status)
    explained = f"{meaning} [{cause}]" if meaning else cause
    place = "before" if seq == PROBE_SEQ else f"append {seq} of"
    return f"tidemark: {publication.stream}, {place} batch {publication.batch}: {explained}"


def find_use(publisher: Publisher, publications: Sequence[Publication]) -> str | None:
    """Describe the appends of this batch, or of a newer one, in the first stream that has some; None if no
    stream has any. Raises NotPublished."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-look") as pool:
        return next(filter(None, pool.map(publisher.find_use, publications)), None)


def publish(publisher: Publisher, files: Staging, publications: Sequence[Publication]) -> None:
    """Publish to several streams in parallel, with threads. Raises NotPublished."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-publish") as pool:
        list(pool.map(lambda each: publisher.append(each, each.bodies(files)), publications))
