"""One call to AWS: its failures, and when it is retried.

    attempts = Attempts(sleep, now)
    while True:
        try:
            return parse(*breaker.exchange(now, send, operation, request))
        except Failure as failure:
            if not attempts.go_on_after(failure):
                raise

No library does this: whether a call may be retried depends on DynamoDB's codes inside cancelled transactions,
and a pause must not block an event loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from tidemark.observability.metrics import PROCESS, RETRIES

#: The circuit breaker opens after this many attempts in a row without an answer. One call makes two attempts
#: if both time out, so a single call on a dead connection does not open the breaker.
SILENT_TRIES: Final = 3
#: The breaker also needs this many seconds since the first of these attempts: refused connections fail within
#: a millisecond, and an engine's restart is not an outage.
SILENCE_SECONDS: Final = 2.0
#: While the breaker is open, one attempt is sent in every such interval, in seconds. The next does not wait
#: for the last one's timeout, so a recovered service is found within this time.
BETWEEN_PROBES_SECONDS: Final = 0.5


class Breaker:
    """The circuit breaker of one client. `probe_at` is the time of the next probe; None while closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._silent_tries = 0
        self._silent_since = 0.0
        self._answered_at = float("-inf")
        self.probe_at: float | None = None

    def admit(self, now: float) -> bool:
        """Whether a call may be sent now. While the breaker is open, only a probe may."""
        with self._lock:
            if self.probe_at is None:  # The breaker was closed just now.
                return True
            is_probe = now >= self.probe_at
            if is_probe:
                self.probe_at = now + BETWEEN_PROBES_SECONDS
            return is_probe

    def answered(self, now: float) -> None:
        self._answered_at = now
        if self._silent_tries:
            with self._lock:
                self._silent_tries, self.probe_at = 0, None

    def silent(self, sent: float, now: float) -> None:
        """Note that the attempt sent at `sent` got no answer, or did not connect.

        An attempt that was sent before the latest answer arrived proves nothing about the current state.
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
        """Send one request and return the status and body of its reply. The exchange is counted and timed as
        a storage call. Raises NoAnswer, or Silent without sending while the breaker is open."""
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
    """A failed call."""

    #: Whether the same call may succeed a moment later.
    retryable = False
    #: Whether it is certain that no attempt of the call had an effect.
    outcome_known = True


class NoAnswer(Failure):
    """The reply is missing or incomplete, and the request may or may not have arrived."""

    retryable = True
    outcome_known = False


class Silent(Failure):
    """The call was not sent, because the service has stopped answering (`aws/retry.py`)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The most attempts of a call, and the most seconds between the first attempt and the start of the last.
    `pause_seconds` maps the number of failed attempts to a pause; `retryable` selects failures."""

    tries: float
    patience_seconds: float
    pause_seconds: Callable[[int], float]
    retryable: Callable[[Failure], bool] = lambda failure: failure.retryable


#: For calls within a request: six attempts, the last after at most 1.6 s if each is refused at once. No
#: attempt begins after 6 s, because a gateway times out after 30 s.
REQUEST_POLICY: Final = RetryPolicy(6, 6.0, lambda failed: random.uniform(0, 0.025 * 2**failed))


class Attempts:
    """The attempts of one call, timed by a monotonic clock in seconds."""

    def __init__(
        self, sleep: Callable[[float], None], now: Callable[[], float], policy: RetryPolicy = REQUEST_POLICY
    ) -> None:
        self._sleep, self._now, self._policy = sleep, now, policy
        self._give_up_at = now() + policy.patience_seconds
        self._failed = 0
        self._outcome_known = True

    def go_on_after(self, failure: Failure) -> bool:
        """Pause and return True if another attempt follows. If an earlier attempt had no reply, the failure
        is marked as one with an unknown outcome."""
        self._failed += 1
        self._outcome_known = failure.outcome_known = self._outcome_known and failure.outcome_known
        is_over = self._failed >= self._policy.tries or self._now() >= self._give_up_at
        if is_over or not self._policy.retryable(failure):
            return False
        PROCESS.add(RETRIES)
        self._sleep(self._policy.pause_seconds(self._failed))
        return True
