"""What every use case works with: storage, time, and names that nobody else will choose."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tidemark.blobs.store import BlobStore
from tidemark.clients import s3_client
from tidemark.log.dynamodb import connect_dynamodb
from tidemark.log.recent import RecentBatches
from tidemark.log.table import Table
from tidemark.log.tails import TailCache
from tidemark.settings import Settings

MEGABYTE: Final = 1024 * 1024

_A = TypeVar("_A")
_B = TypeVar("_B")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """96 random bits: the mark of a write, or of an incarnation."""
    return secrets.token_urlsafe(12)


def pause(tries: int) -> None:
    """Step aside for the other writers of a crowded stream, longer each time."""
    time.sleep(random.uniform(0, min(0.005 * 2**tries, 0.2)))


@dataclass(slots=True)
class Stores:
    """Storage and the world around it; tests put a stepped clock and fixed ids here."""

    table: Table
    blobs: BlobStore
    tails: TailCache = field(default_factory=TailCache)
    recent: RecentBatches = field(default_factory=lambda: RecentBatches(16 * MEGABYTE))
    clock_ms: Callable[[], int] = wall_clock_ms
    new_id: Callable[[], str] = new_id
    pause: Callable[[int], None] = pause
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(16, thread_name_prefix="tidemark-io")
    )

    def together(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        """Both at once: two independent calls cost the time of one."""
        future = self._pool.submit(one)
        second = other()
        return future.result(), second

    def each(self, call: Callable[[_A], _B], items: Iterable[_A]) -> list[_B]:
        """The same of each, some at once. `call` must not ask for help itself."""
        return list(self._pool.map(call, items))

    def fetch(self, names: Sequence[str]) -> Sequence[bytes]:
        """Several blobs at once."""
        if len(names) == 1:
            return [self.blobs.get(names[0])]
        return list(self._pool.map(self.blobs.get, names))


def connect(settings: Settings, recent_bytes: int = 16 * MEGABYTE) -> Stores:
    """Stores over clients that find endpoints and credentials by themselves."""
    table = Table(connect_dynamodb(), settings.table_name)
    blobs = BlobStore(s3_client, settings.bucket_name)
    return Stores(table, blobs, recent=RecentBatches(recent_bytes))
