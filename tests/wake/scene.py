"""A stream, a process that reads it, one that writes it, and everything between them counted."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.answers import Answer
from tests.http.asgi import Exchange
from tests.support import TEXT, World, a_key
from tests.waiting import PATIENCE_SECONDS, eventually
from tests.wake.support import make_prefix, request, shared_sqs
from tidemark.aws.sqs import QueueGone, Queues
from tidemark.http.app import create_app
from tidemark.http.backend import Backend
from tidemark.log.schema import log_pk
from tidemark.log.waiters import load_waiters
from tidemark.protocol.expiry import NEVER, Expiry
from tidemark.protocol.messages import ContentType
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.settings import Settings
from tidemark.wake.notifier import Notifier
from tidemark.wake.queue import WakeByQueue, WakeMessage

#: Short, because tests wait for receives to end; what they assert is how many it takes.
RECEIVE_SECONDS = 1
WAITS_LONG = Settings(long_poll_seconds=50, sse_seconds=50, sse_buffered_seconds=50)


class CountedQueues(Queues):
    """Counts the receives that began, and remembers what each brought."""

    def __init__(self, prefix: str) -> None:
        super().__init__(shared_sqs, prefix)
        self.begun = 0
        self.made = 0
        self.receives: list[int | None] = []

    def create(self, now_ms: int) -> str:
        self.made += 1
        return super().create(now_ms)

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        self.begun += 1
        try:
            bodies = super().receive(url, wait_seconds)
        except QueueGone:
            self.receives.append(None)
            raise
        self.receives.append(len(bodies))
        return bodies


class SilentQueues(CountedQueues):
    """No receive ends before it is released, as if the receiver's thread were stuck."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.released = threading.Semaphore(0)

    def receive(self, url: str, wait_seconds: int) -> list[str]:
        self.begun += 1
        self.released.acquire(timeout=10 * PATIENCE_SECONDS)
        return []


def has(data: bytes) -> Callable[[Answer], bool]:
    return lambda answer: data in answer.body


async def whole(exchange: Exchange) -> Answer:
    return await exchange.until(lambda _: exchange.done)


@dataclass
class Scene:
    """A stream, a process that reads it and one that writes it."""

    world: World
    make: Callable[..., Backend]
    receive_seconds: int = RECEIVE_SECONDS
    make_queues: Callable[[str], CountedQueues] = CountedQueues
    settings: Settings = WAITS_LONG
    clock: Any = None
    content_type: ContentType = TEXT
    expiry: Expiry = NEVER
    prefix: str = field(default_factory=make_prefix)
    key: StreamKey = field(default_factory=lambda: a_key("trigger"))

    def __post_init__(self) -> None:
        self.clock = self.clock or self.world.clock
        self.queues = self.make_queues(self.prefix)
        self.reader, self.writer = self.world.process(clock=self.clock), self.world.process(clock=self.clock)
        self.wake = WakeByQueue(self.reader.stores.table, self.queues, self.clock, self.receive_seconds)
        self.backend = self.make(self.reader.stores, self.settings, self.wake)
        self.app = create_app(self.backend)
        created = self.writer.create(self.key, content_type=self.content_type, expiry=self.expiry)
        self.record = created.head.record
        self.reader.calls.taken()

    def close(self) -> None:
        """The reading process ends."""
        if isinstance(self.queues, SilentQueues):
            self.queues.released.release(1_000_000)
        self.wake.close()

    @property
    def path(self) -> str:
        bucket = "v1/stream" if self.key.bucket == PLAIN_BUCKET else self.key.bucket
        return f"/{bucket}/{self.key.stream_id}"

    @property
    def target(self) -> str:
        return f"{self.path}?offset=-1&live="

    async def append(self, body: bytes) -> None:
        """In the other process."""
        await asyncio.to_thread(self.writer.append, self.key, body, content_type=self.content_type)

    async def tell(self, *starts: int) -> None:
        await asyncio.to_thread(self.notify, *starts)

    async def waiting(self, count: int = 1) -> None:
        """The reader waits, and its queue is past its first second."""
        await eventually(lambda: self.queues.begun and len(self.wake.hub._waiting) == count)

    @asynccontextmanager
    async def reading(self, live: str) -> AsyncIterator[Exchange]:
        async with request(self.app, self.target + live) as exchange:
            await self.waiting()
            yield exchange
        # The application has ended its answer, long before it would have done so by itself.
        assert self.wake.hub.following == 0

    async def get(self, query: str) -> Answer:
        """Of a request that ends by itself."""
        async with request(self.app, f"{self.path}?{query}") as exchange:
            return await whole(exchange)

    def registered(self) -> set[str]:
        waiters = load_waiters(self.writer.stores.table, self.record.incarnation, self.clock())
        return {waiter.address for waiter in waiters if not waiter.polls}

    def notify(self, *starts: int) -> None:
        """The trigger, without a pump."""
        notifier = Notifier(self.writer.stores.table, Queues(shared_sqs, self.prefix), self.clock)
        pk = log_pk(self.key, self.record.incarnation)
        for start in starts:
            assert notifier.notify([WakeMessage(pk, start)]) == {}


MakeScene = Callable[..., Scene]
