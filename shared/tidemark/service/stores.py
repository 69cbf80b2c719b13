"""The dependencies of every use case: storage, the clock, and unique ids."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Final, Protocol, TypeVar

from tidemark.aws.clients import s3_client
from tidemark.aws.clock import CLOCK
from tidemark.aws.dynamodb import connect_dynamodb
from tidemark.aws.http import Account
from tidemark.aws.s3 import connect_objects
from tidemark.blobs import Blobs, BlobStore, batch_blob_key, parts_of
from tidemark.log.due import Packing
from tidemark.log.dynamodb_table import DynamoDBTable
from tidemark.log.pack_format import fast_zlib
from tidemark.log.packs import Piece, fill_blocks
from tidemark.log.records import Batch, Snapshot
from tidemark.log.table import Table, check_format
from tidemark.log.tails import RecentBatches, Rivals, TailCache
from tidemark.protocol.errors import Damaged
from tidemark.protocol.messages import StoredBody
from tidemark.protocol.stream_key import StreamKey
from tidemark.settings import Settings

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")


class Concurrency(Protocol):
    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        """Make two independent calls concurrently."""

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        """Make a call for each item, some concurrently. Returns the results in the order of the items."""

    def compute(self, call: Callable[[], _T]) -> _T:
        """Run a CPU-bound call that takes long, and never on an event loop that serves other requests."""

    def sleep(self, seconds: float) -> None: ...


class Run(Protocol):
    """Makes a blocking call from a coroutine: at once, on a thread, or in its turn."""

    def __call__(self, call: Callable[[], _T], /) -> Awaitable[_T]: ...


class Threads:
    """A few threads, made when they are first needed.

    If no thread has started a call yet, the caller runs it itself. Nested calls therefore cannot deadlock the
    pool.
    """

    def __init__(self, threads: int = 16) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tidemark-io")

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        # No variable holds a future: the future and the traceback of its error would form a cycle.
        begun = [self._pool.submit(copy_context().run, one)]
        second = other()
        return one() if begun[0].cancel() else begun.pop().result(), second

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        begun = deque(self._pool.submit(copy_context().run, call, item) for item in items[1:])
        try:
            results = [call(item) for item in items[:1]]
            for item in items[1:]:
                results.append(call(item) if begun[0].cancel() else begun[0].result())
                begun.popleft()
        finally:
            while begun:
                begun.pop().cancel()
        return results

    def compute(self, call: Callable[[], _T]) -> _T:
        return call()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


MEGABYTE: Final = 1024 * 1024

_log: Final = logging.getLogger("tidemark")


#: Returns 96 random bits: the id of a write or of an incarnation.
new_id: Final = partial(secrets.token_urlsafe, 12)


@dataclass(slots=True)
class Stores:
    """Storage, clock, ids and concurrency. Tests set a stepped clock and fixed ids here."""

    table: Table
    blobs: Blobs
    tails: TailCache = field(default_factory=TailCache)
    recent: RecentBatches = field(default_factory=lambda: RecentBatches(16 * MEGABYTE))
    clock_ms: Callable[[], int] = CLOCK.now_ms
    new_id: Callable[[], str] = new_id
    concurrency: Concurrency = field(default_factory=Threads)
    rivals: Rivals = field(default_factory=Rivals)
    packing: Packing = field(default_factory=lambda: Packing.after_seconds(3600))
    #: Most streams, buckets or subscriptions in a page of a listing. An entry takes a read of DynamoDB.
    listed_at_once: int = 100
    #: The stream of each shared subscription, as this process last read it.
    shared_streams: dict[str, StreamKey] = field(default_factory=dict)
    #: The table's format epoch, as this process last read it. The epoch never falls.
    format_epoch: int = -1

    def check_format(self, needed: int = 0) -> None:
        """Check the table's format once in a process, and again if a higher epoch is `needed`
        (`log/table.py`). Raises FormatTooNew."""
        if self.format_epoch < needed or self.format_epoch < 0:
            self.format_epoch = check_format(self.table, needed)

    def fetch(self, wanted: Sequence[tuple[str, int]]) -> list[bytes]:
        """Fetch several blobs concurrently, by name and size. Raises Damaged if a size differs."""
        parts = [parts_of(*blob) for blob in wanted]
        flat = list(chain.from_iterable(parts))
        if len(flat) == 1:
            return [self.blobs.get(*flat[0])]
        found = iter(self.concurrency.each(lambda part: self.blobs.get(*part), flat))
        return [b"".join(islice(found, len(each))) for each in parts]

    def put_body(self, incarnation: str, data: bytes) -> StoredBody:
        """Put a body into S3, under a name that is never written twice."""
        name = batch_blob_key(incarnation, self.new_id())
        self.blobs.put(name, data)
        return StoredBody(name, fast_zlib().crc32(data))

    def snapshot_blob(self, snapshot: Snapshot) -> bytes:
        """Fetch the snapshot's blob. Raises Damaged if it differs from the published one."""
        blob = self.blobs.get(snapshot.blob, snapshot.size)
        if snapshot.crc not in {None, fast_zlib().crc32(blob)}:
            _log.error("a snapshot is damaged: %s does not fit its checksum", snapshot.blob)
            raise Damaged
        return blob

    def fill(self, pieces: Sequence[Piece]) -> list[Batch]:
        """The batches, and the blocks of packs with their bytes fetched. Raises as `fill_blocks`."""
        batches = [piece for piece in pieces if isinstance(piece, Batch)]
        if len(batches) == len(pieces):
            return batches
        return fill_blocks(pieces, self.blobs.get_range, self.concurrency.each)

    def pause(self, tries: int) -> None:
        """Back off with jitter, longer each time, while other writers are faster."""
        self.concurrency.sleep(random.uniform(0, min(0.005 * 2**tries, 0.2)))


def connect(settings: Settings, recent_bytes: int = 16 * MEGABYTE) -> Stores:
    """Stores on AWS, whose clients find endpoints and credentials by themselves."""
    account, bucket = Account(), settings.bucket_name
    table = DynamoDBTable(connect_dynamodb(account), settings.table_name)
    blobs = BlobStore(connect_objects(account, bucket), s3_client, bucket)
    packing = Packing.after_seconds(settings.pack_after_seconds)
    return Stores(table, blobs, recent=RecentBatches(recent_bytes), packing=packing)
