"""One table, one bucket, one clock, and the processes on them, all moved by a scheduler."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import orjson

from tests.simulation.faults import Line, Send, Shares, carry
from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.simulation.tasks import Crashed, Scheduler
from tests.support import refusal
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log import combining as combining_rules
from tidemark.log.combining import fits_mail
from tidemark.log.due import Packing
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.tails import RecentBatches
from tidemark.protocol import tail
from tidemark.service import append, combine, create
from tidemark.service.stores import MEGABYTE, Stores

#: AWS refuses a request whose signature is older: no copy arrives later than that.
LATEST_ARRIVAL_MS: Final = 5 * 60 * 1000


@contextmanager
def small_limits(recent_producers: int = 2) -> Iterator[None]:
    """Few bytes go to S3 already, and few producers overflow a batch: short histories meet both."""
    with (
        patch.object(append, "INLINE_BYTES", 32),
        patch.object(create, "INLINE_BYTES", 32),
        patch.object(append, "MAIL_BYTES", 4),
        patch.object(combining_rules, "COMBINED_INLINE_BYTES", 6),
        patch.object(combining_rules, "_MAIL_OVERHEAD_BYTES", 0),  # Else every crowd is a large one.
        patch.object(tail, "RECENT_PRODUCERS", recent_producers),
        patch.object(tail, "MOST_PRODUCERS", recent_producers + 1),
    ):
        yield


@contextmanager
def combining(*, forced: bool) -> Iterator[None]:
    """With `forced`, every single append begins as mail, as on a crowded stream, and a batch takes few."""
    if not forced:
        yield
        return

    def fits(_attempt: Any, _head: Any, appends: Sequence[Any]) -> bool:
        return len(appends) == 1 and fits_mail(appends[0])

    with (
        patch.object(append._Attempt, "combines", fits),
        patch.object(combining_rules, "MAX_APPENDS", 3),
        patch.object(combining_rules, "RECEIPTS_FROM", 1),
        patch.object(combine, "_MAX_LOOKS", 40),
    ):
        yield


@dataclass(slots=True)
class _Copy:
    """A request that is under way: it arrives before the call of that number, unless it is too old by
    then."""

    arrives_at: int
    sent_ms: int
    send: Send
    request: tuple[Any, ...]


#: Nothing is ever worth a pack.
NO_PACKS: Final = Packing(60 * 60 * 1000, every_bytes=2**60, min_batches=2**60)


class SimulatedWorld:
    """`latest_arrival_ms`: a copy of a request that is older than that is refused."""

    def __init__(
        self,
        chance: random.Random,
        shares: Shares | None,
        latest_arrival_ms: int = LATEST_ARRIVAL_MS,
        packing: Packing | None = None,
    ) -> None:
        self.chance = chance
        self.times_ms = [1_800_000_000_000]
        self.table = SimulatedTable(lambda: self.now_ms)
        self.bucket = SimulatedBucket()
        self.scheduler = Scheduler(chance, chance.choice((0.0, 0.3, 0.8)))
        self.faults: Counter[str] = Counter()
        self.calls = 0
        self._shares: Shares | None = shares
        self._packing = packing
        self._latest_arrival_ms = latest_arrival_ms
        self._copies: list[_Copy] = []
        self._processes = 0

    @property
    def now_ms(self) -> int:
        return self.times_ms[-1]

    def advance(self, ms: int) -> None:
        self.times_ms.append(self.now_ms + ms)

    def heal(self) -> None:
        """From now on no call fails. What is still under way arrives all the same."""
        self._shares = None

    def process(self) -> tuple[int, Stores]:
        """A process that knows nothing yet, and its number."""
        self._processes += 1
        number = self._processes
        line = Line(self.chance, self._shares) if self._shares else None
        dynamodb = DynamoDB(self._seam(number, line, self.table.send))
        objects = Objects(self._seam(number, line, self.bucket.send))
        dynamodb.sleep = objects.sleep = self.scheduler.sleep
        dynamodb.now = objects.now = lambda: self.now_ms / 1000
        stores = Stores(
            DynamoDBTable(dynamodb, "simulated"),
            SimulatedBlobs(self.bucket, objects, self.scheduler.sleep),
            recent=RecentBatches(16 * MEGABYTE, lambda: self.now_ms),
            clock_ms=lambda: self.now_ms,
            new_id=lambda: f"{self.chance.getrandbits(48):012x}",
            concurrency=self.scheduler,
            packing=self._packing or NO_PACKS,
        )
        return number, stores

    def _seam(self, number: int, line: Line | None, send: Send) -> Any:
        def sending(*request: Any) -> tuple[int, bytes]:
            self.scheduler.sleep()
            self.calls += 1
            self.land(lambda copy: copy.arrives_at <= self.calls)
            fault = line.fault() if line and self._shares else None
            if fault is not None:
                self.faults[fault] += 1
            return self._carry(number, fault, send, request)

        return sending

    def _carry(
        self, number: int, fault: str | None, send: Send, request: tuple[Any, ...]
    ) -> tuple[int, bytes]:
        if fault == "partly" and request[0] == "BatchWriteItem":
            return self._batch_partly(send, request[1])
        if fault in {"crash", "failed"}:
            return self._crash_or_fail(number, fault, send, request, is_s3=len(request) == 3)
        return carry(fault, send, request, lambda: self._copy_later(send, request))

    def _crash_or_fail(
        self, number: int, fault: str, send: Send, request: tuple[Any, ...], *, is_s3: bool
    ) -> tuple[int, bytes]:
        """Before the call, behind it, or while it is still under way."""
        lot = self.chance.randrange(3)
        if lot == 1:
            send(*request)
        if fault == "failed":
            return (500, b"") if is_s3 else (500, refusal("InternalServerError")[1])
        if lot == 2:
            self._copy_later(send, request)
        self.scheduler.kill(number)
        raise Crashed

    def _batch_partly(self, send: Send, body: bytes) -> tuple[int, bytes]:
        arguments = orjson.loads(body)
        [(table, requests)] = arguments["RequestItems"].items()
        done = self.chance.randrange(len(requests))
        if done:
            send("BatchWriteItem", orjson.dumps({"RequestItems": {table: requests[:done]}}))
        return 200, orjson.dumps({"UnprocessedItems": {table: requests[done:]}})

    # --- requests that are under way ---

    def _copy_later(self, send: Send, request: tuple[Any, ...]) -> None:
        """Reads change nothing, whenever they arrive."""
        reads = {"GetItem", "Query", "GetObject", "GetRange"}
        if self._shares is None or not self._shares.late or request[0] in reads:
            return
        calls = self.chance.randrange(1, self.chance.choice((8, 50, 400)))
        self._copies.append(_Copy(self.calls + calls, self.now_ms, send, request))

    def land(self, arrives: Callable[[_Copy], bool]) -> None:
        """Those that arrive now are carried out, unless they are too old."""
        landing = [copy for copy in self._copies if arrives(copy)]
        if not landing:
            return
        self._copies = [copy for copy in self._copies if copy not in landing]
        for copy in landing:
            if self.now_ms - copy.sent_ms <= self._latest_arrival_ms:
                copy.send(*copy.request)

    def land_some(self) -> None:
        self.land(lambda _: self.chance.random() < 0.5)

    def land_all(self) -> None:
        self.land(lambda _: True)
