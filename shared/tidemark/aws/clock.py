"""The time, by the clock of storage where this machine's own is wrong.

A process whose clock is ten minutes fast would end streams that live, for everybody, and take mail of other
writers for old. Every reply of AWS has a `Date` (RFC 9110 §6.6.1): it was written between the moment at which
the request was sent and that at which the reply came. So it bounds how far the two clocks are apart, however
slow the reply was, and costs no call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from tidemark.observability.metrics import CLOCK_OFF, PROCESS

#: Less is within what clocks differ by, and `Date` has whole seconds.
TOLERATED_SECONDS: Final = 2.0
#: Between two looks at a reply's date, which costs some microseconds. After a jump there is one at once.
BETWEEN_LOOKS_SECONDS: Final = 10.0

_log: Final = logging.getLogger("tidemark")


class StorageClock:
    """The clock of one process. `ahead_seconds` is how far this machine's clock is ahead of storage's, at
    least; negative where it is behind, and 0 where that is tolerated."""

    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._next_look = self._apart = self._ahead = 0.0
        self.ahead_seconds = 0.0

    def sent(self) -> float | None:
        """When a request is sent whose reply is to be looked at; None if that is too soon."""
        now, up = self._clock(), self._monotonic()
        has_jumped = abs(now - up - self._apart) >= TOLERATED_SECONDS
        return now if has_jumped or up >= self._next_look else None

    def received(self, sent: float, headers: Mapping[str, str]) -> None:
        try:
            date = parsedate_to_datetime(headers.get("date", "")).timestamp()
        except ValueError:
            return  # No date, or none that can be read.
        now, up = self._clock(), self._monotonic()
        self._next_look, self._apart = up + BETWEEN_LOOKS_SECONDS, now - up
        least, most = sent - (date + 1), now - date
        before, self._ahead = self._ahead, min(max(self._ahead, least), most)
        self.ahead_seconds = self._ahead if abs(self._ahead) >= TOLERATED_SECONDS else 0.0
        if self.ahead_seconds:
            PROCESS.add(CLOCK_OFF)
            if abs(before - self._ahead) > TOLERATED_SECONDS:
                ahead = f"{abs(self._ahead):.0f} s {'ahead of' if self._ahead > 0 else 'behind'}"
                _log.warning(
                    "This machine's clock is %s storage's, by which it goes now; set it right", ahead
                )

    def now_ms(self) -> int:
        """Milliseconds since 1970, by storage's clock where this machine's own is off."""
        return round((self._clock() - self.ahead_seconds) * 1000)


#: The clock of this process.
CLOCK: Final = StorageClock()
