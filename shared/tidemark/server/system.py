"""The embedded system: engine, application and background workers in one process.

Threads replace Lambda's triggers: they pass changes of the table (queue `changes`) to the subscriptions and
the registry of streams, make deliveries (queue `notices`), and run the janitor.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from tidemark.aws.clock import CLOCK
from tidemark.engine.database import Database
from tidemark.engine.files import BlobFiles
from tidemark.engine.sqlite_file import MEMORY, UnusableDatabase
from tidemark.engine.table import EmbeddedQueue, EmbeddedTable, QueuedMessage
from tidemark.http.backend import embedded_backend
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.read import load_stream
from tidemark.log.records import Batch, Pack
from tidemark.log.schema import PK, PLAIN_EPOCH, SK, ItemWrite, Key, decode_write, make_key, stream_key
from tidemark.log.tails import CAPACITY_BYTES, RecentBatches, StreamHead, TailCache
from tidemark.protocol.errors import Damaged, ProtocolError, StorageUnavailable
from tidemark.protocol.stream_key import MAX_LIMIT
from tidemark.server.request_log import report_failure
from tidemark.service.stores import MEGABYTE, Stores
from tidemark.service.stream_registry import REGISTRY, StreamRegistry, written_by
from tidemark.settings import Settings
from tidemark.subscriptions.deliveries import Deliverer
from tidemark.subscriptions.notices import NotANotice, Notice, Subscribers, changed_from_write, decode_notice
from tidemark.subscriptions.pending import remind
from tidemark.subscriptions.records import ROSTER_PK
from tidemark.subscriptions.signing_keys import connect_signing_keys
from tidemark.subscriptions.storage import load_roster
from tidemark.subscriptions.webhook import Fairness
from tidemark.wake.follow import WakeByHub
from tidemark.wake.notifier import message_from_write

_T = TypeVar("_T")
_A = TypeVar("_A")
_B = TypeVar("_B")

#: The most notices in memory, running or waiting for their turn. Each can have a thread, so that a slow
#: webhook delays no other delivery. Threads start when they are needed.
_DELIVERIES: Final = 4000
#: The most messages that one write takes from the queue.
_TOGETHER: Final = 256
#: Deliveries that compute or use the engine at once; more would only wait for each other.
_TURNS: Final = 32
#: The most changes that are passed on together.
_CHANGES: Final = 256
#: Visibility timeout: a message that is not done by then is taken again. Longer than the longest delivery.
_HIDDEN_SECONDS: Final = 60.0
#: The interval between polls for delayed messages, which set no event when they are due.
_LOOK_SECONDS: Final = 0.5
#: The pause after a failure.
_TROUBLE_SECONDS: Final = 1.0

_REMEDY: Final = "`tidemark verify` names all that is damaged; a server starts on a backup"

#: Calls that may run while the event loop waits; together they take about 1 ms. A page has fewer bodies.
_QUICK_CALLS: Final = 64

_log: Final = logging.getLogger("tidemark")


class InOrder:
    """`service.stores.Concurrency` without threads, because the engine runs one call at a time anyway."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pair(self, one: Callable[[], _A], other: Callable[[], _B]) -> tuple[_A, _B]:
        return one(), other()

    def each(self, call: Callable[[_A], _T], items: Sequence[_A]) -> list[_T]:
        if len(items) <= _QUICK_CALLS:
            return [call(item) for item in items]
        self._database.check_fast()
        results: list[_T] = []
        for start in range(0, len(items), _QUICK_CALLS):
            some = items[start : start + _QUICK_CALLS]
            results += self._database.together(lambda some=some: [call(item) for item in some])  # type: ignore[misc]
        return results

    def compute(self, call: Callable[[], _T]) -> _T:
        self._database.check_fast()
        return call()

    def sleep(self, seconds: float) -> None:
        if seconds:
            self._database.check_fast()
            time.sleep(seconds)


class CommittedBatches(RecentBatches):
    """Recent batches, which waiting readers get without a read of the table. A batch is added when its turn
    is committed, and never if its turn is rolled back."""

    def __init__(self, capacity_bytes: int, database: Database) -> None:
        super().__init__(capacity_bytes)
        self._database = database

    def keep(self, incarnation: str, *batches: Batch) -> tuple[Batch, ...]:
        shared, keep = [batches], super().keep
        self._database.then(lambda: shared.append(keep(incarnation, *batches)))
        return shared[-1]

    def keep_found(self, incarnation: str, entry: Batch | Pack) -> None:
        keep_found = super().keep_found
        self._database.then(lambda: keep_found(incarnation, entry))


class CommittedTails(TailCache):
    """Tails of committed turns only. Other threads read them while a turn is being committed. If that turn
    were rolled back, an append at its tail would leave a gap, and no reader would reach that append."""

    def __init__(self, database: Database) -> None:
        super().__init__(max(CAPACITY_BYTES, memory_bytes() // 32))
        self._database = database

    def learn(self, head: StreamHead) -> None:
        learn = super().learn
        self._database.then(lambda: learn(head))


def memory_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """The memory of this machine, or its container's limit if that is less; 0 if unknown, as on Windows."""
    memory = 0
    with suppress(AttributeError, OSError, ValueError):  # The limit may be missing, or "max".
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = min(memory, int(limit.read_text()))
    return memory


class EmbeddedSystem:
    """Keeps its data in `data_dir`, or in memory. Raises UnusableDatabase, FormatTooNew, OSError."""

    def __init__(self, settings: Settings, data_dir: Path | None, blobs_dir: Path) -> None:
        self.settings = settings
        self.database = Database(data_dir / "tidemark.db" if data_dir else MEMORY)
        self.blobs = BlobFiles(blobs_dir, self.database.check_fast, settings.public_url)
        self.wake = WakeByHub()
        self.changes = EmbeddedQueue(self.database, "change", CLOCK.now_ms)
        self.notices = EmbeddedQueue(self.database, "attention", CLOCK.now_ms)
        #: Whether changes are queued: only if there are subscriptions or a registry.
        self._is_followed = False
        self.table = EmbeddedTable(self.database, self._written)
        self.stores = Stores(
            self.table,
            self.blobs,
            tails=CommittedTails(self.database),
            recent=CommittedBatches(64 * MEGABYTE, self.database),
            concurrency=InOrder(self.database),
            packing=Packing.after_seconds(settings.pack_after_seconds),
            listed_at_once=MAX_LIMIT,
        )
        self._is_followed = self._begin()
        self.backend = embedded_backend(
            self.stores, settings, self.database.run, self.wake, self.database.probe
        )

    def _begin(self) -> bool:
        """Return whether changes are queued. Raises UnusableDatabase, a message of one line, if the database
        is too damaged. If only subscriptions are damaged, the server serves the streams without them."""
        faults = (Damaged, KeyError, StorageUnavailable, TypeError, ValueError)
        _log.disabled = True
        try:
            self.stores.check_format(PLAIN_EPOCH)
        except faults as fault:
            self.close()
            raise UnusableDatabase(
                f"{self.database.path} cannot be used: {fault.__cause__ or repr(fault)}; {_REMEDY}"
            ) from fault
        finally:
            _log.disabled = False
        try:
            return bool(load_roster(self.table)) or load_stream(self.table, REGISTRY) is not None
        except faults as fault:
            _log.error("subscriptions wait: %s; %s", fault.__cause__ or repr(fault), _REMEDY)
            return True

    def _written(self, db: sqlite3.Connection, event: str, key: Key) -> None:
        """Wake readers and queue the change, as the table's stream and its trigger do on AWS."""
        pk, sk = key[PK]["S"], key[SK]["S"]
        record = {"eventName": event, "dynamodb": {"Keys": {PK: {"S": pk}, SK: {"S": sk}}}}
        if (message := message_from_write(ItemWrite(event, pk, sk))) is not None:
            self.database.then(lambda: self.wake.hub.wake(message.key, message.incarnation, message.start))
        if not self._is_followed:
            self._is_followed = pk == ROSTER_PK or make_key(pk, sk) == stream_key(REGISTRY)
        if self._is_followed and event != "REMOVE":
            self.changes.send_with(db, [json.dumps(record)])

    @contextmanager
    def working(self, janitor_seconds: float) -> Iterator[None]:
        """Run the engine's thread and the background workers until the end of the block. With 0 as
        `janitor_seconds` no janitor runs."""
        keys = connect_signing_keys(self.settings, self.stores)
        deliverer = Deliverer(self.stores, self.notices.send, keys, self.settings)
        workers: list[Worker] = [
            Worker(
                "changes", ChangeFollower(self.stores, self.changes, self.notices).work, self.changes.news
            ),
            Worker("deliveries", Deliveries(self.notices, deliverer).work, self.notices.news),
        ]
        if janitor_seconds:
            workers.append(Worker("janitor", self._clean, interval_seconds=janitor_seconds))
        with self.database.serving():
            for worker in workers:
                worker.start()
            try:
                yield
            finally:
                for worker in workers:
                    worker.stop()

    def _clean(self) -> None:
        while self.table.remove_expired(self.stores.clock_ms()):
            pass
        sweep(self.stores)
        remind(self.stores, self.notices.send)
        while self.database.give_back():
            pass

    def close(self) -> None:
        self.database.close()


class ChangeFollower:
    """Passes changes of the table to the subscriptions and to the registry of streams."""

    def __init__(self, stores: Stores, changes: EmbeddedQueue, notices: EmbeddedQueue) -> None:
        self._changes = changes
        self._subscribers = Subscribers(stores.table, notices.send)
        self._registry = StreamRegistry(stores)

    def work(self) -> bool:
        """Handle some changes. Return whether there were any. Failed changes are retried."""
        taken = self._changes.take(_CHANGES, _HIDDEN_SECONDS)
        if taken:
            writes = [decode_write(json.loads(each.body)) for each in taken]
            appends = filter(None, map(message_from_write, writes))
            self._subscribers.notify(appends, filter(None, map(changed_from_write, writes)))
            self._registry.append_changes(written_by(writes))
            self._changes.done(taken)
        return bool(taken)


class Deliveries:
    """Handles notices about subscriptions, several at once."""

    def __init__(self, notices: EmbeddedQueue, deliverer: Deliverer) -> None:
        self._notices = notices
        self._fairness = Fairness(places=_TURNS)
        self._deliverer = replace(deliverer, fairness=self._fairness)
        self._free = threading.Semaphore(_DELIVERIES)
        self._pool = ThreadPoolExecutor(_DELIVERIES, thread_name_prefix="tidemark-deliver")

    def work(self) -> bool:
        self._free.acquire()  # While no place is free, the messages stay in the queue.
        places = 1 + sum(self._free.acquire(blocking=False) for _ in range(_TOGETHER - 1))
        taken = self._notices.take(places, _HIDDEN_SECONDS)
        if len(taken) < places:
            self._free.release(places - len(taken))
        for message in taken:
            self._begin(message)
        return bool(taken)

    def _begin(self, message: QueuedMessage) -> None:
        try:
            notice = decode_notice(message.body)
        except NotANotice:
            self._notices.done([message])
            self._free.release()
        else:
            self._fairness.begin(notice, lambda: self._pool.submit(self._handle, message, notice))

    def _handle(self, message: QueuedMessage, notice: Notice) -> None:
        try:
            self._deliverer.handle(notice)
            self._notices.done([message])
        except Exception:  # noqa: BLE001 - the notice is retried after any error
            _log.exception("a subscription could not be handled; the notice is retried")
        finally:
            self._fairness.end(notice)
            self._free.release()


class Worker:
    """A thread that repeats its work: at once while there is more, when `news` is set, or after an interval.
    The end of the process may cut the work off at any point, as on Lambda."""

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        news: threading.Event | None = None,
        interval_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._work = work
        self._news = news or threading.Event()
        self._interval_seconds = interval_seconds
        self._works_at_once = news is not None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"tidemark-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._news.set()

    def _run(self) -> None:
        if not self._works_at_once:
            self._news.wait(self._interval_seconds)
        while not self._is_stopped:
            self._news.clear()
            pause = self._interval_seconds
            try:
                if self._work() and self._works_at_once:
                    pause = 0
            except Exception as error:  # noqa: BLE001 - the next round retries after any error
                if isinstance(error, ProtocolError):  # Storage does not answer: a traceback adds nothing.
                    _log.warning("background work waits: %s", error.message)
                elif not self._is_stopped:
                    report_failure(error)
                pause = max(pause, _TROUBLE_SECONDS)
            if pause:
                self._news.wait(pause)
