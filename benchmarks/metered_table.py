"""A simulated DynamoDB table that takes time, counts capacity units, and throttles a hot partition."""

from __future__ import annotations

import random
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from math import log
from statistics import NormalDist
from typing import Any, Final
from zlib import crc32

import orjson

from tests.simulation.table import SimulatedTable
from tests.simulation.tasks import VirtualTime
from tests.support import refusal
from tidemark.log.schema import PK, SK

#: A new table has so many partitions; a key's hash says in which one its items are.
PARTITIONS: Final = 4
#: What DynamoDB gives one partition in a second. (A table's adaptive capacity moves hot keys to partitions
#: of their own; beyond these figures it gives one key nothing more.)
WRITE_UNITS: Final = 1000.0
READ_UNITS: Final = 3000.0
#: Units that an idle partition saves up: those of one second.
BURST_SECONDS: Final = 1.0

_READS: Final = frozenset({"GetItem", "Query"})


Latency = Callable[[], float]
"""Draws the seconds that a call takes."""

#: The 99th percentile of a normal distribution, in standard deviations.
_P99: Final = NormalDist().inv_cdf(0.99)


def constant(seconds: float) -> Latency:
    return lambda: seconds


def lognormal(p50: float, p99: float, chance: random.Random) -> Latency:
    """In seconds; as DynamoDB's calls are: most are near the median, and one in a hundred takes `p99`."""
    spread = log(p99 / p50) / _P99
    return lambda: chance.lognormvariate(log(p50), spread)


def with_stalls(latency: Latency, share: float, seconds: float, chance: random.Random) -> Latency:
    """A share of the calls takes so many seconds more."""
    return lambda: latency() + (seconds if chance.random() < share else 0.0)


class _Bucket:
    """A token bucket. As DynamoDB's, it lets a request through while it is not empty, and the request may
    cost more than is left."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate * BURST_SECONDS
        self._at = 0.0

    def has_tokens(self, now: float) -> bool:
        self._tokens = min(self._rate * BURST_SECONDS, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens > 0

    def take(self, units: float) -> None:
        self._tokens -= units


class MeteredTable:
    """`send` is the seam of `tidemark.aws.dynamodb.DynamoDB`. `latency` draws the seconds of a call, which
    takes effect after half of them.

    `counts`: calls as `writes` and `reads`, `write_units`, `read_units` (reads are consistent: one unit for
    each 4 KB), and calls that were `throttled`.
    """

    def __init__(self, time: VirtualTime, latency: Latency) -> None:
        self._time = time
        self._latency = latency
        self._table = SimulatedTable(lambda: round(time.now * 1000))
        self._sizes: dict[tuple[str, str], int] = {}
        self._buckets: dict[tuple[int, float], _Bucket] = {}
        self.counts: Counter[str] = Counter()

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        seconds = self._latency()
        self._time.sleep(seconds / 2)
        answer = self._answer(operation, body)
        self._time.sleep(seconds / 2)
        return answer

    def _answer(self, operation: str, body: bytes) -> tuple[int, bytes]:
        arguments = orjson.loads(body)
        rate = READ_UNITS if operation in _READS else WRITE_UNITS
        partitions = _partitions(operation, arguments)
        self.counts["reads" if operation in _READS else "writes"] += 1
        if not all(self._bucket(pk, rate).has_tokens(self._time.now) for pk in partitions):
            self.counts["throttled"] += 1
            return _throttled(operation, arguments)
        if operation in _READS:
            answer = self._table.send(operation, body)
            spent = {partitions[0]: self._read_units(arguments, answer[1])}
        else:
            before = self._written(operation, arguments)
            answer = self._table.send(operation, body)
            self._measure(operation, arguments)
            spent = _write_units(operation, before, self._written(operation, arguments))
        self.counts["read_units" if operation in _READS else "write_units"] += sum(spent.values())
        for pk, units in spent.items():
            self._bucket(pk, rate).take(units)
        return answer

    def _bucket(self, pk: str, rate: float) -> _Bucket:
        place = (crc32(pk.encode()) % PARTITIONS, rate)
        return self._buckets.setdefault(place, _Bucket(rate))

    def _measure(self, operation: str, arguments: Any) -> None:
        """Remember the sizes of what was written: they are asked for much more often than they change."""
        for write in _writes(operation, arguments):
            key = write.get("Item") or write["Key"]
            self._sizes[_place(key)] = item_size(self._table.find(key) or {})

    def _written(self, operation: str, arguments: Any) -> list[tuple[str, int]]:
        """Partition and size of each item that the request writes: of what is there, or of what it brings."""
        sizes = []
        for write in _writes(operation, arguments):
            key = write.get("Item") or write["Key"]
            found = self._sizes.get(_place(key)) or item_size({PK: key[PK], SK: key[SK]})
            sizes.append((key[PK]["S"], max(found, item_size(write.get("Item", {})))))
        return sizes

    def _read_units(self, arguments: Any, answer: bytes) -> int:
        """Billed by the items' whole sizes, whatever is projected."""
        if "Key" in arguments:
            size = self._sizes.get(_place(arguments["Key"]), 0)
        else:
            pk = _partitions("Query", arguments)[0]
            size = sum(self._sizes.get((pk, item[SK]["S"]), 0) for item in orjson.loads(answer)["Items"])
        return max(1, -(-size // 4096))


def _place(key: Any) -> tuple[str, str]:
    return key[PK]["S"], key[SK]["S"]


def item_size(item: dict[str, Any]) -> int:
    """In bytes, as DynamoDB counts: names, and values without their types."""
    return sum(len(name.encode()) + _value_size(value) for name, value in item.items())


def _value_size(value: dict[str, Any]) -> int:
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return len(content) // 2 + 1
        case "B":
            return len(b64decode(content))
        case "BOOL":
            return 1
    raise NotImplementedError(f"no item has an attribute of type {kind}")


def _writes(operation: str, arguments: Any) -> list[Any]:
    if operation == "TransactWriteItems":
        return [next(iter(write.values())) for write in arguments["TransactItems"]]
    if operation == "BatchWriteItem":
        [requests] = arguments["RequestItems"].values()
        return [next(iter(request.values())) for request in requests]
    return [arguments]


def _partitions(operation: str, arguments: Any) -> list[str]:
    if operation == "Query":
        return [arguments["ExpressionAttributeValues"][":pk"]["S"]]
    return [(write.get("Item") or write["Key"])["pk"]["S"] for write in _writes(operation, arguments)]


def _write_units(
    operation: str, before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> dict[str, int]:
    """The larger of what was there and what is there now, by the kilobyte; a transaction costs twice. A
    refused condition costs as much as the write."""
    times = 2 if operation == "TransactWriteItems" else 1
    units: Counter[str] = Counter()
    for (pk, old), (_, new) in zip(before, after, strict=True):
        units[pk] += times * max(1, -(-max(old, new) // 1024))
    return units


def _throttled(operation: str, arguments: Any) -> tuple[int, bytes]:
    if operation != "TransactWriteItems":
        return refusal("ProvisionedThroughputExceededException")
    reasons = [{"Code": "ThrottlingError"} for _ in arguments["TransactItems"]]
    return refusal("TransactionCanceledException", CancellationReasons=reasons)
