"""The operations, measured, and the rows of `docs/costs.md` that say what they cost."""

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import orjson

from benchmarks import prices
from tests.costs.bill import Bill, open_bill
from tests.support import HOUR_MS, Process, World, a_key
from tests.wake.support import Sockets, make_queues
from tidemark.http.backend import lambda_backend
from tidemark.http.socket import SocketEvents
from tidemark.janitor.sweep import sweep
from tidemark.log.records import Waiter
from tidemark.log.schema import log_pk
from tidemark.log.waiters import put_waiter
from tidemark.outbound.request import RequestBody
from tidemark.protocol.errors import BucketExists, StreamNotFound
from tidemark.protocol.offset import NOW
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.proxy.calls import ANSWERS, CALLS, Calls, UpstreamRequest, answer_key
from tidemark.service.append import AppendRequest
from tidemark.service.buckets import create_bucket
from tidemark.service.catalog import list_streams
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.start_point import find_start, read_back
from tidemark.service.stores import Stores
from tidemark.subscriptions.pending import remind
from tidemark.wake import queue
from tidemark.wake.notifier import Notifier, sweep_queues
from tidemark.wake.queue import WakeMessage

#: Of a name such as `chat/6f1e…`, as agents use them.
NAME: Final = "chat/0f8fad5b-d9cb-469f-a165-70867728950e"

# --- what is appended ----------------------------------------------------------------------------

_TEXT: Final = (
    "the stream is read from an offset that its last answer gave and the next message comes when it is "
    "written so nothing needs to be asked for twice while a tool call returns its rows with names prices "
    "and dates which the model then puts into words for whoever waits at the other end"
)


def random_bytes(size: int) -> bytes:
    """Nothing makes them smaller."""
    return random.Random(size).randbytes(size)


def json_event(size: int, number: int = 0) -> bytes:
    """An event of an agent's session, `size` bytes long: ids, a time, and words."""
    chance = random.Random(number)
    event = {
        "type": "content_block_delta",
        "session": chance.randbytes(16).hex(),
        "message": chance.randbytes(8).hex(),
        "index": number,
        "at": f"2026-01-02T03:{number % 60:02}:{chance.randrange(60):02}.{chance.randrange(1000):03}Z",
        "delta": {"type": "text_delta", "text": ""},
    }
    missing = size - len(orjson.dumps(event))
    text = " ".join(chance.choices(_TEXT.split(), k=max(0, missing)))[: max(0, missing)]
    event["delta"] = {"type": "text_delta", "text": text}
    return orjson.dumps(event)


# --- operations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    title: str
    act: Callable[[Process, StreamKey], object]
    #: Of the stream before it, as bodies.
    history: tuple[bytes, ...] = (b"x",)
    streams: int = 1
    warm: bool = True
    #: Bytes of the request's and of the response's body.
    sent: int = 0
    received: int = 0
    #: More than of other requests.
    seconds: float = 0


def append_of(body: bytes, title: str, *, warm: bool = True, **more: object) -> Operation:
    return Operation(title, lambda process, key: process.append(key, body, **more), warm=warm, sent=len(body))


def create_by_append(process: Process, key: StreamKey) -> None:
    with suppress(StreamNotFound):
        process.append(key, random_bytes(300))
    process.create_by_append(key, random_bytes(300))


def _catch_up(history: tuple[bytes, ...], title: str) -> Operation:
    size = sum(map(len, history))
    return Operation(
        title, lambda process, key: read(process.stores, key, 0), history, warm=False, received=size
    )


READ_AT_TAIL: Final = Operation("Read at the tail", lambda process, key: read(process.stores, key, 1))
OPERATIONS: Final = (
    Operation("Create", lambda process, _: process.create(a_key(NAME)), history=()),
    Operation(
        "Append, 300 bytes, that creates the stream",
        lambda process, _: create_by_append(process, a_key(NAME)),
        history=(),
        sent=300,
    ),
    append_of(random_bytes(300), "Append, 300 bytes, by a producer", claim=("writer-1", 0, 0)),
    append_of(json_event(1024), "Append, 1,024 bytes of JSON"),
    append_of(random_bytes(1024), "Append, 1,024 bytes that do not deflate"),
    append_of(json_event(10 * 1024), "Append, 10 KB of JSON"),
    append_of(random_bytes(10 * 1024), "Append, 10 KB that do not deflate"),
    append_of(random_bytes(100 * 1024), "Append, 100 KB"),
    append_of(random_bytes(300), "Append, 300 bytes, the first of a process", warm=False),
    Operation("Metadata (HEAD)", lambda process, key: load_head(process.stores, key)),
    READ_AT_TAIL,
    Operation(
        "Read backwards, 50 messages of 240 bytes",
        lambda process, key: read_back(process.stores, key, NOW, 50),
        (json_event(240),) * 1000,
        warm=False,
        received=50 * 240,
    ),
    Operation(
        "Start point (`/v1/start`) of these",
        lambda process, key: find_start(process.stores, key, 50),
        (json_event(240),) * 1000,
        warm=False,
    ),
    Operation(
        "List, a page of 100 streams",
        lambda process, key: list_streams(process.stores, key.bucket, ListingRequest(key.stream_id)),
        streams=100,
        warm=False,
        received=100 * prices.LISTED_BYTES,
        seconds=prices.LISTING_SECONDS,
    ),
    _catch_up(
        tuple(json_event(1024, number) for number in range(100)), "Catch-up, 100 messages of 1 KB of JSON"
    ),
    _catch_up((random_bytes(60 * 1024),) * 60, "Catch-up, 60 messages of 60 KB that do not deflate"),
)


def measure(world: World, operation: Operation) -> Bill:
    process, key = world.process(), a_key(NAME)
    others = (StreamKey(key.bucket, f"{key.stream_id}/{number}") for number in range(1, operation.streams))
    for each in (key, *others):
        process.create(each)
        for body in operation.history:
            process.append(each, body)
    if not operation.warm:
        process = world.process()
    bill = open_bill(process)
    operation.act(process, key)
    return bill


def price(operation: Operation, bill: Bill) -> tuple[list[float], float]:
    """Dollars of a million, bytes included. The parts of what is deployed, with CloudFront in front: storage,
    HTTP API, Lambda, waking, CloudFront, its bytes. And the sum by the API's own URL, without CloudFront."""
    sent, received = operation.sent, operation.received
    is_append, is_create = operation.title.startswith("Append"), operation.title == "Create"
    seconds = prices.REQUEST_SECONDS + operation.seconds + received / 2**20 * prices.PAGE_SECONDS_PER_MB
    origin = [
        bill.storage_dollars,
        prices.HTTP_API * math.ceil(max(sent, received, 1) / prices.HTTP_API_BYTES),
        compute_dollars(seconds),
        notifier_dollars() / prices.RECORDS_AN_INVOCATION if is_append else 0.0,
    ]
    # Uncompressed, as the HTTP API sends it. A million bytes are a thousandth of a GB.
    response = received + (prices.WRITE_HEADER_BYTES if is_append or is_create else prices.READ_HEADER_BYTES)
    carried = sent + prices.REQUEST_HEADER_BYTES if sent else 0
    out = (response + prices.EDGE_HEADER_BYTES) * prices.EDGE_OUT_GB
    edge_bytes = (out + carried * prices.EDGE_TO_ORIGIN_GB) / 1000
    return [*origin, edge_request(), edge_bytes], sum(origin) + response * prices.REGION_OUT_GB / 1000


def compute_dollars(seconds: float, memory: float = prices.MEMORY_GB) -> float:
    """Per million."""
    return prices.LAMBDA_REQUEST + seconds * gigabyte_seconds(memory)


def gigabyte_seconds(memory: float = prices.MEMORY_GB) -> float:
    """Per million seconds of a function."""
    return memory * prices.LAMBDA_GB_SECOND * 1e6


def notifier_dollars() -> float:
    """Of an append that has the trigger to itself: an invocation, and a look each for waiters and for
    subscriptions."""
    return compute_dollars(prices.NOTIFIER_SECONDS) + 2 * prices.READ_UNIT


def edge_request() -> float:
    """Per million."""
    return prices.EDGE_REQUEST + prices.EDGE_FUNCTION


# --- waiting: an environment of Lambda for each reader, or one container for all ------------------------

HOURS_A_MONTH: Final = 730
#: An event stream lasts so long, then its reader comes again (`SSE_SECONDS`).
WAIT_SECONDS: Final = 55
WAITS_AN_HOUR: Final = 3600 / WAIT_SECONDS


def function_hour(readers: int) -> float:
    """Dollars. The requests through CloudFront are in both."""
    memory = 3600 * prices.LIVE_GB * prices.LAMBDA_GB_SECOND
    return readers * (memory + WAITS_AN_HOUR * (prices.LAMBDA_REQUEST + edge_request()) / 1e6)


def container_hour(readers: int) -> float:
    """Dollars, of one task (`container/template.yaml`). Of the balancer the larger counts of what it holds
    and of what arrives in a second; bytes are few."""
    task = prices.TASK_VCPU * prices.FARGATE_VCPU_HOUR + prices.TASK_GB * prices.FARGATE_GB_HOUR
    units = max(readers / 3000, readers / WAIT_SECONDS / 25)
    balancer = prices.BALANCER_HOUR + units * prices.BALANCER_UNIT_HOUR
    return task + prices.ADDRESS_HOUR + balancer + readers * WAITS_AN_HOUR * edge_request() / 1e6


# --- waiting on a socket -------------------------------------------------------------------------

#: API Gateway ends a connection after two hours. A watch lasts for an hour, and a client repeats it when four
#: fifths of that are over: three times in each connection.
CONNECTIONS_A_MONTH: Final = HOURS_A_MONTH / 2
WATCHES: Final = 3
#: The calls of a watch come one after another, however many streams there are.
WATCH_SECONDS: Final = 4 * prices.REQUEST_SECONDS
#: After each silent minute, in a hidden page eight, and one at the beginning. Each is answered.
PINGS: Final = 120
HIDDEN_PINGS: Final = 15


def measure_watches(world: World, streams: int) -> Bill:
    """What a connection says of so many streams: the first message is noted."""
    names = []
    for number in range(streams):
        key = a_key(f"{NAME}/{number}")
        world.process().create(key, body=b"x")
        names.append(f"/v1/stream/{key.stream_id}")
    process = world.process()
    process.stores.check_format()
    bill, events = open_bill(process), SocketEvents(process.stores, process.settings)
    context: dict[str, Any] = {"connectionId": f"L0SM9cOFvHcC{streams}=", "requestTimeEpoch": world.clock()}
    message = {"requestContext": context, "body": orjson.dumps({"watch": names}).decode()}
    for _ in range(WATCHES):
        assert all("seconds" in answer for answer in asyncio.run(events.answer(message)))
        context["requestTimeEpoch"] += 1
    return bill


def socket_month(watches: Bill, pings: int = PINGS) -> float:
    """Dollars of one connection that stays open, and is told nothing. A watch is a message, its answer, and
    an invocation."""
    function = compute_dollars(WATCH_SECONDS)
    messages = 2 * (pings + WATCHES) * prices.SOCKET_MESSAGE
    connection = 120 * prices.SOCKET_MINUTE + messages + WATCHES * function + watches.storage_dollars
    return CONNECTIONS_A_MONTH * connection / 1e6


# --- nobody asks for anything ---------------------------------------------------------------------

#: The janitor's and the packer's schedules.
ROUNDS_A_MONTH: Final = HOURS_A_MONTH * 12
#: Lambda asks a queue for messages by five long-polls of 20 s.
QUEUE_POLLS_A_MONTH: Final = 5 * HOURS_A_MONTH * 3600 / 20


def idle_row(world: World) -> str:
    """One storage call of a round follows the other, at 5 ms."""
    process, spent = world.process(), list[float]()
    bill = open_bill(process)
    for work in (_janitor_round, partial(sweep, removes=False)):
        before = bill.calls.total()
        work(process.stores)
        calls = bill.calls.total() - before
        spent.append(ROUNDS_A_MONTH * (calls * prices.READ_UNIT + compute_dollars(calls * 0.005)) / 1e6)
    assert bill.calls.total() == bill.calls["Query"], "an empty table is only asked"
    janitor, packer, polls = *spent, QUEUE_POLLS_A_MONTH * prices.SQS_CALL / 1e6
    return (
        f"| A month without requests | **{janitor + packer + polls:.2f}** | | | janitor {janitor:.2f}, "
        f"packer {packer:.2f}, polls of `SubscriptionsQueue` {polls:.2f} "
    )


def _janitor_round(stores: Stores) -> None:
    sweep(stores, packs=False)
    sweep_queues(stores.table, make_queues(), stores.clock_ms())
    remind(stores, lambda _: None)


# --- a conversation: what a model writes in half a minute, to two readers ------------------------

CONVERSATION_SECONDS: Final = 30
TOKENS: Final = 150
READERS: Final = 2
TOKEN: Final = Operation(
    "Append, a few tokens",
    lambda process, key: process.append(key, json_event(240), claim=("model", 0, 0)),
    sent=240,
)


def measure_news(world: World) -> Bill:
    """A token's way to the sockets of its readers."""
    process, key = world.process(), a_key(NAME)
    head = process.create(key, body=json_event(240)).head
    record, now_ms = head.record, world.clock()
    for number in range(READERS):
        waiter = Waiter(
            record.incarnation,
            f"L0SM9cOFvHcC{number}=",
            now_ms + 60_000,
            f"/v1/stream/{key.stream_id}",
            now_ms,
            content_type=record.content_type,
        )
        put_waiter(process.stores.table, waiter)
    process.append(key, json_event(240))
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
    process, key = world.process(), a_key(NAME)
    process.create(key)
    for number in range(TOKENS):
        process.append(key, json_event(240, number), close=number == TOKENS - 1)
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
        alone = self.appends * (1 - 1 / prices.RECORDS_AN_INVOCATION) * notifier_dollars()
        return (alone + measure_packing(self.world).storage_dollars) / 1000

    def by_sockets(self) -> tuple[float, float, float]:
        news, watches = measure_news(self.world), measure_watches(self.world, 1)
        posting = news.storage_dollars - prices.READ_UNIT + prices.POSTING_SECONDS * gigabyte_seconds()
        watch = 2 * prices.SOCKET_MESSAGE + watches.storage_dollars / WATCHES + compute_dollars(WATCH_SECONDS)
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
        (storage, *_, waking, _, _), _ = price(TOKEN, measure(self.world, TOKEN))
        seconds = CONVERSATION_SECONDS + 2 * prices.FIRST_TOKEN_SECONDS
        call = edge_request() + prices.HTTP_API + 2 * prices.LAMBDA_REQUEST
        call += measure_call(self.world).storage_dollars + seconds * gigabyte_seconds(prices.PROXY_GB)
        reads = READERS * sum(price(READ_AT_TAIL, measure(self.world, READ_AT_TAIL))[0])
        piped = call + self.appends * (storage + waking) + reads + self._waiting(prices.LIVE_GB)
        return piped / 1000

    def _waiting(self, memory: float) -> float:
        return READERS * (following_dollars(self.wakes) + CONVERSATION_SECONDS * gigabyte_seconds(memory))

    def _by(self, requests: int, waiting: list[float]) -> tuple[float, float, float]:
        tokens, reads = (price(each, measure(self.world, each)) for each in (TOKEN, READ_AT_TAIL))
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


# --- rows ----------------------------------------------------------------------------------------


def rows(world: World) -> Iterator[str]:
    """As `docs/costs.md` has them."""
    yield idle_row(world)
    yield from conversation_rows(world)
    for operation in OPERATIONS:
        bill = measure(world, operation)
        parts, direct = price(operation, bill)
        yield f"| {operation.title} | **{sum(parts):.2f}** | {direct:.2f} | {_counted(bill)} |"
    month = f"{function_hour(1) * HOURS_A_MONTH:.2f}"
    yield f"| A reader that waits all month, in a function | **{month}** | | | |"
    for readers in (1, 100, 1000):
        month = f"{container_hour(readers) * HOURS_A_MONTH:.2f}"
        yield f"| The same in one container: {readers:,} | **{month}** | | | |"
    for streams in (1, 10):
        bill = measure_watches(world, streams)
        month, hidden = f"{socket_month(bill):.3f}", f"{socket_month(bill, HIDDEN_PINGS):.3f}"
        counted = _counted(bill, f"in a hidden page {hidden}; {WATCHES} watches: ")
        title = f"The same by a [socket](reference/socket.md), streams: {streams}"
        yield f"| {title} | **{month}** | | {counted} |"


def _counted(bill: Bill, said: str = "") -> str:
    calls = ", ".join(f"{count} × {name}" for name, count in sorted(bill.calls.items()))
    return f"{bill.write_units} / {bill.read_units} | {said}{calls}"
