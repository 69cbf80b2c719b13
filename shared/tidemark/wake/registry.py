"""This process's registrations as a waiter: one for each stream for which any request waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tidemark.log.records import Waiter
from tidemark.log.table import Table
from tidemark.log.waiters import put_waiter, remove_waiters

#: How long a registration lasts. It is renewed when half of that is used up and not for every
#: request, so a waiting minute costs a process one or two writes for each stream.
LIFE_MS: Final = 60_000
RENEW_MS: Final = LIFE_MS // 2


class _Registration:
    """A registration. It is written under its lock, so that many requests at once make one write."""

    __slots__ = ("lock", "until_ms")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.until_ms = 0


class Registry:
    """Safe to share between threads. Times are the wall clock's: a process may be frozen."""

    def __init__(self, table: Table, clock_ms: Callable[[], int]) -> None:
        self._table = table
        self._clock_ms = clock_ms
        self._registrations: dict[tuple[str, str], _Registration] = {}
        self._lock = threading.Lock()

    def ensure(self, incarnation: str, queue_url: str) -> None:
        """On return the registration is in the table and has at least half of its life left."""
        with self._lock:
            found = self._registrations.setdefault((incarnation, queue_url), _Registration())
        if self._is_fresh(found):
            return
        with found.lock:
            if self._is_fresh(found):
                return
            until_ms = self._clock_ms() + LIFE_MS
            put_waiter(self._table, Waiter(incarnation, queue_url, until_ms))
            found.until_ms = until_ms
        now_ms = self._clock_ms()
        with self._lock:
            lapsed = [name for name, each in self._registrations.items() if 0 < each.until_ms <= now_ms]
            for name in lapsed:
                del self._registrations[name]

    def _is_fresh(self, registration: _Registration) -> bool:
        return registration.until_ms - self._clock_ms() > RENEW_MS

    def withdraw(self) -> None:
        """Remove the registrations: the process ends."""
        with self._lock:
            registrations, self._registrations = self._registrations, {}
        remove_waiters(self._table, [Waiter(*name, each.until_ms) for name, each in registrations.items()])
