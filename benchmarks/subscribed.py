"""What subscriptions that follow a stream add to an append to it, and what they cost the notifier:
`python -m benchmarks.subscribed`.

A table for each number of subscriptions, all of whose patterns match. The warm append goes through the
`write` function's own handler, in turn for each table, so that none has the quiet minute. What is told is
the CPU of this process; the engines are processes of their own. The notifier gets the records of ten
appends at once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.cpu import ENVIRONMENT, Context, cpu_microseconds, event_of, load_handler, send
from tests.stack.engines import LocalServices

NUMBERS: Final = (0, 1, 100)
ROUNDS: Final = 15
RECORDS: Final = 10
APPEND: Final = event_of("post-append.json")
PATH: Final = APPEND["rawPath"].removeprefix("/v1/stream/")


def main() -> int:
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as directory, LocalServices(data_dir=Path(directory)) as services:
        os.environ.update(services.environment)
        tables = {number: make_table(services, number) for number in NUMBERS}
        titles = "calls of Python | warm append, µs | beside none, pair by pair | notifier, µs a record"
        print(f"| subscriptions that match | {titles} |")
        made = [calls_of(append) for append, _ in tables.values()]
        print("| ---: | ---: | ---: | ---: | ---: |")
        appends = in_turn([append for append, _ in tables.values()], times=200)
        notices = in_turn([notify for _, notify in tables.values()], times=5)
        for number, count, append, notice in zip(NUMBERS, made, appends, notices, strict=True):
            ratio = statistics.median(each / alone for each, alone in zip(append, appends[0], strict=True))
            print(f"| {number} | {count} | {min(append):.0f} | {ratio:.3f} | {min(notice) / RECORDS:.0f} |")
    return 0


def make_table(services: LocalServices, subscriptions: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """An append and a notification, each as often as it is called."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    services.create_table(name)
    services.create_bucket(name)
    environment = {
        "TABLE_NAME": name,
        "BUCKET_NAME": name,
        "QUEUE_PREFIX": f"{name}-",
        "SUBSCRIPTIONS_QUEUE_URL": services.create_queue(f"{name}-subscriptions"),
    }
    os.environ.update(environment)
    write, notifier, context = load_handler("write"), load_handler("notifier"), Context()
    send(write, context, event_of("put-create.json"), {200, 201})
    for number in range(subscriptions):
        send(write, context, subscription(number), {201})

    def append() -> None:
        send(write, context, APPEND, {200, 204})

    def notify() -> None:
        answer = notifier({"Records": [record(start) for start in range(RECORDS)]}, context)
        assert answer == {"batchItemFailures": []}, answer

    for _ in range(3):
        append()
        notify()
    return append, notify


def subscription(number: int) -> dict[str, Any]:
    body = {"type": "pull-wake", "pattern": "**", "wake_stream": f"wake/{number}"}
    event: dict[str, Any] = json.loads(json.dumps(APPEND).replace(PATH, f"__ds/subscriptions/s{number}"))
    event |= {"body": json.dumps(body), "isBase64Encoded": False, "routeKey": "PUT /{proxy+}"}
    event["requestContext"]["http"]["method"] = "PUT"
    event["headers"] |= {"content-type": "application/json"}
    return event


def record(start: int) -> dict[str, Any]:
    """Of an append, as the table's stream tells of it."""
    keys = {"pk": {"S": f"log/v1/{PATH}#WG7KCNdq5BW2agcN"}, "sk": {"S": f"{start:016d}"}}
    return {
        "eventID": f"{start:032d}",
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "dynamodb": {"Keys": keys, "SequenceNumber": f"{start:021d}"},
    }


def calls_of(call: Callable[[], None]) -> int:
    """How many functions Python calls meanwhile, its own in C with them: the least of several times."""
    counted = []
    for _ in range(20):
        counts = [0]

        def count(_frame: object, event: str, _argument: object, counts: list[int] = counts) -> None:
            counts[0] += event in {"call", "c_call"}

        sys.setprofile(count)
        call()
        sys.setprofile(None)
        counted.append(counts[0])
    return min(counted)


def in_turn(calls: Sequence[Callable[[], None]], times: int) -> list[list[float]]:
    """Microseconds of CPU a call in each round, for each of them."""
    measured: list[list[float]] = [[] for _ in calls]
    for number in range(ROUNDS):
        # Forwards and backwards: whoever comes first in a round meets another machine.
        order = list(enumerate(calls))
        for index, call in order if number % 2 else reversed(order):
            measured[index].append(cpu_microseconds(call, times))
    return measured


if __name__ == "__main__":
    sys.exit(main())
