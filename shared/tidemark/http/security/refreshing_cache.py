"""A cache of one fetched value, such as keys, that refreshes itself."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from tidemark.observability.metrics import KEY_FAILURES, PROCESS

_log = logging.getLogger("tidemark")
_T = TypeVar("_T")

#: How long a fetched value counts as current: a withdrawn key is accepted for so long.
FRESH_SECONDS: Final = 300.0
#: How often a caller that misses something in the value may make us fetch it again.
MISSING_SECONDS: Final = 30.0
#: How soon a failed fetch is tried again.
FAILED_SECONDS: Final = 5.0
#: How long an old value is used while no newer one can be fetched.
STALE_SECONDS: Final = 24 * 3600.0
#: How long a caller waits for the first value where the source is only busy. After a deployment all
#: environments ask SSM in the same seconds. The HTTP API gives up at thirty, and storage needs some of them.
PATIENCE_SECONDS: Final = 15.0
#: Between two attempts of that: half of it on average.
LONGEST_PAUSE_SECONDS: Final = 4.0


class CannotFetch(Exception):
    """The value is not there, or is not valid. The message quotes nothing of it."""

    def __init__(self, message: str, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.throttled = throttled


class Patience:
    """The patience of callers, for all values that one source is asked for: a request that needs two of them
    does not wait twice as long."""

    def __init__(self) -> None:
        self._until = -math.inf

    def until(self, now: float) -> float:
        """The time at which a caller gives up. After that and a pause, callers have patience anew."""
        if now > self._until + FAILED_SECONDS:
            self._until = now + PATIENCE_SECONDS
        return self._until


#: A process has one retry budget for all SSM parameters.
WITH_SSM: Final = Patience()


def pauses(clock: Callable[[], float], patience: Patience | None = None) -> Iterator[float]:
    """Pauses between the attempts to fetch a first value from a busy source, for as long as a caller waits.
    Random, so that environments that began together do not ask together again."""
    give_up_at = (patience or Patience()).until(clock())
    while clock() < give_up_at:
        yield random.uniform(0, LONGEST_PAUSE_SECONDS)


class RefreshingCache(Generic[_T]):
    """Safe to share between threads; one fetches, the others wait for it."""

    def __init__(
        self,
        fetch: Callable[[], _T],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience | None = None,
    ) -> None:
        self._fetch = fetch
        self._patience = patience
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._value: _T | None = None
        self._fetched_at = self._tried_at = -math.inf
        self._failed = False

    def get(self, is_enough: Callable[[_T], bool] = lambda _: True) -> _T | None:
        """The value, fetched again where it is old or not enough; None if none can be fetched."""
        with self._lock:
            now = self._clock()
            may_try = now - self._tried_at >= (FAILED_SECONDS if self._failed else MISSING_SECONDS)
            is_old = self._value is None or now - self._fetched_at > FRESH_SECONDS
            if may_try and (is_old or (self._value is not None and not is_enough(self._value))):
                self._tried_at, self._failed = now, True
                try:
                    self._value = self._fetch_patiently()
                except CannotFetch as failure:
                    PROCESS.add(KEY_FAILURES)
                    _log.warning("keys cannot be fetched: %s", failure)
                else:
                    self._fetched_at, self._failed = now, False
            return self._value if now - self._fetched_at <= STALE_SECONDS else None

    def _fetch_patiently(self) -> _T:
        """Raises CannotFetch. If there is an old value, a busy source is not retried."""
        for pause in pauses(self._clock, self._patience):
            try:
                return self._fetch()
            except CannotFetch as failure:
                if not failure.throttled or self._value is not None:
                    raise
            self._sleep(pause)
        return self._fetch()
