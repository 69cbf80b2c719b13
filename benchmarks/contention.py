"""Many independent writers on one stream, in virtual time: `python -m benchmarks.contention`.

Each writer is a Lambda environment of its own: its own `Stores`, one request at a time, the next one
`--think` seconds after the answer, or `--every` so many seconds (an open loop). One that is refused waits as
long as `Retry-After` says. What runs is
`tidemark.service.append.append` on a simulated table whose calls take as long as DynamoDB's do (lognormal,
p50 4 ms, p99 25 ms; S3's 25 and 100 ms). One partition takes 1,000 write units and 3,000 read units in a
second. Only calls and pauses take time, so a row is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, product, repeat
from typing import Final

from benchmarks.metered_table import Latency, MeteredTable, constant, lognormal, with_stalls
from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.tasks import VirtualTime
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.protocol.errors import OutcomeUnknown, ProtocolError
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.producer import Claim
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import CreateRequest, create
from tidemark.service.stores import Stores

WRITERS: Final = (8, 32, 128, 512)
BODY_BYTES: Final = 100
SIZES: Final = (50, 1024, 4096, 65_536)
LATENCY_SECONDS: Final = 0.005
THINK_SECONDS: Final = 0.008
#: Not counted: the writers learn the stream's state, and spend what the partition has saved up.
WARM_UP_SECONDS: Final = 4.0
SECONDS: Final = 2.0
STREAM: Final = StreamKey(PLAIN_BUCKET, "contended")
CONTENT_TYPE: Final = parse_content_type("application/octet-stream")


@dataclass(frozen=True, slots=True)
class Weather:
    """How long calls of the table and of S3 take: `constant`, 5 ms and no time; `lognormal`; or that with
    `stalls` of a second, in one of a thousand calls. Every second clock is `apart_s` ahead."""

    name: str = "lognormal"
    apart_s: float = 0.0

    def table(self, chance: random.Random) -> Latency:
        if self.name == "constant":
            return constant(LATENCY_SECONDS)
        usual = lognormal(0.004, 0.025, chance)
        return with_stalls(usual, 0.001, 1.0, chance) if self.name == "stalls" else usual

    def s3(self, chance: random.Random) -> Latency:
        return constant(0.0) if self.name == "constant" else lognormal(0.025, 0.1, chance)


STEADY: Final = Weather("constant")
WEATHER: Final = Weather()


@dataclass(frozen=True, slots=True)
class Load:
    """What each writer sends. `think_s` is between an answer and the next append; with `every_s` an append
    begins so often, or as soon as the one before it is answered."""

    bytes: int = BODY_BYTES
    producers: bool = False
    think_s: float = THINK_SECONDS
    every_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """`write_units`, `reads` (calls), `writes` (calls) and `read_units` are per append that landed; `refused`
    counts appends that were not acknowledged: answered with 429 or 503, of these `unknown` with an unknown
    outcome. `least_share` is what the writer with the fewest got beside the median."""

    writers: int
    appends_per_second: float
    p50_ms: float
    p99_ms: float
    write_units: float
    reads: float
    refused: int
    writes: float
    read_units: float
    unknown: int
    least_share: float
    bytes: int
    producers: bool
    latency: str
    think_s: float


class Contest:
    """One stream, and the writers that append to it."""

    def __init__(
        self, writers: int, weather: Weather = WEATHER, load: Load | None = None, seed: int = 1
    ) -> None:
        self._writers = writers
        self._weather = weather
        self._load = load or Load()
        self._random = random.Random(seed)
        self.time = VirtualTime()
        self.table = MeteredTable(self.time, weather.table(random.Random(seed)))
        self._bucket = SimulatedBucket()
        self._milliseconds: list[float] = []
        self._refused: Counter[type[ProtocolError]] = Counter()
        self._landed: Counter[int] = Counter()

    def run(self, seconds: float = SECONDS) -> Row:
        random.seed(self._random.random())  # The jitter of pauses and retries.
        self.time.spawn(
            lambda: create(self._process(), STREAM, CreateRequest(CONTENT_TYPE, NEVER, closed=False))
        )
        self.time.run(until=0.5)
        spread = self._load.every_s or THINK_SECONDS
        for writer in range(self._writers):
            self.time.spawn(partial(self._write_for_ever, writer), self._random.uniform(0, spread))
        self.time.run(until=WARM_UP_SECONDS)
        self._milliseconds, self.table.counts = [], Counter()
        self._refused.clear()
        self._landed.clear()
        self.time.run(until=WARM_UP_SECONDS + seconds)
        return self._row(seconds)

    def _process(self, number: int = 0) -> Stores:
        s3 = self._weather.s3(self._random)
        stores = new_process(self.time, self.table, self._random, self._bucket, lambda: self.time.sleep(s3()))
        if number % 2:
            clock_ms, ahead_ms = stores.clock_ms, round(self._weather.apart_s * 1000)
            stores.clock_ms = lambda: clock_ms() + ahead_ms
        return stores

    def _write_for_ever(self, writer: int) -> None:
        stores, load = self._process(writer), self._load
        body = self._random.randbytes(load.bytes)
        claims: Iterator[Claim | None] = repeat(None)
        if load.producers:
            claims = (Claim(f"producer-{writer:03}", 0, number) for number in count())
        claim, due = next(claims), self.time.now
        while True:
            started = self.time.now
            try:
                append(stores, STREAM, [AppendRequest(CONTENT_TYPE, body, claim=claim)])
            except ProtocolError as refused:  # Sent again, as a producer must: its number is still free.
                self._refused[type(refused)] += 1
                self.time.sleep(float(refused.headers["Retry-After"]))
            else:
                self._milliseconds.append((self.time.now - started) * 1000)
                self._landed[writer] += 1
                claim = next(claims)
            due += load.every_s or 0.0
            self.time.sleep(load.think_s if load.every_s is None else max(0.0, due - self.time.now))

    def _row(self, seconds: float) -> Row:
        taken, counts = sorted(self._milliseconds), self.table.counts
        landed = len(taken)
        shares = sorted(self._landed[writer] for writer in range(self._writers))
        each = max(landed, 1)
        return Row(
            writers=self._writers,
            appends_per_second=round(landed / seconds, 1),
            p50_ms=round(taken[landed // 2], 1) if taken else 0.0,
            p99_ms=round(taken[landed * 99 // 100], 1) if taken else 0.0,
            write_units=round(counts["write_units"] / each, 2),
            reads=round(counts["reads"] / each, 2),
            refused=self._refused.total(),
            writes=round(counts["writes"] / each, 2),
            read_units=round(counts["read_units"] / each, 2),
            unknown=self._refused[OutcomeUnknown],
            least_share=round(shares[0] / max(shares[len(shares) // 2], 1), 2),
            bytes=self._load.bytes,
            producers=self._load.producers,
            latency=self._weather.name,
            think_s=self._load.think_s,
        )


def new_process(
    time: VirtualTime,
    table: MeteredTable,
    chance: random.Random,
    bucket: SimulatedBucket | None = None,
    s3: Callable[[], None] = lambda: None,
) -> Stores:
    """The stores of a process that knows nothing yet. `s3` waits as long as a call of S3."""
    dynamodb, bucket = DynamoDB(table.send), bucket or SimulatedBucket()
    dynamodb.sleep, dynamodb.now = time.sleep, lambda: time.now

    def send(operation: str, key: str, body: bytes) -> tuple[int, bytes]:
        s3()
        return bucket.send(operation, key, body)

    return Stores(
        DynamoDBTable(dynamodb, "simulated"),
        SimulatedBlobs(bucket, Objects(send), lambda: None),
        clock_ms=lambda: 1_800_000_000_000 + round(time.now * 1000),
        new_id=lambda: f"{chance.getrandbits(64):016x}",
        concurrency=time,
    )


def _line(row: Row) -> str:
    costs = f"{row.write_units:.2f} | {row.writes:.2f} | {row.reads:.2f} | {row.read_units:.2f}"
    times = f"{row.appends_per_second:,.0f} | {row.p50_ms:,.0f} | {row.p99_ms:,.0f}"
    kind = f"{row.bytes:,}" + (" p" if row.producers else "")
    return (
        f"| {kind} | {row.writers} | {times} | {costs} | {row.refused} | {row.unknown} | {row.least_share} |"
    )


def _run(asked: argparse.Namespace, row: tuple[int, bool, int]) -> Row:
    size, producers, writers = row
    load, weather = Load(size, producers, asked.think, asked.every), Weather(asked.latency, asked.apart)
    return Contest(writers, weather, load, asked.seed).run(asked.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contention", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the rows once more, as JSON in the last line")
    parser.add_argument("--writers", type=int, nargs="*", default=WRITERS, help="how many, one row for each")
    parser.add_argument(
        "--bytes", type=int, nargs="*", default=SIZES, help="of a body, which does not deflate"
    )
    parser.add_argument("--producers", choices=["no", "yes", "both"], default="no", help="idempotent ones")
    parser.add_argument("--latency", choices=["constant", "lognormal", "stalls"], default="lognormal")
    parser.add_argument(
        "--think", type=float, default=THINK_SECONDS, help="seconds between answer and append"
    )
    parser.add_argument("--every", type=float, help="seconds from one append to the next: an open loop")
    parser.add_argument("--apart", type=float, default=0.0, help="seconds that every second clock is ahead")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of virtual time")
    parser.add_argument("--seed", type=int, default=1, help="when the writers begin, and how calls vary")
    asked = parser.parse_args()
    print("Write units, writes, reads and read units are per append; p: idempotent producers.\n")
    print(
        "| bytes | writers | appends/s | p50 ms | p99 ms | write units | writes | reads | read units "
        "| refused | unknown | least share |"
    )
    print("| ---: " * 12 + "|")
    rows = []
    kinds = {"no": [False], "yes": [True], "both": [False, True]}[asked.producers]
    asked_for = list(product(asked.bytes, kinds, asked.writers))
    with ProcessPoolExecutor() as processes:
        for row in processes.map(partial(_run, asked), asked_for):
            rows.append(row)
            print(_line(row), flush=True)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
