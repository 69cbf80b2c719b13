"""Processes on a table and a bucket in memory: hundreds of histories in the time of a few on an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.simulation.objects import SimulatedBlobs, SimulatedBucket
from tests.simulation.table import SimulatedTable
from tests.support import Calls, Clock, Process, World
from tidemark.aws.dynamodb import DynamoDB
from tidemark.aws.s3 import Objects
from tidemark.log.dynamodb import DynamoDBTable
from tidemark.service.stores import Stores
from tidemark.settings import Settings

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class InOrder:
    """One thing after the other."""

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        return one(), other()

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        return [call(item) for item in items]

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def sleep(self, seconds: float) -> None:
        """Nobody else is waited for."""


class MemoryWorld(World):
    """Any number of processes on one table and one bucket in memory, one call after the other."""

    def __init__(self) -> None:
        super().__init__("memory", "memory", Clock())
        self.table = SimulatedTable(self.clock)
        self.bucket = SimulatedBucket()

    def process(self, *, clock: Any = None) -> Process:
        dynamodb, objects = DynamoDB(self.table.send), Objects(self.bucket.send)
        dynamodb.sleep = objects.sleep = lambda _seconds: None
        blobs = SimulatedBlobs(self.bucket, objects, lambda: None)
        stores = Stores(
            DynamoDBTable(dynamodb, "memory"), blobs, clock_ms=clock or self.clock, concurrency=InOrder()
        )
        return Process(stores, dynamodb, objects, _no_s3, Calls(dynamodb, objects), Settings())


def _no_s3() -> Any:
    raise AssertionError("there is no S3 to connect to")
