"""A conversation: what a model writes in half a minute, to two readers, and the rows of `docs/costs.md`."""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from benchmarks import prices
from tests.costs import page
from tests.costs.bill import Bill, open_bill
from tests.support import HOUR_MS, World, a_key
from tests.wake.support import Sockets, make_queues
from tidemark.http.backend import lambda_backend
from tidemark.janitor.sweep import sweep
from tidemark.log.records import Waiter
from tidemark.log.schema import log_pk
from tidemark.log.waiters import put_waiter
from tidemark.outbound.request import RequestBody
from tidemark.protocol.errors import BucketExists
from tidemark.proxy.calls import ANSWERS, CALLS, Calls, UpstreamRequest, answer_key
from tidemark.service.append import AppendRequest
from tidemark.service.buckets import create_bucket
from tidemark.wake import queue
from tidemark.wake.notifier import Notifier
from tidemark.wake.queue import WakeMessage

CONVERSATION_SECONDS: Final = 30
TOKENS: Final = 150
READERS: Final = 2
TOKEN: Final = page.Operation(
    "Append, a few tokens",
    lambda process, key: process.append(key, page.json_event(240), claim=("model", 0, 0)),
    sent=240,
)


def measure_news(world: World) -> Bill:
    """A token's way to the sockets of its readers."""
    process, key = world.process(), a_key(page.NAME)
    head = process.create(key, body=page.json_event(240)).head
    record, now_ms, name = head.record, world.clock(), f"/v1/stream/{key.stream_id}"
    watch = Waiter(record.incarnation, "", now_ms + 60_000, name, now_ms, content_type=record.content_type)
    for number in range(READERS):
        put_waiter(process.stores.table, replace(watch, address=f"L0SM9cOFvHcC{number}="))
    process.append(key, page.json_event(240))
    bill, sockets = open_bill(process), Sockets()
    notifier = Notifier(process.stores.table, make_queues(), world.clock, sockets)
    assert notifier.notify([WakeMessage(log_pk(key, record.incarnation), head.tail.offset)]) == {}
    told = [message for connection in list(sockets.frames) for message in sockets.messages(connection)]
    assert ["data" in message for message in told] == [True] * READERS
    return bill


def measure_call(world: World) -> Bill:
    """A call of an upstream, without the batches of its answer: it is begun, taken, answered, seen by who
    waits for that, renewed once, and ended."""
    process = world.process()
    for bucket in (ANSWERS, CALLS):
        with suppress(BucketExists):
            create_bucket(process.stores, bucket)
    bill = open_bill(process)

    backend = lambda_backend(process.stores, process.settings)

    async def call(name: str) -> None:
        calls = Calls(backend, backend.append)
        incarnation = await calls.begin(name, entry="model", subject="ada", fingerprint="f" * 64)
        order = UpstreamRequest(name, "https://model.test/", "POST", (), RequestBody(b""), incarnation)
        assert await calls.take(order)
        await calls.open_answer(order, "text/event-stream")
        assert (await calls.load(name)).is_answered
        await calls.renew(order)
        await backend.append(answer_key(name), AppendRequest(None, b"", close=True))
        assert await calls.append_entry(name, incarnation, close=True, error="")

    asyncio.run(call(str(uuid.uuid4())))
    return bill


def measure_packing(world: World) -> Bill:
    """Packing of a closed answer, and the removal of its batches."""
    process, key = world.process(), a_key(page.NAME)
    process.create(key)
    for number in range(TOKENS):
        process.append(key, page.json_event(240, number), close=number == TOKENS - 1)
    bill = open_bill(process)
    for _ in range(3):
        world.clock.advance(2 * HOUR_MS)
        sweep(process.stores)
    assert bill.calls["PutObject"] == 1
    assert bill.write_units > TOKENS
    bill.read_units = 0  # Of the queue: in the month without requests.
    return bill


def following_dollars(wakes: int) -> float:
    """Of a reader in a conversation: a message and a read for each wake-up. If data come fast, the wake-up
    after `FAST_NEWS` others begins the polls: the reader counts the waiters, and registers again."""
    gap = CONVERSATION_SECONDS / wakes
    wake = 2 * prices.SQS_CALL + prices.READ_UNIT
    if (queue.FAST_NEWS - 1) * gap > queue.FAST_MS / 1000:
        return prices.WRITE_UNIT + wakes * wake
    woken = queue.FAST_NEWS + 1
    polls = (CONVERSATION_SECONDS - woken * gap) / queue.POLL_SECONDS
    return 2 * prices.WRITE_UNIT + woken * wake + (1 + polls) * prices.READ_UNIT


@dataclass(frozen=True)
class Conversations:
    """Dollars of a thousand, each with this number of appends, and of wake-ups of each reader."""

    world: World
    appends: int = TOKENS
    wakes: int = TOKENS

    def row(self, title: str, later: str, url: Literal["Url", "ApiUrl", "WriterUrl"], more: float = 0) -> str:
        """A look for the waiters is in the price of an append; a message to a socket is in none."""
        at = ("Url", "ApiUrl", "WriterUrl").index(url)
        ways = [way()[at] + more for way in (self.by_sockets, self.by_events, self.by_long_polls)]
        proxy = f"{self.by_proxy() + more:.2f}" if url == "Url" else ""
        return f"| {title} | {later} | {' | '.join(f'{way:.2f}' for way in ways)} | {proxy} |"

    def quiet_and_packed(self) -> float:
        """More, where each append has an invocation of the notifier, and its batch is packed and removed."""
        alone = self.appends * (1 - 1 / prices.RECORDS_AN_INVOCATION) * page.notifier_dollars()
        return (alone + measure_packing(self.world).storage_dollars) / 1000

    def by_sockets(self) -> tuple[float, float, float]:
        news, watches = measure_news(self.world), page.measure_watches(self.world, 1)
        posting = news.storage_dollars - prices.READ_UNIT + prices.POSTING_SECONDS * page.gigabyte_seconds()
        watch = 2 * prices.SOCKET_MESSAGE + watches.storage_dollars / page.WATCHES
        watch += page.compute_dollars(page.WATCH_SECONDS)
        told = self.wakes * (posting + READERS * prices.SOCKET_MESSAGE)
        return self._by(1, [told + READERS * (watch + prices.SOCKET_MINUTE)] * 3)

    def by_events(self, requests: int = 1) -> tuple[float, float, float]:
        """Behind CloudFront readers wait in the live function, by the API's URL in the read function."""
        live, read = self._waiting(prices.LIVE_GB), self._waiting(prices.MEMORY_GB)
        return self._by(requests, [live, read, live])

    def by_long_polls(self) -> tuple[float, float, float]:
        return self.by_events(self.wakes)

    def by_proxy(self) -> float:
        """Two functions wait for the model's first token, and one pipes what follows."""
        ((storage, *_, waking, _, _), _), (read, _) = self._prices()
        seconds = CONVERSATION_SECONDS + 2 * prices.FIRST_TOKEN_SECONDS
        call = page.edge_request() + prices.HTTP_API + 2 * prices.LAMBDA_REQUEST
        call += measure_call(self.world).storage_dollars + seconds * page.gigabyte_seconds(prices.PROXY_GB)
        piped = call + self.appends * (storage + waking) + READERS * sum(read) + self._waiting(prices.LIVE_GB)
        return piped / 1000

    def _prices(self) -> Iterator[tuple[list[float], float]]:
        """Of an append, and of a read at the tail."""
        return (page.price(each, page.measure(self.world, each)) for each in (TOKEN, page.READ_AT_TAIL))

    def _waiting(self, memory: float) -> float:
        return READERS * (
            following_dollars(self.wakes) + CONVERSATION_SECONDS * page.gigabyte_seconds(memory)
        )

    def _by(self, requests: int, waiting: list[float]) -> tuple[float, float, float]:
        tokens, reads = self._prices()
        edge, direct, writers = (
            (self.appends * token + READERS * requests * request + waits) / 1000
            for waits, token, request in zip(
                waiting,
                (sum(tokens[0]), tokens[1], tokens[1] - prices.HTTP_API),
                (sum(reads[0]), reads[1], sum(reads[0])),
                strict=True,
            )
        )
        return edge, direct, writers


#: Appends of a writer with `linger_seconds=0.5`, and wake-ups with `NotifierSeconds=1`.
LINGERING: Final = 2 * CONVERSATION_SECONDS
WINDOWS: Final = CONVERSATION_SECONDS


def conversation_rows(world: World) -> Iterator[str]:
    plain, linger = Conversations(world), Conversations(world, LINGERING, LINGERING)
    window, both = Conversations(world, wakes=WINDOWS), Conversations(world, LINGERING, WINDOWS)
    yield Conversations(world, 500, 500).row("an append for each of 500 tokens", "", "Url")
    yield plain.row("in a quiet stack, packed later", "", "Url", plain.quiet_and_packed())
    yield plain.row("**as deployed**", "", "Url")
    yield plain.row("the API's own URL", "", "ApiUrl")
    yield plain.row("`WriterUrl`", "", "WriterUrl")
    yield window.row("`NotifierSeconds=1`", "1", "Url")
    yield linger.row("`linger`", "0.5", "Url")
    yield linger.row("`linger`, `WriterUrl`", "0.5", "WriterUrl")
    yield both.row("`linger`, `NotifierSeconds=1`", "1.5", "Url")
    yield both.row("all three", "1.5", "WriterUrl")
