"""The operations, measured, and the tables that say what they cost."""

from __future__ import annotations

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


def _append(body: bytes, **more: object) -> Act:
    return lambda process, key: process.append(key, body, **more)


OPERATIONS = (
    Operation("Create", lambda process, _: process.create(a_key(NAME)), history=()),
    Operation("Append, 300 bytes", _append(random_bytes(300))),
    Operation("Append, 300 bytes, by a producer", _append(random_bytes(300), claim=("writer-1", 0, 0))),
    Operation("Append, 800 bytes", _append(random_bytes(800))),
    Operation("Append, 1,024 bytes of JSON", _append(json_event(1024))),
    Operation("Append, 1,024 bytes that do not deflate", _append(random_bytes(1024))),
    Operation("Append, 10 KB of JSON", _append(json_event(10 * 1024))),
    Operation("Append, 10 KB that do not deflate", _append(random_bytes(10 * 1024))),
    Operation("Append, 100 KB", _append(random_bytes(100 * 1024))),
    Operation("Append, 300 bytes, the first of a process", _append(random_bytes(300)), warm=False),
    Operation("Metadata (HEAD)", lambda process, key: load_head(process.stores, key)),
    Operation("Read at the tail", lambda process, key: read(process.stores, key, 1)),
    Operation(
        "Catch-up, 100 messages of 1 KB of JSON",
        lambda process, key: read(process.stores, key, 0),
        history=tuple(json_event(1024, number) for number in range(100)),
        warm=False,
    ),
    Operation(
        "Catch-up, 100 messages of 1 KB that do not deflate",
        lambda process, key: read(process.stores, key, 0),
        history=(random_bytes(1024),) * 100,
        warm=False,
    ),
    Operation(
        "A look while waiting",
        lambda process, key: read_on(process.stores, read(process.stores, key, 1)),
    ),
)


def measure(world: World, operation: Operation) -> Bill:
    process, key = world.process(), a_key(NAME)
    process.create(key)
    for body in operation.history:
        process.append(key, body)
    if not operation.warm:
        process = world.process()
    if operation.title == "A look while waiting":
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


def request_dollars() -> float:
    """What every request pays before storage: the HTTP API and the function. Per million."""
    return prices.HTTP_API + compute_dollars(prices.REQUEST_SECONDS)


def notifier_dollars() -> float:
    """Of an append that has the trigger to itself: an invocation, and a look for waiters."""
    return compute_dollars(prices.NOTIFIER_SECONDS) + prices.READ_UNIT


def render(bills: dict[str, Bill]) -> str:
    return "\n".join(_lines(bills))


def _lines(bills: dict[str, Bill]) -> Iterator[str]:
    yield "| operation | calls | write units | read units | storage, $ | with the request, $ |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for title, bill in bills.items():
        calls = ", ".join(f"{count} × {name}" for name, count in sorted(bill.calls.items()))
        total = bill.storage_dollars + (0 if title == "A look while waiting" else request_dollars())
        yield (
            f"| {title} | {calls} | {bill.write_units} | {bill.read_units} "
            f"| {bill.storage_dollars:.2f} | {total:.2f} |"
        )


def render_append(bill: Bill) -> str:
    """The arithmetic of one append, all in."""
    storage, api = bill.storage_dollars, prices.HTTP_API
    compute = compute_dollars(prices.REQUEST_SECONDS)
    alone = notifier_dollars()
    total = storage + api + compute
    milliseconds = prices.REQUEST_SECONDS * 1000
    return "\n".join(
        [
            "| part | $ per million |",
            "| --- | ---: |",
            f"| DynamoDB: {bill.write_units} write unit × ${prices.WRITE_UNIT} | {storage:.3f} |",
            f"| HTTP API | {api:.3f} |",
            f"| Lambda: a request and {milliseconds:.0f} ms × {prices.MEMORY_GB} GB | {compute:.3f} |",
            f"| Waking, where a hundred appends share an invocation | {alone / 100:.3f} |",
            f"| **all in** | **{total + alone / 100:.2f}** |",
            f"| Waking, where each append has one to itself | {alone:.3f} |",
            f"| all in, then | {total + alone:.2f} |",
        ]
    )
