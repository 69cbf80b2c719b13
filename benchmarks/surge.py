"""The first seconds after a deployment, in virtual time: `python -m benchmarks.surge`.

All environments are new, know no stream's tail, and get an append in the same ten milliseconds: all to one
stream, or each to a stream of its own. What runs is `tidemark.service.append.append` on the table of
`benchmarks/contention.py`: 5 ms a call, and four partitions that take 1,000 write units and 3,000 read units
a second each. Who is answered 429 asks again after as many seconds as `Retry-After` says.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.contention import BODY_BYTES, CONTENT_TYPE, LATENCY_SECONDS, new_process
from benchmarks.metered_table import MeteredTable, constant
from tests.simulation.tasks import VirtualTime
from tidemark.protocol.errors import Busy
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import CreateRequest, create

ONE_STREAM: Final = (32, 128, 512)
STREAM_EACH: Final = (1_000, 4_000)
_WITHIN_SECONDS: Final = 0.01
#: Between the creations and the surge: partitions have saved up what they can.
_REST_SECONDS: Final = 30.0
_LONGEST_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Surge:
    """`half_ms` and `last_ms`: until half of the appends, and all of them, were acknowledged. `refused`
    counts answers of 429, and `calls` those to the table, tries again included."""

    environments: int
    streams: int
    half_ms: float
    last_ms: float
    refused: int
    calls: int


def surge(environments: int, streams: int, seed: int = 1) -> Surge:
    chance, time = random.Random(seed), VirtualTime()
    random.seed(chance.random())  # The jitter of pauses and retries.
    table = MeteredTable(time, constant(LATENCY_SECONDS))
    keys = [StreamKey(PLAIN_BUCKET, f"surge-{number}") for number in range(streams)]
    acknowledged: list[float] = []
    refused = 0

    def create_all() -> None:
        stores = new_process(time, table, chance)
        for key in keys:
            create(stores, key, CreateRequest(CONTENT_TYPE, NEVER, closed=False))
        time.sleep(_REST_SECONDS)

    def append_until_acknowledged(key: StreamKey) -> None:
        nonlocal refused
        stores, body = new_process(time, table, chance), chance.randbytes(BODY_BYTES)
        while True:
            try:
                append(stores, key, [AppendRequest(CONTENT_TYPE, body)])
            except Busy as busy:
                refused += 1
                time.sleep(float(busy.headers["Retry-After"]))
            else:
                acknowledged.append(time.now)
                return

    time.spawn(create_all)
    time.run(until=streams * LATENCY_SECONDS + 2 * _REST_SECONDS)
    began = time.now
    table.counts.clear()
    for number in range(environments):
        key = keys[number % streams]
        time.spawn(
            lambda key=key: append_until_acknowledged(key),  # type: ignore[misc]
            after=chance.uniform(0, _WITHIN_SECONDS),
        )
    time.run(until=began + _LONGEST_SECONDS)
    assert len(acknowledged) == environments, "everybody is acknowledged in the end"
    taken = [round((each - began) * 1000, 1) for each in sorted(acknowledged)]
    calls = table.counts["reads"] + table.counts["writes"]
    return Surge(environments, streams, taken[len(taken) // 2], taken[-1], refused, calls)


def all_surges() -> Iterator[Surge]:
    yield from (surge(environments, 1) for environments in ONE_STREAM)
    yield from (surge(environments, environments) for environments in STREAM_EACH)


def line(row: Surge) -> str:
    times = f"{row.half_ms:,.0f} | {row.last_ms:,.0f}"
    calls = f"{row.calls / row.environments:.1f}"
    return f"| {row.environments:,} | {row.streams:,} | {times} | {row.refused:,} | {calls} |"


def main() -> int:
    print("| environments | streams | half, ms | all, ms | answers of 429 | calls an append |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in all_surges():
        print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
