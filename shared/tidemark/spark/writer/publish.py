"""Appends what was staged. A query, or a batch write, is one producer."""

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
#: The concurrent POSTs to one stream, each on a connection of its own.
_POSTS_AT_ONCE: Final = 16
#: Larger bodies gain little by company, and would be held in memory together.
_BYTES_AT_ONCE: Final = 256 * 1024
#: No producer comes that far, so an append with this number is refused, and the refusal tells what there is.
PROBE_SEQ: Final = MAX_SAFE_INTEGER
#: JSON and text, and bytes as good as any.
_PROBE_BODY: Final = b"0"


class NotPublished(Exception):
    """A stream refused what was staged for it. Nothing is lost: the batch can be repeated."""


@dataclass(frozen=True)
class Publication:
    """What is appended to one stream, in order, as one producer in one batch. The batch is the epoch and an
    append's place the sequence number, so each lands once however often it is sent, and an older batch is
    fenced off."""

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
    """A stream as it stood before anything was written to it."""

    content_type: ContentType
    closed: bool


class Publisher:
    """The streams that are written to, over HTTP."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(
            connection.token, retry_seconds=connection.retry_seconds, token_file=connection.token_file
        )

    def find(self, stream: str) -> TargetStream | None:
        """None if there is no such stream."""
        answer = self._client.request("HEAD", self._connection.stream_url(stream), allow=frozenset({404}))
        if answer.status == 404:
            return None
        content_type = parse_content_type(answer.headers["Content-Type"])
        return TargetStream(content_type, answer.headers.get("Stream-Closed", "").lower() == "true")

    def create(self, stream: str, content_type: ContentType) -> None:
        headers = {"Content-Type": content_type.value}
        self._client.request("PUT", self._connection.stream_url(stream), headers=headers)

    def find_use(self, publication: Publication) -> str | None:
        """Describe the appends of this batch, or of a newer one, that the stream has. The probe writes
        nothing: the first append of an epoch has number 0 (§5.2.1). Raises NotPublished."""
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
        """Several are on their way at once. One that overtakes another is refused as a gap (§5.2.1), and sent
        again when those before it are there. A server that takes few in their order is sent few at once.
        Raises NotPublished."""
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
        """Raises NotPublished."""
        headers, url = publication.headers(seq), self._connection.stream_url(publication.stream)
        try:
            return self._client.request("POST", url, headers=headers, body=body, allow=allow)
        except HttpFault as fault:
            # What the token does not allow is said already, and its 403 is not that of a fence.
            status = None if isinstance(fault, ForbiddenHttpFault) else fault.status
            raise NotPublished(_explain(publication, seq, status, str(fault))) from fault

    def close(self, stream: str) -> None:
        """Does nothing if the stream is closed already. Raises NotPublished."""
        url = self._connection.stream_url(stream)
        try:
            self._client.request("POST", url, headers={"Stream-Closed": "true"})
        except HttpFault as fault:
            raise NotPublished(f"tidemark: {stream} could not be closed: {fault}") from fault


def _take(bodies: Iterator[bytes], count: int, size: int) -> list[bytes]:
    """The next so many, or fewer where they have so many bytes."""
    some: list[bytes] = []
    while len(some) < count and size > 0 and (body := next(bodies, None)) is not None:
        some.append(body)
        size -= len(body)
    return some


def _describe_use(publication: Publication, refusal: Mapping[str, str]) -> str | None:
    """Describe the use from the headers of the refusal. The append itself reports a refusal for another
    reason."""
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
        0: "the server does not answer; the batch goes on where it stopped when it is repeated",
    }
    cause = text.removeprefix("tidemark: ")
    meaning = meanings.get(status)
    said = f"{meaning} [{cause}]" if meaning else cause
    place = "before" if seq == PROBE_SEQ else f"append {seq} of"
    return f"tidemark: {publication.stream}, {place} batch {publication.batch}: {said}"


def find_use(publisher: Publisher, publications: Sequence[Publication]) -> str | None:
    """Describe the appends of this batch, or of a newer one, that one of the streams has. Raises
    NotPublished."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-look") as pool:
        return next(filter(None, pool.map(publisher.find_use, publications)), None)


def publish(publisher: Publisher, files: Staging, publications: Sequence[Publication]) -> None:
    """By threads of this process, streams side by side. Raises NotPublished."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-publish") as pool:
        list(pool.map(lambda each: publisher.append(each, each.bodies(files)), publications))
