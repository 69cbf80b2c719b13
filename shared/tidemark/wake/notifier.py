"""The notifier: from the table's stream records to the queues of those who wait.

A record is a doorbell. Nothing is read from it but which log has grown, so order and
duplicates among records do not matter, and every batch may be processed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tidemark.aws.sqs import QueueGone, Queues
from tidemark.log.records import Waiter
from tidemark.log.schema import decode_batch_start, is_log_pk
from tidemark.log.table import Table
from tidemark.log.waiters import load_waiters, remove_waiters
from tidemark.wake.ring import Ring, encode_ring

_T = TypeVar("_T")
_R = TypeVar("_R")

#: A stream may have a thousand waiters with a queue each, and a send is waiting mostly.
_THREADS: Final = 32

Failures = dict[str, Exception]
"""What went wrong, by log: the records of these logs are to be delivered again."""


def ring_of(record: Mapping[str, Any]) -> Ring | None:
    """The ring that a stream record stands for; None where it is not a new batch.

    Raises KeyError, ValueError for what is not a record of the table's.
    """
    keys = record["dynamodb"]["Keys"]
    pk: str = keys["pk"]["S"]
    if record["eventName"] != "INSERT" or not is_log_pk(pk):
        return None
    return Ring(pk, decode_batch_start(keys["sk"]["S"]))


class Notifier:
    """One query for each log and one send for each queue, however many records there are."""

    def __init__(self, table: Table, queues: Queues, clock_ms: Callable[[], int]) -> None:
        self._table = table
        self._queues = queues
        self._clock_ms = clock_ms
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-notify")

    def notify(self, rings: Iterable[Ring]) -> Failures:
        """Ring whoever waits for these logs."""
        failures: Failures = {}
        found = self._each(lambda ring: self._load(ring, failures), _newest(rings))
        by_queue: dict[str, list[tuple[Ring, Waiter]]] = defaultdict(list)
        for ring, waiters in found:
            for waiter in waiters:
                by_queue[waiter.queue_url].append((ring, waiter))
        self._each(lambda wanted: self._send(*wanted, failures), list(by_queue.items()))
        return failures

    def _load(self, ring: Ring, failures: Failures) -> tuple[Ring, list[Waiter]]:
        try:
            return ring, load_waiters(self._table, ring.incarnation, self._clock_ms())
        except Exception as failure:  # noqa: BLE001 - it is reported for this log alone
            failures[ring.log_pk] = failure
            return ring, []

    def _send(self, url: str, wanted: Sequence[tuple[Ring, Waiter]], failures: Failures) -> None:
        """A queue that is gone belongs to nobody any more: that is no failure."""
        try:
            try:
                self._queues.send(url, [encode_ring(ring) for ring, _ in wanted])
            except QueueGone:
                remove_waiters(self._table, [waiter for _, waiter in wanted])
        except Exception as failure:  # noqa: BLE001 - it is reported for these logs alone
            failures |= {ring.log_pk: failure for ring, _ in wanted}

    def _each(self, call: Callable[[_T], _R], arguments: Sequence[_T]) -> list[_R]:
        """At once, where there are several."""
        if len(arguments) <= 1:
            return [call(argument) for argument in arguments]
        return list(self._pool.map(call, arguments))


def _newest(rings: Iterable[Ring]) -> list[Ring]:
    """Of each log, the ring that goes furthest: who is behind it is behind the others too."""
    newest: dict[str, Ring] = {}
    for ring in rings:
        known = newest.get(ring.log_pk)
        if known is None or ring.start > known.start:
            newest[ring.log_pk] = ring
    return list(newest.values())
