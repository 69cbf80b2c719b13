"""Fairness between webhooks: receivers that hang hold up no others.

A first call has a second, whoever is called. What takes longer is bounded twice:

    slots   of all processes: a slow call holds up a batch of notices, so the table has a few places for them
    turns   of this process: a few of its deliveries compute at once, and those whose stream keeps nobody else
            busy come first

Slots are in the table because every process must know them, and turns in memory because each notice takes
one.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from typing import Final, TypeVar
from urllib.parse import urlsplit

from tidemark.log.schema import UNTIL_MS
from tidemark.log.table import IF_ABSENT, AnyOf, Compared, ConditionFailed, equals
from tidemark.service.stores import Stores
from tidemark.subscriptions.notices import Appended, Notice
from tidemark.subscriptions.records import WRITE_ID, slow_slot_key

_T = TypeVar("_T")

#: How long a call may take where the receiver has not been slow before.
FIRST_MS: Final = 1_000
#: How long a call may take at most; never longer than the lease.
WEBHOOK_MS: Final = 10_000
#: Beyond the call itself: an attempt that has not ended by then has died.
SPARE_MS: Final = 5_000
#: Calls of slow webhooks at once, of all processes together. Each may hold up a whole batch of notices, so it
#: is half of the template's MaximumConcurrency: the other half is left to the quick.
SLOW_SLOTS: Final = 50
#: The most of these for one host.
SLOTS_OF_A_HOST: Final = 2
#: How many that come later may pass a delivery, for each that its stream has under way already.
_PASSED_BY: Final = 1000
#: A retry waits as a delivery whose stream has so many under way.
_LATER: Final = 10


class Fairness:
    """`places`: how many deliveries compute at once. In Lambda there are few in a process, and all may."""

    def __init__(self, places: float = math.inf) -> None:
        #: The slots that this process has: it need not ask the table whether they are free.
        self._held: set[int] = set()
        self._free = places
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []
        self._came = 0
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def slot(self, stores: Stores, url: str) -> Iterator[bool]:
        """Whether there was a slot for a call of this URL's host; it is freed at the end."""
        first, taken_by = zlib.crc32(urlsplit(url).netloc.encode()), stores.new_id()
        slots = {(first + more) % SLOW_SLOTS for more in range(SLOTS_OF_A_HOST)} - self._held
        slot = next((slot for slot in slots if _take_slot(stores, slot, taken_by)), None)
        if slot is None:
            yield False
            return
        self._held.add(slot)
        try:
            yield True
        finally:
            self._held.discard(slot)
            with suppress(ConditionFailed):  # It was taken for dead, and another one has the slot.
                stores.table.delete(slow_slot_key(slot), equals(WRITE_ID, taken_by))

    # Turns: an append to a stream that keeps nobody busy comes before the rest of a crowd that another append
    # concerns, and both before retries. Each is passed by a bounded number.

    def begin(self, notice: Notice, start: Callable[[], object]) -> None:
        """`start` it when it has its turn; then it must `end`."""
        ahead = _LATER
        if isinstance(notice, Appended):
            with self._lock:
                ahead = min(self._under_way[notice.mark.path], _LATER - 1)
                self._under_way[notice.mark.path] += 1
        self._take(ahead, start)

    def end(self, notice: Notice) -> None:
        if isinstance(notice, Appended):
            with self._lock:
                self._under_way[notice.mark.path] -= 1
                self._under_way += Counter()  # Forgets those at zero.
        self._give()

    def meanwhile(self, call: Callable[[], _T]) -> _T:
        """Waiting for a webhook takes no turn. What follows a call in vain is as late as a retry."""
        self._give()
        ahead = _LATER
        try:
            response = call()
            ahead = 0
            return response
        finally:
            goes_on = threading.Event()
            self._take(ahead, goes_on.set)
            goes_on.wait()

    def _take(self, ahead: int, start: Callable[[], object]) -> None:
        with self._lock:
            self._came += 1
            if not self._free:
                heappush(self._waiting, (self._came + _PASSED_BY * ahead, self._came, start))
                return
            self._free -= 1
        start()

    def _give(self) -> None:
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            *_, start = heappop(self._waiting)
        start()


def _take_slot(stores: Stores, slot: int, taken_by: str) -> bool:
    """Whether it was free. A slot whose holder died is free again after the longest call."""
    now_ms = stores.clock_ms()
    until_ms = now_ms + WEBHOOK_MS + SPARE_MS
    item = slow_slot_key(slot) | {WRITE_ID: {"S": taken_by}, UNTIL_MS: {"N": str(until_ms)}}
    try:
        stores.table.put(item, AnyOf(IF_ABSENT, Compared(UNTIL_MS, "<=", now_ms)))
    except ConditionFailed:
        return False
    return True
