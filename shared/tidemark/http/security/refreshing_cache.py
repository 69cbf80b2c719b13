"""A value from elsewhere, kept for a while: keys that are fetched."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

_log = logging.getLogger("tidemark")
_T = TypeVar("_T")

#: How long it is taken for the present one: a key that is withdrawn holds for so long.
FRESH_SECONDS: Final = 300.0
#: How often somebody who misses something in it may make us look whether it is there by now.
MISSING_SECONDS: Final = 30.0
#: How soon it is tried again where fetching failed.
FAILED_SECONDS: Final = 5.0
#: How long it is good enough when there is no newer one to be had.
STALE_SECONDS: Final = 24 * 3600.0


class CannotFetch(Exception):
    """It was not there, or is not what it should be. The message quotes nothing of it."""


def _is_enough(_: object) -> bool:
    return True


class RefreshingCache(Generic[_T]):
    """Safe to share between threads; one fetches, the others wait for it."""

    def __init__(self, fetch: Callable[[], _T], clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._value: _T | None = None
        self._fetched_at = self._tried_at = -math.inf
        self._failed = False

    def get(self, is_enough: Callable[[_T], bool] = _is_enough) -> _T | None:
        """None where there is none to be had."""
        with self._lock:
            now = self._clock()
            if self._is_due(now, is_enough):
                self._refresh(now)
            return self._value if now - self._fetched_at <= STALE_SECONDS else None

    def _is_due(self, now: float, is_enough: Callable[[_T], bool]) -> bool:
        if now - self._tried_at < (FAILED_SECONDS if self._failed else MISSING_SECONDS):
            return False
        return self._value is None or now - self._fetched_at > FRESH_SECONDS or not is_enough(self._value)

    def _refresh(self, now: float) -> None:
        self._tried_at, self._failed = now, True
        try:
            self._value = self._fetch()
        except CannotFetch as failure:
            _log.warning("keys cannot be fetched: %s", failure)
        else:
            self._fetched_at, self._failed = now, False
