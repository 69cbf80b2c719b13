"""The demand of a large system on AWS, and the quota that it reaches first: `python -m benchmarks.scale`.

Calls and units are those that tests count (`tests/costs`, `tests/wake/test_idle_cost.py`); prices are
`benchmarks/prices.py`. `docs/internals/scale.md` shows the tables; a test holds the page to them. Nothing
here was measured on AWS.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Final

from benchmarks import prices
from tests.costs.bill import Bill
from tests.costs.page import (
    HOURS_A_MONTH,
    compute_dollars,
    container_hour,
    edge_request,
    function_hour,
    gigabyte_seconds,
    socket_month,
)
from tidemark.wake import queue

#: Calls of one reader's long-polls per minute, while nobody writes (`docs/live.md`).
POLL_GET_ITEMS: Final = 2.4
POLL_QUERIES: Final = 12.0
POLL_PUT_ITEMS: Final = 2.0
POLL_RECEIVES: Final = 4.8
LONG_POLL_SECONDS: Final = 25.0
#: Records in an invocation of the notifier, and the batches of a shard that run at the same time.
BATCH_RECORDS: Final = 100
BATCHES_AT_ONCE: Final = 10
#: A batch of a hundred streams: its queries, and then its messages, 32 at a time at 5 ms.
NOTIFIER_SECONDS: Final = 2 * math.ceil(BATCH_RECORDS / 32) * 0.005
SENDS_AT_ONCE: Final = 32
SEND_SECONDS: Final = 0.01
HOUR: Final = 3600


@dataclass(frozen=True)
class Load:
    """Appends are spread evenly over all streams, and so are readers; appends take one write unit each."""

    streams: int = 1_000_000
    appends_per_second: float = 10_000
    waiting_readers: int = 100_000
    #: The share of appends in an environment that knows the stream's tail, and does not read the tail first.
    known_tails: float = 0.0


@dataclass(frozen=True)
class Demand:
    """The demand per second of a load. `dollars` is the cost per hour."""

    polls: float
    write_units: float
    read_units: float
    write_environments: float
    notifier_environments: float
    queue_calls: float
    dollars_of: dict[str, float]

    @property
    def dollars(self) -> float:
        return sum(self.dollars_of.values())


def demand_of(load: Load) -> Demand:
    appends, readers = load.appends_per_second, load.waiting_readers
    # A poll ends with the stream's next append, or after its time.
    appended = appends / load.streams
    ended_by_time = math.exp(-appended * LONG_POLL_SECONDS)
    polls = readers * (appended / (1 - ended_by_time) if appended else 1 / LONG_POLL_SECONDS)
    woken = readers * appended
    # A poll that ends early begins anew with the first reads of one.
    more = max(0.0, polls - readers / LONG_POLL_SECONDS)
    looks = readers * (POLL_GET_ITEMS + POLL_QUERIES) / 60 + 2 * more + woken
    unknown = appends * (1 - load.known_tails)
    write_units = appends + readers * POLL_PUT_ITEMS / 60
    read_units = looks + 2 * unknown + appends
    batches = appends / BATCH_RECORDS
    queue_calls = readers * POLL_RECEIVES / 60 + 2 * woken
    requests = appends + polls
    write_environments = appends * prices.REQUEST_SECONDS * (2 - load.known_tails)
    notifier_environments = batches * NOTIFIER_SECONDS
    gb = prices.MEMORY_GB * prices.LAMBDA_GB_SECOND * HOUR
    million = HOUR / 1e6
    dollars_of = {
        "waiting: Lambda's memory": readers * gb,
        "requests of CloudFront, and of the HTTP API": (
            requests * (prices.EDGE_REQUEST + prices.EDGE_FUNCTION) + appends * prices.HTTP_API
        )
        * million,
        "Lambda: requests, writes and the notifier": (requests + batches) * prices.LAMBDA_REQUEST * million
        + (write_environments + notifier_environments) * gb,
        "DynamoDB": (write_units * prices.WRITE_UNIT + read_units * prices.READ_UNIT) * million,
        "SQS": queue_calls * prices.SQS_CALL * million,
    }
    return Demand(
        polls, write_units, read_units, write_environments, notifier_environments, queue_calls, dollars_of
    )


def socket_dollars_of(load: Load) -> dict[str, float]:
    """Return the dollars per hour by row, if readers wait by sockets, not long-polls, each at one stream."""
    woken = load.waiting_readers * load.appends_per_second / load.streams * HOUR / 1e6
    watches = Bill(write_units=4, read_units=9)
    return {
        "sockets: minutes, pings and watches": load.waiting_readers * socket_month(watches) / HOURS_A_MONTH,
        "wake-ups: a query of the tail, a message": woken * WAKE_UP,
        "a read for each wake-up": woken * READ,
        "appends": demand_of(replace(load, waiting_readers=0)).dollars,
    }


#: Dollars per million, of a wake-up by a socket: the notifier's query and its call, and the message. And of
#: the read that it leads to, through CloudFront.
WAKE_UP: Final = (
    prices.READ_UNIT
    + SEND_SECONDS * prices.MEMORY_GB * prices.LAMBDA_GB_SECOND * 1e6
    + (prices.SOCKET_MESSAGE)
)
READ: Final = (
    prices.EDGE_REQUEST
    + prices.EDGE_FUNCTION
    + prices.HTTP_API
    + compute_dollars(prices.REQUEST_SECONDS)
    + 2 * prices.READ_UNIT
)


#: Per million, of a reader that a queue wakes: a message sent and received, and the consistent read.
WAKE_BY_QUEUE: Final = 2 * prices.SQS_CALL + prices.READ_UNIT


def event_stream_wins_from(by_socket: float) -> float:
    """Wake-ups a second, from which on an event stream is cheaper than a socket, whose wake-ups cost
    `by_socket` dollars a million: an event stream's function is billed for the hour, whatever comes. Messages
    wake the function; while data come fast, it polls instead."""
    second = function_hour(1) * 1e6 / HOUR
    by_polls = (second + prices.READ_UNIT / queue.POLL_SECONDS) / by_socket
    fast = (queue.FAST_NEWS - 1) * 1000 / queue.FAST_MS
    return min(second / (by_socket - WAKE_BY_QUEUE), max(by_polls, fast))


def crowd_dollars(readers: int = 1_000) -> dict[str, float]:
    """Return the dollars per month of readers of one stream with an append per second, without the data."""
    woken = readers * HOURS_A_MONTH * HOUR / 1e6
    memory = readers * HOURS_A_MONTH * HOUR / 1e6 * gigabyte_seconds(prices.LIVE_GB)
    # Each poll begins with one GetItem and two queries.
    poll = prices.LAMBDA_REQUEST + WAKE_BY_QUEUE + 3 * prices.READ_UNIT
    watches = Bill(write_units=4, read_units=9)
    container = container_hour(readers) * HOURS_A_MONTH
    return {
        "long-polls, each in a function": memory + woken * (edge_request() + poll),
        "long-polls, if CloudFront makes one request of all": woken * edge_request()
        + (memory + woken * poll) / readers,
        "event streams, each in a function": function_hour(readers) * HOURS_A_MONTH + woken * WAKE_BY_QUEUE,
        "sockets, with the data in the message": readers * socket_month(watches)
        + woken * prices.SOCKET_MESSAGE,
        "long-polls at one container": container + woken * edge_request(),
        "event streams at one container": container + woken / readers * WAKE_BY_QUEUE,
    }


def render_crowd() -> str:
    lines = [f"| {way} | {math.floor(dollars + 0.5):,} |" for way, dollars in crowd_dollars().items()]
    return "\n".join(["| a thousand readers, an append a second | $ a month |", "| --- | ---: |", *lines])


@dataclass(frozen=True)
class Quota:
    """A default quota of an account or a stack, and the need of a load."""

    name: str
    given: float
    needed: float
    remedy: str

    @property
    def times(self) -> float:
        return self.needed / self.given


def quotas_of(load: Load) -> list[Quota]:
    """Return the quotas; the one that is reached first comes first."""
    asked = demand_of(load)
    requests = load.appends_per_second + asked.polls
    environments = load.waiting_readers + asked.write_environments + asked.notifier_environments
    found = [
        Quota(
            "Lambda: concurrent executions", 1_000, environments, "readers in containers, or a request to AWS"
        ),
        # Long-polls do not pass the HTTP API.
        Quota("the template's `RequestsPerSecond`", 1_000, load.appends_per_second, "the parameter"),
        Quota(
            "HTTP API: requests a second, of the account",
            10_000,
            load.appends_per_second,
            "a request to AWS; cells",
        ),
        Quota(
            "DynamoDB: write units a second, of a table", 40_000, asked.write_units, "a request to AWS; cells"
        ),
        Quota(
            "DynamoDB: read units a second, of a table", 40_000, asked.read_units, "a request to AWS; cells"
        ),
        Quota("CloudFront: requests a second, of a distribution", 250_000, requests, "a request to AWS"),
    ]
    return sorted(found, key=lambda quota: -quota.times)


def render_dollars(dollars_of: dict[str, float]) -> str:
    lines = [f"| {name} | {value:,.{0 if value >= 10 else 1}f} |" for name, value in dollars_of.items()]
    together = f"| **together** | **{sum(dollars_of.values()):,.0f}** |"
    return "\n".join(["| | $ an hour |", "| --- | ---: |", *lines, together])


def render_quotas(load: Load) -> str:
    lines = [
        f"| {quota.name} | {quota.given:,.0f} | {quota.needed:,.0f} | {quota.times:.2f} | {quota.remedy} |"
        for quota in quotas_of(load)
    ]
    return "\n".join(
        ["| quota | given | needed | times | what raises it |", "| --- | ---: | ---: | ---: | --- |", *lines]
    )


LARGE: Final = Load()


def render_all() -> list[str]:
    return [
        render_dollars(demand_of(LARGE).dollars_of),
        render_dollars(socket_dollars_of(LARGE)),
        render_quotas(LARGE),
    ]


def main() -> int:
    print("\n\n".join([*render_all(), render_crowd()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
