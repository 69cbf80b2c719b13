"""Processes on a table in memory: thousands of histories in the time that an engine takes for a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.simulation.table import SimulatedTable
from tests.support import Clock, Process, World
from tidemark.aws.dynamodb import DynamoDB
from tidemark.log.table import Table
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


class NoBlobs:
    """Bodies are small, so nothing is put there, and whoever reads asks for nothing."""

    def get_range(self, *_: Any) -> bytes:
        raise AssertionError("there is no such body")


class MemoryWorld(World):
    """Bodies are small: there is nothing but the table."""

    def __init__(self) -> None:
        super().__init__("memory", "memory", Clock())
        self.table = SimulatedTable(self.clock)

    def process(self, *, clock: Any = None) -> Process:
        dynamodb = DynamoDB(self.table.send)
        blobs: Any = NoBlobs()
        stores = Stores(Table(dynamodb, "memory"), blobs, clock_ms=clock or self.clock, concurrency=InOrder())
        absent: Any = None
        return Process(stores, dynamodb, absent, absent, absent, Settings())
