"""The operations, measured, and the rows of `docs/costs.md` that say what they cost."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from benchmarks import prices
from tests.costs.bill import Bill, open_bill
from tests.support import Process, World, a_key
from tests.wake.support import make_queues
from tidemark.http.socket import SocketEvents
from tidemark.janitor.sweep import sweep
from tidemark.log.tails import RecentBatches
from tidemark.protocol.errors import StreamNotFound
from tidemark.protocol.offset import NOW
from tidemark.protocol.stream_key import ListingRequest, StreamKey
from tidemark.service.catalog import list_streams
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.start_point import find_start, read_back
from tidemark.service.stores import Stores
from tidemark.subscriptions.configuration import SubscriptionConfiguration, SubscriptionKind
from tidemark.subscriptions.lifecycle import subscribe
from tidemark.subscriptions.pending import remind
from tidemark.subscriptions.shared import Settlement
from tidemark.subscriptions.takes import Take, take_now
from tidemark.wake.notifier import sweep_queues

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
    #: What happens before, without a bill.
    prepare: Callable[[Process, StreamKey], object] = lambda _, __: None


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


def take_of(count: int) -> Operation:
    """Ten workers have ten messages each; then others append."""
    name, receipts = f"workers-{count}", list[str]()

    def share(process: Process, key: StreamKey) -> None:
        asked = SubscriptionConfiguration(SubscriptionKind.SHARED, streams=(key.stream_id,), offset="-1")
        subscribe(process.stores, name, asked)
        for _ in range(10):
            receipts.extend(each.receipt for each in take_now(process.stores, name, Take(most=10)).given)
        process.stores.recent = RecentBatches(0)

    def take(process: Process, _: StreamKey) -> None:
        taken = take_now(process.stores, name, Take(Settlement(receipts[-count:]), count))
        assert (len(taken.given), taken.late) == (count, [])

    title, history = f"Take of {count} messages of 300 bytes, with {count} done", (json_event(300),) * 200
    return Operation(title, take, history, sent=30 * count, received=400 * count, prepare=share)


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
    take_of(10),
    take_of(100),
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
    operation.prepare(process, key)
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


# --- rows ----------------------------------------------------------------------------------------


def rows(world: World) -> Iterator[str]:
    """As `docs/costs.md` has them, without those of an idle stack and of `conversations.py`."""
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
