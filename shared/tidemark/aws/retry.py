"""One call to AWS: what can go wrong with it, and when it is sent again.

    attempts = Attempts(sleep, now)
    while True:
        try:
            return parse(*breaker.exchange(now, send, operation, request))
        except Failure as failure:
            if not attempts.go_on_after(failure):
                raise

This is not a library's: whether a call may be sent again depends on DynamoDB's codes inside cancelled
transactions, and a pause must not block the event loop where the call runs on it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from tidemark.observability.metrics import PROCESS, RETRIES

#: The breaker opens after so many tries in a row without an answer: one call makes two tries where
#: both time out, so a lonely call that meets a dead connection does not open it.
SILENT_TRIES: Final = 3
#: And only where the first of them was sent so long ago: connections that are refused fail within a
#: millisecond, and an engine's restart is not an outage.
SILENCE_SECONDS: Final = 2.0
#: While it is open one try is let through in every such interval. The next does not wait for the last
#: one's timeout, so a service that is back is found within this time.
BETWEEN_PROBES_SECONDS: Final = 0.5


class Breaker:
    """The circuit breaker of one client. `probe_at` is when the next try may be sent; None while it is
    closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._silent_tries = 0
        self._silent_since = 0.0
        self._answered_at = float("-inf")
        self.probe_at: float | None = None

    def admit(self, now: float) -> bool:
        """Whether a call may be sent now. While the breaker is open only a probe may."""
        with self._lock:
            if self.probe_at is None:  # It was closed just now.
                return True
            is_probe = now >= self.probe_at
            if is_probe:
                self.probe_at = now + BETWEEN_PROBES_SECONDS
            return is_probe

    def answered(self, now: float) -> None:
        """The service has answered a try."""
        self._answered_at = now
        if self._silent_tries:
            with self._lock:
                self._silent_tries, self.probe_at = 0, None

    def silent(self, sent: float, now: float) -> None:
        """A try that was sent at `sent` has got no answer, or did not connect.

        One that was sent before the latest answer came says nothing about what is the case now.
        """
        if sent < self._answered_at:
            return
        with self._lock:
            self._silent_since = min(self._silent_since, sent) if self._silent_tries else sent
            self._silent_tries += 1
            is_silent = self._silent_tries >= SILENT_TRIES and now - self._silent_since >= SILENCE_SECONDS
            if is_silent and self.probe_at is None:
                self.probe_at = now + BETWEEN_PROBES_SECONDS

    def exchange(
        self, now: Callable[[], float], send: Callable[..., tuple[int, bytes]], operation: str, *request: Any
    ) -> tuple[int, bytes]:
        """Send one request. The status and body of its reply, which is counted and timed as a storage call.
        Raises NoAnswer, and Silent in place of sending while the breaker is open."""
        sent, started = now(), time.perf_counter()
        if self.probe_at is not None and not self.admit(sent):
            raise Silent("the service does not answer; not sent")
        try:
            status, body = send(operation, *request)
        except NoAnswer:
            self.silent(sent, now())
            raise
        finally:
            PROCESS.called(operation, time.perf_counter() - started)
        self.answered(now())
        return status, body


class Failure(Exception):
    """A call that has not succeeded."""

    #: Whether the same call may succeed a moment later.
    retryable = False
    #: Whether nothing was done, by this attempt or one before it.
    outcome_known = True


class NoAnswer(Failure):
    """The request may or may not have arrived: there is no reply, or only a part of one."""

    retryable = True
    outcome_known = False


class Silent(Failure):
    """Not sent: the service is known to be silent (`aws/retry.py`)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is sent at most, and how long after the first attempt the last one may begin.
    `pause_seconds` is told how many attempts have failed; `retryable` decides what is worth another."""

    tries: float
    patience_seconds: float
    pause_seconds: Callable[[int], float]
    retryable: Callable[[Failure], bool] = lambda failure: failure.retryable


#: For calls that a request waits for: six attempts, the last after at most 1.6 seconds if each is refused at
#: once. No attempt begins after six seconds of silence: a gateway gives up at thirty.
REQUEST_POLICY: Final = RetryPolicy(6, 6.0, lambda failed: random.uniform(0, 0.025 * 2**failed))


def patient_policy(pause_seconds: float, patience_seconds: float) -> RetryPolicy:
    """The policy of background calls: they are also retried while the service is known to be silent."""
    return RetryPolicy(
        math.inf,
        patience_seconds,
        lambda _failed: pause_seconds,
        lambda failure: failure.retryable or isinstance(failure, Silent),
    )


class Attempts:
    """The attempts of one call, in seconds of a clock that only goes forward."""

    def __init__(
        self, sleep: Callable[[float], None], now: Callable[[], float], policy: RetryPolicy = REQUEST_POLICY
    ) -> None:
        self._sleep, self._now, self._policy = sleep, now, policy
        self._give_up_at = now() + policy.patience_seconds
        self._failed = 0
        self._outcome_known = True

    def go_on_after(self, failure: Failure) -> bool:
        """Whether another attempt follows, now that it has paused. If an earlier attempt had no reply, the
        failure does not tell the outcome of the call."""
        self._failed += 1
        self._outcome_known = failure.outcome_known = self._outcome_known and failure.outcome_known
        is_over = self._failed >= self._policy.tries or self._now() >= self._give_up_at
        if is_over or not self._policy.retryable(failure):
            return False
        PROCESS.add(RETRIES)
        self._sleep(self._policy.pause_seconds(self._failed))
        return True
