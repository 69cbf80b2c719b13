"""Appends what was staged. A query, or a batch write, is one producer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Protocol

from urllib3 import BaseHTTPResponse

from tidemark.protocol.errors import (
    Busy,
    Conflict,
    OutcomeUnknown,
    ProducerFenced,
    ProtocolError,
    StreamNotFound,
)
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.header_values import MAX_SAFE_INTEGER
from tidemark.protocol.messages import ContentType, parse_content_type
from tidemark.protocol.producer import Claim
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import INLINE_BYTES, AppendRequest, append
from tidemark.service.create import CreateRequest, create
from tidemark.service.group_commit import MAX_GROUP
from tidemark.service.load import load_head
from tidemark.spark.http_client import ForbiddenHttpFault, HttpClient, HttpFault, retry
from tidemark.spark.options import ConnectionOptions, Transport
from tidemark.spark.storage import connect_to_write
from tidemark.spark.writer.manifest import AppendRun
from tidemark.spark.writer.staging import Staging, decode_bodies

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
class TargetStream:
    """A stream as it stood before anything was written to it."""

    content_type: ContentType
    closed: bool


class Publisher(Protocol):
    def find(self, stream: str) -> TargetStream | None:
        """None if there is no such stream."""

    def create(self, stream: str, content_type: ContentType) -> None: ...

    def find_use(self, stream: str, content_type: ContentType, producer_id: str, batch: int) -> str | None:
        """Describe the appends of this batch, or of a newer one, that the stream has. The probe writes
        nothing: the first append of an epoch has number 0 (§5.2.1). Raises NotPublished."""

    def append(
        self, stream: str, content_type: ContentType, bodies: Iterator[bytes], producer_id: str, batch: int
    ) -> None:
        """In their order. The batch is the epoch and an append's place the sequence number, so each lands
        once however often it is sent, and an older batch is fenced off. Raises NotPublished."""

    def close(self, stream: str) -> None:
        """Does nothing if the stream is closed already. Raises NotPublished."""


def connect_publisher(connection: ConnectionOptions) -> Publisher:
    if connection.transport is Transport.HTTP:
        return HttpPublisher(connection)
    return LogPublisher(connection)


class HttpPublisher:
    def __init__(self, connection: ConnectionOptions) -> None:
        self._connection = connection
        self._client = HttpClient(connection.token, retry_seconds=connection.retry_seconds)

    def find(self, stream: str) -> TargetStream | None:
        answer = self._client.request("HEAD", self._connection.stream_url(stream), allow=frozenset({404}))
        if answer.status == 404:
            return None
        content_type = parse_content_type(answer.headers["Content-Type"])
        return TargetStream(content_type, answer.headers.get("Stream-Closed", "").lower() == "true")

    def create(self, stream: str, content_type: ContentType) -> None:
        headers = {"Content-Type": content_type.value}
        self._client.request("PUT", self._connection.stream_url(stream), headers=headers)

    def find_use(self, stream: str, content_type: ContentType, producer_id: str, batch: int) -> str | None:
        claim = Claim(producer_id, batch, PROBE_SEQ)
        refusals = frozenset({400, 403, 404, 409})
        answer = self._post(stream, content_type, _PROBE_BODY, claim, refusals)
        if answer.status not in refusals:
            raise NotPublished(
                f"tidemark: {self._connection.stream_url(stream)}: the server does not know Producer-Seq"
                f" (§5.2.1): it took append {PROBE_SEQ} before any other, so nothing arrives exactly once"
            )
        return _describe_use(answer.headers, batch)

    def append(
        self, stream: str, content_type: ContentType, bodies: Iterator[bytes], producer_id: str, batch: int
    ) -> None:
        """Several are on their way at once. One that overtakes another is refused as a gap (§5.2.1), and sent
        again when those before it are there. A server that takes few in their order is sent few at once."""
        seq, width = 0, 1
        with closing(self._client.posts_in_order(self._connection.stream_url(stream))) as posts:
            while some := _take(bodies, width, _BYTES_AT_ONCE):
                claims = [Claim(producer_id, batch, seq + place) for place in range(len(some))]
                headers = [_claim_headers(content_type, claim) for claim in claims]
                taken = posts.send(headers, some) if len(some) > 1 else [False]
                for body, claim, is_there in zip(some, claims, taken, strict=True):
                    if not is_there:
                        self._post(stream, content_type, body, claim)
                seq += len(some)
                width = min(_POSTS_AT_ONCE, 2 * max(1, sum(taken)))

    def _post(
        self,
        stream: str,
        content_type: ContentType,
        body: bytes,
        claim: Claim,
        allow: frozenset[int] = frozenset(),
    ) -> BaseHTTPResponse:
        """Raises NotPublished."""
        headers, url = _claim_headers(content_type, claim), self._connection.stream_url(stream)
        try:
            return self._client.request("POST", url, headers=headers, body=body, allow=allow)
        except HttpFault as fault:
            # What the token does not allow is said already, and its 403 is not that of a fence.
            status = None if isinstance(fault, ForbiddenHttpFault) else fault.status
            raise NotPublished(_explain(stream, claim, status, str(fault))) from fault

    def close(self, stream: str) -> None:
        try:
            self._client.request(
                "POST", self._connection.stream_url(stream), headers={"Stream-Closed": "true"}
            )
        except HttpFault as fault:
            raise NotPublished(f"tidemark: {stream} could not be closed: {fault}") from fault


class LogPublisher:
    """Publishes through the application's own append, in this process, without a server."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self._bucket = connection.bucket
        self._retry_seconds = connection.retry_seconds
        self._stores = connect_to_write(connection)

    def _key(self, stream: str) -> StreamKey:
        return StreamKey(self._bucket, stream)

    def find(self, stream: str) -> TargetStream | None:
        try:
            known = load_head(self._stores, self._key(stream))
        except StreamNotFound:
            return None
        return TargetStream(known.record.content_type, known.tail.closed)

    def create(self, stream: str, content_type: ContentType) -> None:
        request = CreateRequest(content_type, NEVER, closed=False)
        retry(
            lambda: create(self._stores, self._key(stream), request),
            self._retry_seconds,
            Busy,
            OutcomeUnknown,
        )

    def find_use(self, stream: str, content_type: ContentType, producer_id: str, batch: int) -> str | None:
        claim = Claim(producer_id, batch, PROBE_SEQ)
        try:
            self._append(stream, [AppendRequest(content_type, _PROBE_BODY, claim=claim)])
        except ProtocolError as refusal:
            return _describe_use(refusal.headers, batch)
        raise AssertionError("the log takes no append with a gap before it")

    def append(
        self, stream: str, content_type: ContentType, bodies: Iterator[bytes], producer_id: str, batch: int
    ) -> None:
        """Small ones share a batch of the log."""
        seq = 0
        while some := _take(bodies, MAX_GROUP, INLINE_BYTES // 2):
            requests = [
                AppendRequest(content_type, body, claim=Claim(producer_id, batch, seq + place))
                for place, body in enumerate(some)
            ]
            try:
                self._append(stream, requests)
            except ProtocolError as refusal:
                text = _explain(stream, Claim(producer_id, batch, seq), refusal.status, refusal.message)
                raise NotPublished(text) from refusal
            seq += len(some)

    def close(self, stream: str) -> None:
        try:
            self._append(stream, [AppendRequest(None, b"", close=True)])
        except ProtocolError as refusal:
            raise NotPublished(f"tidemark: {stream} could not be closed: {refusal.message}") from refusal

    def _append(self, stream: str, requests: Sequence[AppendRequest]) -> None:
        """Raises what refuses one of them."""

        def once() -> None:
            for answer in append(self._stores, self._key(stream), requests):
                if isinstance(answer, ProtocolError):
                    raise answer

        retry(once, self._retry_seconds, Busy, OutcomeUnknown)


def _take(bodies: Iterator[bytes], count: int, size: int) -> list[bytes]:
    """The next so many, or fewer where they have so many bytes."""
    some: list[bytes] = []
    while len(some) < count and size > 0 and (body := next(bodies, None)) is not None:
        some.append(body)
        size -= len(body)
    return some


def _claim_headers(content_type: ContentType, claim: Claim) -> dict[str, str]:
    return {
        "Content-Type": content_type.value,
        "Producer-Id": claim.producer_id,
        "Producer-Epoch": str(claim.epoch),
        "Producer-Seq": str(claim.seq),
    }


def _describe_use(refusal: Mapping[str, str], batch: int) -> str | None:
    """Describe the use from the headers of the refusal. The append itself reports a refusal for another
    reason."""
    expected, newer = refusal.get("Producer-Expected-Seq"), refusal.get("Producer-Epoch")
    if expected is not None:
        return f"appends 0 to {int(expected) - 1} of batch {batch}" if int(expected) else None
    return None if newer is None else f"batch {newer}"


def _explain(stream: str, claim: Claim, status: int | None, text: str) -> str:
    meanings: dict[int | None, str] = {
        ProducerFenced.status: "a newer batch of this producer id is there already: does another driver run?",
        StreamNotFound.status: "the stream is gone",
        Conflict.status: "the stream is closed, of another content type, or was created again in between",
        0: "the server does not answer; the batch goes on where it stopped when it is repeated",
    }
    cause = text.removeprefix("tidemark: ")
    meaning = meanings.get(status)
    said = f"{meaning} [{cause}]" if meaning else cause
    place = "before" if claim.seq == PROBE_SEQ else f"append {claim.seq} of"
    return f"tidemark: {stream}, {place} batch {claim.epoch}: {said}"


@dataclass(frozen=True)
class Publication:
    """The appends to publish to one stream, in order, as one producer in one batch."""

    stream: str
    content_type: ContentType
    runs: tuple[AppendRun, ...]
    producer_id: str
    batch: int


def publish_stream(publisher: Publisher, files: Staging, publication: Publication) -> None:
    """Raises NotPublished."""
    bodies = chain.from_iterable(
        decode_bodies(partial(files.read, run.file), run.start, run.length) for run in publication.runs
    )
    publisher.append(
        publication.stream, publication.content_type, bodies, publication.producer_id, publication.batch
    )


def find_use(
    publisher: Publisher, streams: Iterable[str], content_type: ContentType, producer_id: str, batch: int
) -> str | None:
    """Describe the appends of this batch, or of a newer one, that one of the streams has. Raises
    NotPublished."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-look") as pool:
        ask = partial(_find_use, publisher, content_type, producer_id, batch)
        return next(filter(None, pool.map(ask, streams)), None)


def _find_use(
    publisher: Publisher, content_type: ContentType, producer_id: str, batch: int, stream: str
) -> str | None:
    found = publisher.find_use(stream, content_type, producer_id, batch)
    return found and f"{stream} has {found}"


def publish_here(publisher: Publisher, files: Staging, publications: Sequence[Publication]) -> None:
    """Publishes by threads of this process, streams side by side."""
    with ThreadPoolExecutor(_STREAMS_AT_ONCE, thread_name_prefix="tidemark-publish") as pool:
        tasks = [pool.submit(publish_stream, publisher, files, each) for each in publications]
        for task in tasks:
            task.result()
