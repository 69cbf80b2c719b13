"""The notifier behind a burst of appends, in virtual time: `python -m benchmarks.fanout`.

Readers wait, each in an environment of its own with a queue of its own; then appends come: one to each of
many streams at once, one to a stream with a crowd, or a hundred in a second to such a stream. What runs is
`tidemark.wake.notifier.Notifier`, and `tidemark.service.read.read` for each reader that is told, on the table
of `benchmarks/contention.py`. Around it is what AWS documents of the event source mapping of `template.yaml`:
each shard of the table's stream is asked four times a second, records are dealt by partition key to ten
batches at once, and a batch is delivered again from its first record that failed. A call of SQS takes 10 ms.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final
from zlib import crc32

import orjson

from benchmarks.contention import BODY_BYTES, CONTENT_TYPE, LATENCY_SECONDS, new_process
from benchmarks.metered_table import PARTITIONS, MeteredTable, constant
from benchmarks.scale import BATCH_RECORDS, BATCHES_AT_ONCE, SEND_SECONDS, SENDS_AT_ONCE
from tests.simulation.tasks import VirtualTime
from tidemark.aws.sqs import BATCH
from tidemark.log.records import Waiter
from tidemark.log.schema import decode_write, is_log_pk
from tidemark.log.waiters import put_waiter
from tidemark.protocol.errors import Busy
from tidemark.protocol.expiry import NEVER
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import CreateRequest, create
from tidemark.service.read import read
from tidemark.service.stores import Stores, Threads
from tidemark.wake.notifier import Notifier, message_from_write

#: Streams, readers at each of them, appends to each of them, and the seconds that these take.
BURSTS: Final = (
    (1_000, 1, 1, 0.01),
    (4_000, 1, 1, 1.0),
    (1, 1_000, 1, 0.01),
    (1, 10_000, 1, 0.01),
    (1, 1_000, 100, 1.0),
)
_POLL_SECONDS: Final = 0.25
_REDELIVERY_SECONDS: Final = 1.0
_RECEIVE_SECONDS: Final = 0.01
_RETRY_AFTER_SECONDS: Final = 1.0
_SETUP_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Fanout:
    """Times from the first append until half of the readers, and all of them, have read the last append to
    their stream. `messages` were sent to queues, `invocations` counts batches that the notifier was given,
    and `again` those that it was given once more; `throttled` counts calls to the table."""

    streams: int
    readers: int
    appends: int
    half_ms: float
    last_ms: float
    messages: int
    invocations: int
    again: int
    throttled: int


class Burst:
    """The world of one row."""

    def __init__(self, streams: int, readers: int, seed: int = 1) -> None:
        self.time = VirtualTime()
        self.shards = [_Shard(self) for _ in range(PARTITIONS)]
        self.table = _Table(self.time, self.shards)
        self.counts: Counter[str] = Counter()
        self.chance = random.Random(seed)
        random.seed(self.chance.random())  # The jitter of retries.
        self.keys = [StreamKey(PLAIN_BUCKET, f"burst-{number}") for number in range(streams)]
        self.readers = [_Reader(self, key) for key in self.keys for _ in range(readers)]

    def new_process(self) -> Stores:
        return new_process(self.time, self.table, self.chance)

    def begin(self) -> None:
        """All streams exist, and all readers have read them and wait, spread over a minute."""

        def create_all() -> None:
            stores = self.new_process()
            for key in self.keys:
                create(stores, key, CreateRequest(CONTENT_TYPE, NEVER, closed=False))

        self.time.spawn(create_all)
        behind = len(self.keys) * LATENCY_SECONDS + 1
        for reader in self.readers:
            self.time.spawn(reader.begin, after=behind + self.chance.uniform(0, _SETUP_SECONDS))
        self.time.run(until=behind + 2 * _SETUP_SECONDS)
        assert all(reader.url for reader in self.readers)

    def run(self, appends: int, seconds: float) -> list[float]:
        """For each reader, when it had the last append, in milliseconds from the beginning."""
        began = self.time.now
        self.table.counts.clear()
        for shard in self.shards:
            self.time.spawn(shard.poll, after=self.chance.uniform(0, _POLL_SECONDS))
        for key in self.keys:
            for number in range(appends):
                after = (number + self.chance.random()) * seconds / appends
                self.time.spawn(lambda key=key: self._append(key), after=after)  # type: ignore[misc]
        self.time.run(until=began + _LONGEST_SECONDS)
        wanted = appends * BODY_BYTES
        assert all(reader.offset == wanted for reader in self.readers), "everybody has all in the end"
        return sorted((reader.has_it_at - began) * 1000 for reader in self.readers)

    def _append(self, key: StreamKey) -> None:
        stores = self.new_process()
        while True:
            try:
                append(stores, key, [AppendRequest(CONTENT_TYPE, b"x" * BODY_BYTES)])
            except Busy:
                self.time.sleep(_RETRY_AFTER_SECONDS)
            else:
                return


class _Table(MeteredTable):
    """Every new batch is a record in the shard of its partition."""

    def __init__(self, time: VirtualTime, shards: Sequence[_Shard]) -> None:
        super().__init__(time, constant(LATENCY_SECONDS))
        self._shards = shards

    def send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        answer = super().send(operation, body)
        if operation == "PutItem" and answer[0] == 200:
            item = orjson.loads(body)["Item"]
            pk = item["pk"]["S"]
            if is_log_pk(pk):
                keys = {"pk": item["pk"], "sk": item["sk"]}
                self._shards[crc32(pk.encode()) % PARTITIONS].add(
                    pk, {"eventName": "INSERT", "dynamodb": {"Keys": keys}}
                )
        return answer


class _Reader:
    """An environment with one reader that waits at the tail of a stream."""

    _numbers = count()

    def __init__(self, burst: Burst, key: StreamKey) -> None:
        self._burst, self._key = burst, key
        self._stores = burst.new_process()
        self.url = ""
        self.offset = 0
        self.has_it_at = 0.0

    def begin(self) -> None:
        record = read(self._stores, self._key, 0).record
        url = f"https://sqs.example/{next(self._numbers)}"
        put_waiter(self._stores.table, Waiter(record.incarnation, url, self._stores.clock_ms() + 600_000))
        self.url = url

    def receive(self) -> None:
        """It was told. It reads on, and waits again."""
        self._burst.time.sleep(_RECEIVE_SECONDS)
        end = None
        while end is None:
            try:
                end = read(self._stores, self._key, self.offset).page.end
            except Busy:
                self._burst.time.sleep(_RETRY_AFTER_SECONDS)
        if end > self.offset:
            self.offset, self.has_it_at = end, self._burst.time.now


class _Queues:
    """`tidemark.aws.sqs.Queues` as the notifier uses it."""

    def __init__(self, burst: Burst) -> None:
        self._burst = burst
        self._readers = {reader.url: reader for reader in burst.readers}

    def send(self, url: str, bodies: Sequence[str]) -> None:
        for _ in range(0, len(bodies), BATCH):
            self._burst.time.sleep(SEND_SECONDS)
        self._burst.counts["messages"] += len(bodies)
        self._burst.time.spawn(self._readers[url].receive)


class _Notifier(Notifier):
    """With as many threads as it has, in virtual time."""

    def __init__(self, burst: Burst) -> None:
        stores = burst.new_process()
        super().__init__(stores.table, _Queues(burst), stores.clock_ms)  # type: ignore[arg-type]
        self._threads = _VirtualThreads(burst)


class _VirtualThreads(Threads):
    def __init__(self, burst: Burst) -> None:
        self._time = burst.time

    def each(self, call: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
        results: list[Any] = [None] * len(arguments)
        left = iter(range(len(arguments)))

        def work(_thread: int) -> None:
            for index in left:
                results[index] = call(arguments[index])

        self._time.each(work, range(min(SENDS_AT_ONCE, len(arguments))))
        return results


class _Shard:
    """A shard of the table's stream, and the environments of the notifier that work on it."""

    def __init__(self, burst: Burst) -> None:
        self._burst = burst
        self._arrived: list[tuple[str, Any]] = []
        self._lanes: list[list[Any]] = [[] for _ in range(BATCHES_AT_ONCE)]
        self._busy: set[int] = set()
        self._notifiers: dict[int, Notifier] = {}

    def add(self, pk: str, record: Any) -> None:
        self._arrived.append((pk, record))

    def poll(self) -> None:
        while True:
            for pk, record in self._arrived:
                number = crc32(pk.encode(), 1) % BATCHES_AT_ONCE
                self._lanes[number].append(record)
            self._arrived.clear()
            for number, lane in enumerate(self._lanes):
                if lane and number not in self._busy:
                    self._busy.add(number)
                    self._burst.time.spawn(lambda number=number: self._work_off(number))  # type: ignore[misc]
            self._burst.time.sleep(_POLL_SECONDS)

    def _work_off(self, number: int) -> None:
        lane, counts, time = self._lanes[number], self._burst.counts, self._burst.time
        if number not in self._notifiers:
            self._notifiers[number] = _Notifier(self._burst)
        while lane:
            batch = [message_from_write(decode_write(record)) for record in lane[:BATCH_RECORDS]]
            counts["invocations"] += 1
            failures = self._notifiers[number].notify(message for message in batch if message)
            failed = [index for index, message in enumerate(batch) if message and message.log_pk in failures]
            del lane[: failed[0] if failed else len(batch)]
            if failed:
                counts["again"] += 1
                time.sleep(_REDELIVERY_SECONDS)
        self._busy.discard(number)


def fanout(streams: int, readers: int, appends: int, seconds: float) -> Fanout:
    burst = Burst(streams, readers)
    burst.begin()
    taken = burst.run(appends, seconds)
    counts = burst.counts
    return Fanout(
        streams,
        readers,
        appends,
        taken[len(taken) // 2],
        taken[-1],
        counts["messages"],
        counts["invocations"],
        counts["again"],
        burst.table.counts["throttled"],
    )


def all_fanouts() -> Iterator[Fanout]:
    yield from (fanout(*burst) for burst in BURSTS)


def line(row: Fanout) -> str:
    who = f"{row.streams:,} | {row.readers:,} | {row.appends:,}"
    work = f"{row.messages:,} | {row.invocations:,} | {row.again:,} | {row.throttled:,}"
    return f"| {who} | {row.half_ms:,.0f} | {row.last_ms:,.0f} | {work} |"


def main() -> int:
    print(
        "| streams | readers at each | appends to each | half, ms | all, ms"
        " | messages | batches | delivered again | throttled calls |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in all_fanouts():
        print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
