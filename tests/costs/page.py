"""The operations, measured, and the tables that say what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.costs import prices
from tests.costs.bill import Bill, open_bill
from tests.costs.bodies import json_event, random_bytes
from tests.support import Process, World, a_key
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.load import load_head
from tidemark.service.read import read, read_on

#: Of a name such as `chat/6f1e…`, as agents use them.
NAME = "chat/0f8fad5b-d9cb-469f-a165-70867728950e"
Act = Callable[[Process, StreamKey], object]


@dataclass(frozen=True)
class Operation:
    title: str
    act: Act
    #: Of the stream before it, as bodies.
    history: tuple[bytes, ...] = (b"x",)
    warm: bool = True
    #: Bytes of the request's and of the response's body.
    sent: int = 0
    received: int = 0


def _append(body: bytes, title: str, *, warm: bool = True, **more: object) -> Operation:
    return Operation(title, lambda process, key: process.append(key, body, **more), warm=warm, sent=len(body))


def _catch_up(history: tuple[bytes, ...], title: str) -> Operation:
    size = sum(map(len, history))
    return Operation(
        title, lambda process, key: read(process.stores, key, 0), history, warm=False, received=size
    )


LOOK = "A look while waiting"
OPERATIONS = (
    Operation("Create", lambda process, _: process.create(a_key(NAME)), history=()),
    _append(random_bytes(300), "Append, 300 bytes"),
    _append(random_bytes(300), "Append, 300 bytes, by a producer", claim=("writer-1", 0, 0)),
    _append(random_bytes(800), "Append, 800 bytes"),
    _append(json_event(1024), "Append, 1,024 bytes of JSON"),
    _append(random_bytes(1024), "Append, 1,024 bytes that do not deflate"),
    _append(json_event(10 * 1024), "Append, 10 KB of JSON"),
    _append(random_bytes(10 * 1024), "Append, 10 KB that do not deflate"),
    _append(random_bytes(100 * 1024), "Append, 100 KB"),
    _append(random_bytes(300), "Append, 300 bytes, the first of a process", warm=False),
    Operation("Metadata (HEAD)", lambda process, key: load_head(process.stores, key)),
    Operation("Read at the tail", lambda process, key: read(process.stores, key, 1)),
    _catch_up(
        tuple(json_event(1024, number) for number in range(100)), "Catch-up, 100 messages of 1 KB of JSON"
    ),
    _catch_up((random_bytes(1024),) * 100, "Catch-up, 100 messages of 1 KB that do not deflate"),
    _catch_up((random_bytes(60 * 1024),) * 60, "Catch-up, 60 messages of 60 KB that do not deflate"),
    Operation(LOOK, lambda process, key: read_on(process.stores, read(process.stores, key, 1))),
)


def measure(world: World, operation: Operation) -> Bill:
    process, key = world.process(), a_key(NAME)
    process.create(key)
    for body in operation.history:
        process.append(key, body)
    if not operation.warm:
        process = world.process()
    if operation.title == LOOK:
        return _difference(process, key, operation)
    bill = open_bill(process)
    operation.act(process, key)
    return bill


def _difference(process: Process, key: StreamKey, operation: Operation) -> Bill:
    """Of the second look alone."""
    first = read(process.stores, key, 1)
    bill = open_bill(process)
    read_on(process.stores, first)
    assert operation.act is not None
    return bill


def compute_dollars(seconds: float) -> float:
    """Per million."""
    return prices.LAMBDA_REQUEST + seconds * prices.MEMORY_GB * prices.LAMBDA_GB_SECOND * 1e6


def notifier_dollars() -> float:
    """Of an append that has the trigger to itself: an invocation, and a look each for waiters and for
    subscriptions."""
    return compute_dollars(prices.NOTIFIER_SECONDS) + 2 * prices.READ_UNIT


def gigabytes(size: int) -> float:
    """Of a million times `size` bytes."""
    return size * 1e6 / 1e9


def api_dollars(operation: Operation) -> float:
    """The HTTP API counts by 512 KB."""
    largest = max(operation.sent, operation.received, 1)
    return prices.HTTP_API * math.ceil(largest / prices.HTTP_API_BYTES)


def function_dollars(operation: Operation) -> float:
    megabytes = operation.received / 2**20
    return compute_dollars(prices.REQUEST_SECONDS + megabytes * prices.PAGE_SECONDS_PER_MB)


def waking_dollars(operation: Operation) -> float:
    """An append's share of the trigger, where five appends share an invocation."""
    return notifier_dollars() / prices.RECORDS_AN_INVOCATION if operation.title.startswith("Append") else 0.0


def response_bytes(operation: Operation) -> int:
    """Uncompressed, as the HTTP API sends it."""
    is_write = operation.title.startswith(("Append", "Create"))
    headers = prices.WRITE_HEADER_BYTES if is_write else prices.READ_HEADER_BYTES
    return operation.received + headers


def direct_out_dollars(operation: Operation) -> float:
    return gigabytes(response_bytes(operation)) * prices.REGION_OUT_GB


def edge_out_dollars(operation: Operation) -> float:
    """What CloudFront bills for bytes: to the reader, and of a request's body to the origin."""
    out = gigabytes(response_bytes(operation) + prices.EDGE_HEADER_BYTES) * prices.EDGE_OUT_GB
    carried = operation.sent + prices.REQUEST_HEADER_BYTES if operation.sent else 0
    return out + gigabytes(carried) * prices.EDGE_TO_ORIGIN_GB


def origin_dollars(operation: Operation, bill: Bill) -> float:
    """What a request costs that reaches the HTTP API, but for bytes on the way to the client. Per million."""
    parts = api_dollars(operation), function_dollars(operation), waking_dollars(operation)
    return bill.storage_dollars + sum(parts)


def default_dollars(operation: Operation, bill: Bill) -> float:
    """As the template deploys by default: every request through CloudFront. Per million, all in."""
    edge = prices.EDGE_REQUEST + prices.EDGE_FUNCTION + edge_out_dollars(operation)
    return origin_dollars(operation, bill) + edge


def direct_dollars(operation: Operation, bill: Bill) -> float:
    """By the API's own URL (Edge=false, or Edge=optional and ApiUrl). Per million, all in."""
    return origin_dollars(operation, bill) + direct_out_dollars(operation)


def render(bills: dict[str, Bill]) -> str:
    return "\n".join(_lines(bills))


def _lines(bills: dict[str, Bill]) -> Iterator[str]:
    columns = "write units | read units | storage | data out | **as deployed** | by the API's URL"
    yield f"| operation | calls | {columns} |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for operation in OPERATIONS:
        bill = bills[operation.title]
        calls = ", ".join(f"{count} × {name}" for name, count in sorted(bill.calls.items()))
        start = f"| {operation.title} | {calls} | {bill.write_units} | {bill.read_units} "
        if operation.title == LOOK:
            # A part of a request that is counted already.
            yield f"{start}| {bill.storage_dollars:.2f} | – | – | – |"
            continue
        yield (
            f"{start}| {bill.storage_dollars:.2f} | {edge_out_dollars(operation):.2f} "
            f"| **{default_dollars(operation, bill):.2f}** | {direct_dollars(operation, bill):.2f} |"
        )


def operation_named(title: str) -> Operation:
    [found] = [each for each in OPERATIONS if each.title == title]
    return found


def render_append(operation: Operation, bill: Bill) -> str:
    """The arithmetic of one append, as deployed by default and by the API's own URL."""
    storage, api, compute = bill.storage_dollars, api_dollars(operation), function_dollars(operation)
    milliseconds = prices.REQUEST_SECONDS * 1000
    waking, alone = waking_dollars(operation), notifier_dollars()
    edge, direct = default_dollars(operation, bill), direct_dollars(operation, bill)
    edge_bytes, direct_bytes = edge_out_dollars(operation), direct_out_dollars(operation)
    rows = [
        (f"DynamoDB: {bill.write_units} write unit × ${prices.WRITE_UNIT}", storage, storage),
        ("HTTP API", api, api),
        (f"Lambda: a request and {milliseconds:.0f} ms × {prices.MEMORY_GB} GB", compute, compute),
        ("Waking, where five appends share an invocation", waking, waking),
        ("CloudFront: a request and its function", prices.EDGE_REQUEST + prices.EDGE_FUNCTION, 0.0),
        ("Bytes: a response's headers out, and through CloudFront the body in", edge_bytes, direct_bytes),
    ]
    lines = ["| part | as deployed | by the API's URL |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {first:.3f} | {second:.3f} |" for name, first, second in rows]
    lines.append(f"| **all in** | **{edge:.2f}** | **{direct:.2f}** |")
    more = alone - waking
    lines.append(
        f"| all in, where each append has a waking to itself | {edge + more:.2f} | {direct + more:.2f} |"
    )
    return "\n".join(lines)


def render_choices(operation: Operation, bill: Bill) -> str:
    """What a parameter adds to the append, or takes from it. Per million."""
    default = default_dollars(operation, bill)
    more_memory = prices.REQUEST_SECONDS * prices.MEMORY_GB * prices.LAMBDA_GB_SECOND * 1e6
    choices = [
        ("`Edge=optional`, and the writer uses `ApiUrl`", direct_dollars(operation, bill) - default),
        ("`Edge=false`", direct_dollars(operation, bill) - default),
        ("`MemorySize=1024`, at the same time", more_memory),
        ("`MemorySize=256`, at the same time", -more_memory / 2),
        ("`LogLevel=INFO`", gigabytes(prices.LOG_LINE_BYTES) * prices.LOG_GB),
        ("`SystemLogLevel: INFO` (not a parameter: it was so before)",
         gigabytes(prices.PLATFORM_LINES_BYTES) * prices.LOG_GB),
        ("`Tracing=Active`", prices.TRACE * prices.TRACED_SHARE),
    ]  # fmt: skip
    lines = ["| choice | $ per million appends | all in |", "| --- | ---: | ---: |"]
    lines.append(f"| as deployed by default | – | {default:.2f} |")
    lines += [f"| {name} | {dollars:+.2f} | {default + dollars:.2f} |" for name, dollars in choices]
    return "\n".join(lines)
