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
from tidemark.client.blocking import Following as Following
from tidemark.client.blocking import Producer as Producer
from tidemark.client.blocking import Stream as Stream
from tidemark.client.chunks import Chunk as Chunk
from tidemark.client.core import Delivery as Delivery
from tidemark.client.core import PublishedSnapshot as PublishedSnapshot
from tidemark.client.core import Receipt as Receipt
from tidemark.client.errors import *  # noqa: F403
from tidemark.client.exchange import Retry as Retry
from tidemark.client.reading import StreamInfo as StreamInfo
from tidemark.client.server import Server as Server
from tidemark.client.server import StreamEntry as StreamEntry
from tidemark.client.transport import proxy_transport as proxy_transport
