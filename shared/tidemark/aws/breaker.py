"""The circuit breaker: a service that is known to be silent is not asked again by every request.

A try that gets no answer costs its request five seconds or more. Once a service is known to be
silent, its calls fail at once, and one try each half second finds out whether it is back. The
first answer, whatever it says, closes the breaker: throttling and refusals are answers.

No I/O and no clock of its own: every method is told the time, in seconds of a clock that only
goes forward. Safe to share between threads.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

#: The breaker opens after so many tries in a row without an answer: one call makes two tries where
#: both time out, so a lonely call that meets a dead connection does not open it.
SILENT_TRIES: Final = 3
#: And only where the first of them was sent so long ago: connections that are refused fail within a
#: millisecond, and an engine's restart is not an outage.
SILENT_SECONDS: Final = 2.0
#: While it is open one try is let through in every such interval. The next does not wait for the last
#: one's timeout, so a service that is back is found within this time.
PROBE_SECONDS: Final = 0.5


class Breaker:
    """The circuit breaker of one service in one process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._silent_tries = 0
        self._silent_since = 0.0
        self._answered_at = float("-inf")
        self._probe_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self._probe_at is not None

    def admit(self, now: float) -> bool:
        """Whether a call may be sent now. While the breaker is open only a probe may."""
        if not self.is_open:
            return True
        with self._lock:
            if self._probe_at is None:  # It was closed just now.
                return True
            is_probe = now >= self._probe_at
            if is_probe:
                self._probe_at = now + PROBE_SECONDS
            return is_probe

    def answered(self, now: float) -> None:
        """The service has answered a try."""
        self._answered_at = now
        if self._silent_tries:
            with self._lock:
                self._silent_tries, self._probe_at = 0, None

    def silent(self, sent: float, now: float) -> None:
        """A try that was sent at `sent` has got no answer, or did not connect.

        One that was sent before the latest answer came says nothing about what is the case now.
        """
        if sent < self._answered_at:
            return
        with self._lock:
            self._silent_since = min(self._silent_since, sent) if self._silent_tries else sent
            self._silent_tries += 1
            is_silent = self._silent_tries >= SILENT_TRIES and now - self._silent_since >= SILENT_SECONDS
            if is_silent and self._probe_at is None:
                self._probe_at = now + PROBE_SECONDS


#: The breakers of this process, by service and endpoint: its clients share them.
_breakers: Final[dict[tuple[str, str], Breaker]] = {}


def breaker_of(service: str, endpoint: str) -> Breaker:
    return _breakers.setdefault((service, endpoint), Breaker())
