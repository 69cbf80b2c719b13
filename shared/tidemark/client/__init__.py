"""A client of the Durable Streams protocol, for every server of it.

    answer = Stream.create(url, content_type="text/plain")
    with answer.producer("answer-42") as producer:
        producer.append("There are two tides a day.")

    for chunk in Stream(url).follow():
        print(chunk.text)

The rules are in `core` and `batches`, which do no I/O: generators that yield requests and receive replies.
`blocking` and `asynchronous` run them on httpx."""

from __future__ import annotations

from tidemark.client.asynchronous import AsyncProducer, AsyncStream
from tidemark.client.blocking import Producer, Stream
from tidemark.client.core import Appended, Chunk, Head, Retry
from tidemark.client.errors import (
    Conflict,
    InvalidRequest,
    MalformedReply,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    ProducerFenced,
    Refused,
    SequenceConflict,
    SequenceGap,
    StreamClosed,
    StreamError,
    StreamGone,
    TooManyRequests,
    Unavailable,
    Unreachable,
)

__all__ = [
    "Appended",
    "AsyncProducer",
    "AsyncStream",
    "Chunk",
    "Conflict",
    "Head",
    "InvalidRequest",
    "MalformedReply",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Producer",
    "ProducerFenced",
    "Refused",
    "Retry",
    "SequenceConflict",
    "SequenceGap",
    "Stream",
    "StreamClosed",
    "StreamError",
    "StreamGone",
    "TooManyRequests",
    "Unavailable",
    "Unreachable",
]
