"""What storage tests stand on: real engines, a stepped clock, counted and broken calls."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.stack.emulators import DEFAULT_REGION
from tests.stack.engines import LocalServices, client_of
from tidemark.aws.clients import s3_client
from tidemark.aws.dynamodb import DynamoDB, SendOperation, connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.retry import NoAnswer
from tidemark.aws.s3 import Objects, connect_objects
from tidemark.blobs import BlobStore
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.schema import Item, is_end_mark, table_definition
from tidemark.log.tails import RecentBatches
from tidemark.protocol.append import Outcome
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.expiry import FOREVER, NEVER, Expiry, Retention
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.producer import Claim
from tidemark.protocol.stream_key import PLAIN_BUCKET, StreamKey
from tidemark.service.append import AppendRequest, append
from tidemark.service.create import Created, CreateRequest, create, create_with_append
from tidemark.service.read import read
from tidemark.service.stores import MEGABYTE, Stores
from tidemark.settings import Settings

BYTES = parse_content_type("application/octet-stream")
JSON = parse_content_type("application/json")
TEXT = parse_content_type("text/plain")

MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS


@dataclass(slots=True)
class Clock:
    """Time that moves only when a test says so."""

    now_ms: int = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class MonotonicClock:
    """As `time.monotonic`, in seconds, and as `Clock`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Calls:
    """Counts storage calls: one for each operation, and one for each time it is tried again."""

    def __init__(self, dynamodb: DynamoDB, objects: Objects) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        before(dynamodb, self._count)
        before(objects, self._count)

    def watch(self, s3: Any) -> None:
        """Count the calls of a client of boto3, too."""
        s3.meta.events.register("before-send", lambda event_name, **_: self._count(event_name.split(".")[-1]))

    def _count(self, operation: str) -> None:
        with self._lock:
            self._counts[operation] += 1

    def taken(self) -> dict[str, int]:
        """What was called since the last time of asking."""
        with self._lock:
            counts, self._counts = dict(self._counts), Counter()
        return counts


def before(client: DynamoDB | Objects, act: Callable[[str], object]) -> None:
    """Let something happen just before each call is sent."""
    send: Any = client.send

    def acting(operation: str, *more: Any) -> Any:
        act(operation)
        return send(operation, *more)

    client.send = acting


@dataclass(slots=True)
class World:
    """One table, one bucket, and any number of processes on them."""

    table_name: str
    bucket_name: str
    clock: Clock = field(default_factory=Clock)
    #: Whom the embedded engine tells of each change of any table.
    followers: list[Callable[[str, dict[str, Any]], None]] = field(default_factory=list)
    #: The embedded engine's port, and the way to the table past it: a call takes a tenth of the time.
    port: str = ""
    send: SendOperation | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name them."""
        return {"TABLE_NAME": self.table_name, "BUCKET_NAME": self.bucket_name}

    def process(self, *, clock: Any = None) -> Process:
        """A process of its own: it shares nothing with the others but storage."""
        account = Account()
        is_direct = self.send is not None and os.environ["AWS_ENDPOINT_URL_DYNAMODB"] == self.port
        dynamodb = DynamoDB(self.send) if self.send and is_direct else connect_dynamodb(account)
        objects = connect_objects(account, self.bucket_name)
        calls = Calls(dynamodb, objects)
        make_s3 = cache(partial(_watched_s3, calls, _aws_variables()))
        stores = Stores(
            DynamoDBTable(dynamodb, self.table_name),
            BlobStore(objects, make_s3, self.bucket_name),
            recent=RecentBatches(16 * MEGABYTE, clock or self.clock),
            clock_ms=clock or self.clock,
        )
        settings = Settings(self.table_name, self.bucket_name)
        return Process(stores, dynamodb, objects, make_s3, calls, settings)


def _aws_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def _watched_s3(calls: Calls, variables: dict[str, str]) -> Any:
    """boto3's client, made by the first test that needs it: it takes longer than most tests do. It goes where
    these variables lead, which may have changed since the process began."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _aws_variables().keys() - variables.keys():
            patch.delitem(os.environ, name)
        for name, value in variables.items():
            patch.setitem(os.environ, name, value)
        client = s3_client()
    calls.watch(client)
    return client


@dataclass(slots=True)
class Process:
    """`dynamodb` is where its calls are counted and broken, on the loop as on threads; `objects`
    and `s3` are the two ways to the bucket."""

    stores: Stores
    dynamodb: DynamoDB
    objects: Objects
    make_s3: Callable[[], Any]
    calls: Calls
    settings: Settings

    @property
    def s3(self) -> Any:
        return self.make_s3()

    def create(self, key: StreamKey, **asked: Any) -> Created:
        return create(self.stores, key, create_request(**asked))

    def fork(
        self, key: StreamKey, source: StreamKey, offset: int | None = None, sub: int = 0, **asked: Any
    ) -> Created:
        """A fork that leaves to its source whatever is not asked for."""
        asked = {"content_type": None} | asked
        return self.create(key, fork=ForkPoint(source, offset, sub), **asked)

    def create_by_append(self, key: StreamKey, body: bytes, **asked: Any) -> Outcome | None:
        creation = create_request(asked.get("content_type", BYTES))
        return create_with_append(self.stores, key, replace(creation, first=append_request(body, **asked)))

    def append(self, key: StreamKey, body: bytes = b"", **asked: Any) -> Outcome:
        """One append; raises what refuses it."""
        answer = append(self.stores, key, [append_request(body, **asked)])[0]
        if isinstance(answer, ProtocolError):
            raise answer
        return answer

    def read_all(self, key: StreamKey, start: int = 0) -> bytes:
        """The stored bytes of the stream from there on, page by page."""
        data, at_tail = b"", False
        while not at_tail:
            reading = read(self.stores, key, start)
            data, start, at_tail = data + reading.data, reading.page.end, reading.page.up_to_date
        return data


def table_of(stores: Any) -> DynamoDBTable:
    """Of `Stores`, or of a part of the system that has a table."""
    table = stores.table
    assert isinstance(table, DynamoDBTable)
    return table


def items_left(process: Process) -> list[Item]:
    """All that the table holds, but for the end marks of streams and buckets and for mail: DynamoDB removes
    those once their time is over."""
    table, items, position = table_of(process.stores), [], None
    while True:
        more: dict[str, Any] = {"ExclusiveStartKey": position} if position else {}
        page = table.dynamodb.call("Scan", {"TableName": table.name, "ConsistentRead": True} | more)
        items += [
            item
            for item in page["Items"]
            if not is_end_mark(item) and not item["pk"]["S"].startswith("mail/")
        ]
        position = page.get("LastEvaluatedKey")
        if position is None:
            return items


def make_world(services: LocalServices) -> World:
    """A table and a bucket, as `services` makes them, but by clients that all worlds on these engines share:
    to make two clients takes longer than most tests do. No engine deletes what has expired."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    dynamodb, s3 = _clients(frozenset(services.environment.items()))
    dynamodb.create_table(**table_definition(name))
    region = s3.meta.region_name
    place = {} if region == DEFAULT_REGION else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=name, **place)
    table, port = services.table(name), services.environment["AWS_ENDPOINT_URL_DYNAMODB"]
    return World(name, name, followers=services.followers, port=port, send=table.send if table else None)


@cache
def _clients(environment: frozenset[tuple[str, str]]) -> tuple[Any, Any]:
    return client_of("dynamodb", dict(environment)), client_of("s3", dict(environment))


def a_key(name: str = "a") -> StreamKey:
    return StreamKey(PLAIN_BUCKET, f"{name}-{uuid.uuid4().hex[:8]}")


def filled(
    world: World, *bodies: bytes, content_type: Any = BYTES, key: StreamKey | None = None
) -> tuple[Process, StreamKey]:
    """A stream with a batch of each body, and the process that has written it."""
    process, key = world.process(), key or a_key()
    process.create(key, content_type=content_type)
    for body in bodies:
        process.append(key, body, content_type=content_type)
    return process, key


def create_request(
    content_type: Any = BYTES,
    expiry: Expiry = NEVER,
    *,
    closed: bool = False,
    body: bytes = b"",
    fork: ForkPoint | None = None,
    retention: Retention = FOREVER,
    compaction: Compaction | None = None,
) -> CreateRequest:
    return CreateRequest(content_type, expiry, closed, body, fork, retention, compaction)


def append_request(
    body: bytes = b"",
    *,
    content_type: Any = BYTES,
    close: bool = False,
    seq: str | None = None,
    claim: tuple[str, int, int] | None = None,
) -> AppendRequest:
    return AppendRequest(content_type, body, close, seq, Claim(*claim) if claim else None)


class Faults:
    """Breaks a client's calls at random, as a network and a busy table do.

    `lost`: the call is carried out and its reply is lost, so that it is sent again.
    `throttled`, `conflicted`: refused without being carried out.
    """

    def __init__(self, dynamodb: DynamoDB, seed: int, **shares: float) -> None:
        self._send = dynamodb.send
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._shares = shares
        self.injected: Counter[str] = Counter()
        dynamodb.send = self._maybe_broken

    def _maybe_broken(self, operation: str, body: bytes) -> tuple[int, bytes]:
        fault = self._choose()
        if fault == "throttled":
            return refusal("ProvisionedThroughputExceededException")
        if fault == "conflicted":
            return conflict(operation)
        answer = self._send(operation, body)
        if fault == "lost":
            raise NoAnswer("injected")
        return answer

    def _choose(self) -> str | None:
        with self._lock:
            lot = self._random.random()
            for fault, share in self._shares.items():
                if lot < share:
                    self.injected[fault] += 1
                    return fault
                lot -= share
        return None


def refusal(code: str, **more: Any) -> tuple[int, bytes]:
    """As DynamoDB words it."""
    return 400, orjson.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}"} | more)


def conflict(operation: str) -> tuple[int, bytes]:
    """Another transaction is under way on one of the items."""
    if operation != "TransactWriteItems":
        return refusal("TransactionConflictException")
    reasons = [{"Code": "TransactionConflict"}, {"Code": "None"}]
    return refusal("TransactionCanceledException", CancellationReasons=reasons)


def recorded_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From here on, what makes a file durable, in order: `sync` and `name`, each with the name of a file or
    folder without its endings. In any other order a power cut leaves an empty file, or none."""
    made: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        made.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name.partition('.')[0]}")
        fsync(descriptor)

    def recorded_replace(path: Path, target: Path) -> Path:
        made.append(f"name {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    return made
