"""Many independent writers on one stream, in virtual time: `python -m benchmarks.contention`.

Each writer is a Lambda environment of its own: its own `Stores`, one request at a time, the next one 8 ms
after the answer. What runs is `tidemark.service.append.append` on a simulated table: a call takes 5 ms
(`--jitter 0.2`: 4 to 6 ms), and one partition takes 1,000 write units and 3,000 read units in a second. Only
calls and pauses take time, so a row is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from benchmarks.metered_table import MeteredTable
from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.virtual_time import VirtualTime
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import CreateRequest, create
from tidemark.service.stores import Stores

WRITERS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
LATENCY_SECONDS: Final = 0.005
BETWEEN_REQUESTS_SECONDS: Final = 0.008
#: Not counted: the writers learn the stream's state, and spend what the partition has saved up.
WARM_UP_SECONDS: Final = 3.0
SECONDS: Final = 10.0
BODY_BYTES: Final = 100
STREAM: Final = StreamKey(PLAIN_BUCKET, "contended")
CONTENT_TYPE: Final = parse_content_type("application/octet-stream")


@dataclass(frozen=True, slots=True)
class Row:
    """`write_units`, `reads` (calls), `writes` (calls) and `read_units` are per append that landed; `refused`
    counts appends that were not acknowledged: answered with 429 or 503."""

    writers: int
    appends_per_second: float
    p50_ms: float
    p99_ms: float
    write_units: float
    reads: float
    refused: int
    writes: float
    read_units: float


class Contest:
    """One stream, and the writers that append to it."""

    def __init__(self, writers: int, seed: int = 1, jitter: float = 0.0, apart_ms: int = 0) -> None:
        self._writers, self._apart_ms = writers, apart_ms
        self._random = random.Random(seed)
        self.time = VirtualTime()
        self.table = MeteredTable(self.time, LATENCY_SECONDS, jitter, seed)
        self._milliseconds: list[float] = []
        self._refused = 0

    def run(self, seconds: float = SECONDS) -> Row:
        random.seed(self._random.random())  # The jitter of pauses and retries.
        self.time.spawn(
            lambda: create(
                new_process(self.time, self.table, self._random),
                STREAM,
                CreateRequest(CONTENT_TYPE, NEVER, closed=False),
            )
        )
        self.time.run(until=0.5)
        for number in range(self._writers):
            write = partial(self._write_for_ever, self._apart_ms * (number % 2))
            self.time.spawn(write, after=self._random.uniform(0, BETWEEN_REQUESTS_SECONDS))
        self.time.run(until=WARM_UP_SECONDS)
        self._milliseconds, self._refused, self.table.counts = [], 0, Counter()
        self.time.run(until=WARM_UP_SECONDS + seconds)
        return self._row(seconds)

    def _write_for_ever(self, ahead_ms: int) -> None:
        stores = new_process(self.time, self.table, self._random, ahead_ms)
        body = self._random.randbytes(BODY_BYTES)
        while True:
            started = self.time.now
            try:
                append(stores, STREAM, [AppendRequest(CONTENT_TYPE, body)])
            except ProtocolError:
                self._refused += 1
            else:
                self._milliseconds.append((self.time.now - started) * 1000)
            self.time.sleep(BETWEEN_REQUESTS_SECONDS)

    def _row(self, seconds: float) -> Row:
        taken, counts = sorted(self._milliseconds), self.table.counts
        landed = len(taken)
        return Row(
            writers=self._writers,
            appends_per_second=round(landed / seconds, 1),
            p50_ms=round(taken[landed // 2], 1),
            p99_ms=round(taken[landed * 99 // 100], 1),
            write_units=round(counts["write_units"] / landed, 2),
            reads=round(counts["reads"] / landed, 2),
            refused=self._refused,
            writes=round(counts["writes"] / landed, 2),
            read_units=round(counts["read_units"] / landed, 2),
        )


def new_process(time: VirtualTime, table: MeteredTable, chance: random.Random, ahead_ms: int = 0) -> Stores:
    """The stores of a process that knows nothing yet."""
    dynamodb, bucket = DynamoDB(table.send), SimulatedBucket()
    dynamodb.sleep, dynamodb.now = time.sleep, lambda: time.now
    return Stores(
        DynamoDBTable(dynamodb, "simulated"),
        SimulatedBlobs(bucket, Objects(bucket.send), lambda: None),
        clock_ms=lambda: 1_800_000_000_000 + ahead_ms + round(time.now * 1000),
        new_id=lambda: f"{chance.getrandbits(64):016x}",
        concurrency=time,
    )


def _line(row: Row) -> str:
    costs = f"{row.write_units:.2f} | {row.writes:.2f} | {row.reads:.2f} | {row.read_units:.2f}"
    times = f"{row.appends_per_second:,.0f} | {row.p50_ms:,.0f} | {row.p99_ms:,.0f}"
    return f"| {row.writers} | {times} | {costs} | {row.refused} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contention", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the rows once more, as JSON in the last line")
    parser.add_argument("--writers", type=int, nargs="*", default=WRITERS, help="how many, one row for each")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of virtual time")
    parser.add_argument("--seed", type=int, default=1, help="when the writers begin, and how calls vary")
    parser.add_argument("--jitter", type=float, default=0.0, help="by what share of its time a call varies")
    parser.add_argument("--apart", type=float, default=0.0, help="seconds that every second clock is ahead")
    asked = parser.parse_args()
    print("Write units, writes, reads and read units are per append.\n")
    print("| writers | appends/s | p50 ms | p99 ms | write units | writes | reads | read units | refused |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows = []
    for writers in asked.writers:
        row = Contest(writers, asked.seed, asked.jitter, round(asked.apart * 1000)).run(asked.seconds)
        rows.append(row)
        print(_line(row), flush=True)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
