"""A client of the Durable Streams protocol, for any server.

    answer = Stream.create(url, content_type="text/plain")
    with answer.producer("answer-42") as producer:
        producer.append("There are two tides a day.")

    for chunk in Stream(url).follow():
        print(chunk.text)

The rules are in `core`, `reading` and `batches`, which do no I/O: generators that yield requests and receive
replies. `blocking` and `asynchronous` run them on httpx. The rules of a socket are in `watches`, and `socket`
runs them."""

from __future__ import annotations

from tidemark.client.asynchronous import AsyncProducer as AsyncProducer
from tidemark.client.asynchronous import AsyncStream as AsyncStream
from tidemark.client.blocking import Producer as Producer
from tidemark.client.blocking import Stream as Stream
from tidemark.client.chunks import Chunk as Chunk
from tidemark.client.core import Receipt as Receipt
from tidemark.client.errors import AnswerCut as AnswerCut
from tidemark.client.errors import ETagMismatch as ETagMismatch
from tidemark.client.errors import InvalidRequest as InvalidRequest
from tidemark.client.errors import MalformedReply as MalformedReply
from tidemark.client.errors import NotAllowed as NotAllowed
from tidemark.client.errors import NotFound as NotFound
from tidemark.client.errors import OutOfOrderSequence as OutOfOrderSequence
from tidemark.client.errors import ProducerFenced as ProducerFenced
from tidemark.client.errors import SequenceConflict as SequenceConflict
from tidemark.client.errors import StatusError as StatusError
from tidemark.client.errors import StreamClosed as StreamClosed
from tidemark.client.errors import StreamConflict as StreamConflict
from tidemark.client.errors import StreamError as StreamError
from tidemark.client.errors import StreamGone as StreamGone
from tidemark.client.errors import StreamReplaced as StreamReplaced
from tidemark.client.errors import TooManyRequests as TooManyRequests
from tidemark.client.errors import Unavailable as Unavailable
from tidemark.client.errors import UnconfirmedWrite as UnconfirmedWrite
from tidemark.client.errors import Unreachable as Unreachable
from tidemark.client.exchange import Retry as Retry
from tidemark.client.reading import StreamInfo as StreamInfo
from tidemark.client.transport import proxy_transport as proxy_transport
