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
from tidemark.client.core import Chunk, Receipt, Retry, StreamInfo
from tidemark.client.errors import (
    ETagMismatch,
    InvalidRequest,
    MalformedReply,
    NotAllowed,
    NotFound,
    OutOfOrderSequence,
    ProducerFenced,
    SequenceConflict,
    StatusError,
    StreamClosed,
    StreamConflict,
    StreamError,
    StreamGone,
    TooManyRequests,
    Unavailable,
    UnconfirmedWrite,
    Unreachable,
)

__all__ = [
    "AsyncProducer",
    "AsyncStream",
    "Chunk",
    "ETagMismatch",
    "InvalidRequest",
    "MalformedReply",
    "NotAllowed",
    "NotFound",
    "OutOfOrderSequence",
    "Producer",
    "ProducerFenced",
    "Receipt",
    "Retry",
    "SequenceConflict",
    "StatusError",
    "Stream",
    "StreamClosed",
    "StreamConflict",
    "StreamError",
    "StreamGone",
    "StreamInfo",
    "TooManyRequests",
    "Unavailable",
    "UnconfirmedWrite",
    "Unreachable",
]
