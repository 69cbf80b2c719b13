"""Compaction: the bytes that a new reader gets from a stream of upserts, and the cost:
`python -m benchmarks.compaction`.

For each number of rows and of upserts there are three streams in one run: a compacted one, one without
compaction, and one with only the last upsert of each row. The table is SQLite and the bucket is files, as in
`benchmarks/packs.py`: calls are counted and priced, and CPU time is that of this project and of these
stand-ins. 100,000 upserts come each hour, a hundred in an append; the janitor runs once an hour.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import prices
from tests.costs.bill import Bill
from tests.janitor.long_stream import LongStream, Peak
from tests.support import HOUR_MS, JSON, append_request, create_request
from tidemark.janitor.sweep import sweep
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.messages import render_body
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.read import read

SIZES: Final = ((100, 10_000), (100, 1_000_000), (100_000, 10_000_000))
AN_APPEND: Final = 100
AN_HOUR: Final = 100_000
#: The packer's, of 1,769 MB for a whole processor.
PROCESSOR_SHARE: Final = 512 / 1769


@dataclass
class Rounds:
    """The janitor's rounds: the bill of their calls, and their CPU seconds."""

    bill: Bill = field(default_factory=Bill)
    seconds: float = 0

    @property
    def dollars(self) -> float:
        compute = self.seconds / PROCESSOR_SHARE * prices.MEMORY_GB * prices.LAMBDA_GB_SECOND
        return self.bill.storage_dollars / 1e6 + compute


_OF_S3: Final = {"PutObject", "GetObject", "GetRange", "DeleteObject", "DeleteObjects"}


class Metered(LongStream):
    """Storage that adds its calls to a bill, if it has one."""

    bill: Bill | None = None

    def _counted(self, send: Any, operation: str, *more: Any) -> tuple[int, bytes]:
        status, answer = super()._counted(send, operation, *more)
        if self.bill is not None and operation in _OF_S3:
            self.bill.calls[operation] += 1
        elif self.bill is not None:
            self.bill.count(operation, more[0], answer)
        return status, answer


COLUMNS: Final = (
    "rows",
    "upserts",
    "a new reader's bytes, beside those of the rows",
    "without compaction",
    "its CPU, beside that of the rows",
    "janitor's CPU, s a million upserts",
    "its memory at most, MB more",
    "janitor, $ a million upserts",
    "of it compaction",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of the sizes")
    print(f"| {' | '.join(COLUMNS)} |\n|{' ---: |' * len(COLUMNS)}")
    for rows, upserts in SIZES[: parser.parse_args().sizes]:
        with tempfile.TemporaryDirectory() as folder:
            cells = measure(Upserts(rows, upserts), Metered(0, Path(folder)))
            print(f"| {rows:,} | {upserts:,} | {' | '.join(cells)} |", flush=True)


@dataclass
class Upserts:
    rows: int
    count: int
    last: dict[int, bytes] = field(default_factory=dict)

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the upserts of each append. The last has one, because compaction keeps the last append."""
        chance = random.Random(7)
        for first in range(0, self.count, AN_APPEND):
            yield [self._one(chance.randrange(self.rows), first + more) for more in range(AN_APPEND)]
        yield [self._one(0, self.count)]

    def _one(self, row: int, number: int) -> bytes:
        self.last[row] = upsert(row, number)
        return self.last[row]


def measure(upserts: Upserts, world: Metered) -> Iterator[str]:
    compacted, plain, live = (StreamKey("v1", name) for name in ("compacted", "plain", "live"))
    peak = Peak()
    rounds = write(world, compacted, upserts, Compaction())
    grown = peak.grown_bytes
    plain_rounds = write(world, plain, upserts)
    create(world.process(), live, create_request(JSON))
    texts = list(upserts.last.values())
    for first in range(0, len(texts), AN_APPEND):
        post(world, live, texts[first : first + AN_APPEND])
    tick(world, 3, Rounds())
    (size, seconds), (live_size, live_seconds) = read_all(world, compacted), read_all(world, live)
    whole, _ = read_all(world, plain, readers=1)
    millions = upserts.count / 1e6
    yield f"{size / live_size:.2f}"
    yield f"{whole / live_size:,.1f}"
    yield f"{seconds / live_seconds:.2f}"
    yield f"{rounds.seconds / millions:,.1f}"
    yield f"{grown / 1e6:,.0f}"
    yield f"{rounds.dollars / millions:.4f}"
    yield f"{(rounds.dollars - plain_rounds.dollars) / millions:.4f}"


def write(world: Metered, key: StreamKey, upserts: Upserts, compaction: Compaction | None = None) -> Rounds:
    """Append all upserts to a new stream. Returns the cost of the janitor's rounds."""
    rounds = Rounds()
    create(world.process(), key, create_request(JSON, compaction=compaction))
    for number, texts in enumerate(upserts.chunks(), 1):
        post(world, key, texts)
        if number * AN_APPEND % AN_HOUR == 0:
            tick(world, 1, rounds)
    tick(world, 4, rounds)
    return rounds


def upsert(row: int, number: int) -> bytes:
    value = f'{{"n":{number},"text":"{"lorem ipsum " * 10}"}}'
    return f'{{"type":"row","key":"{row}","value":{value},"headers":{{"operation":"upsert"}}}}'.encode()


def post(world: Metered, key: StreamKey, texts: list[bytes]) -> None:
    body = b"[" + b",".join(texts) + b"]"
    [answer] = append(world.process(), key, [append_request(body, content_type=JSON)])
    assert not isinstance(answer, Exception), answer


def tick(world: Metered, hours: int, rounds: Rounds) -> None:
    """Run the janitor once an hour, on a clock that is moved."""
    for _ in range(hours):
        world.now_ms += HOUR_MS
        world.bill = rounds.bill
        began = time.process_time()
        sweep(world.process())
        rounds.seconds += time.process_time() - began
        world.bill = None


def read_all(world: Metered, key: StreamKey, readers: int = 9) -> tuple[int, float]:
    """Return the bytes of all pages, and the least CPU seconds of a reader, each in a process of its own."""
    seconds, size = [], 0
    for _ in range(readers):
        stores, offset, at_tail, size, began = world.process(), 0, False, 0, time.process_time()
        while not at_tail:
            reading = read(stores, key, offset)
            size += len(render_body(JSON, reading.data))
            offset, at_tail = reading.page.end, reading.page.up_to_date
        seconds.append(time.process_time() - began)
    return size, min(seconds)


if __name__ == "__main__":
    main()
