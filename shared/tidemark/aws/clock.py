"""The current time, corrected by storage's clock if this machine's clock is wrong.

A process whose clock is ten minutes fast would end live streams for all clients and ignore other writers'
mail as too old. Every reply of AWS has a `Date` (RFC 9110 §6.6.1), written between the sending of the request
and the arrival of the reply. The date therefore bounds the difference between the two clocks, for replies of
any duration and without an extra call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from tidemark.observability.metrics import CLOCK_OFF, PROCESS

#: Smaller differences between clocks are normal, and `Date` has whole seconds.
TOLERATED_SECONDS: Final = 2.0
#: Seconds between two checks of a reply's date. A jump of the clock is checked at once.
BETWEEN_LOOKS_SECONDS: Final = 10.0

_log: Final = logging.getLogger("tidemark")


class StorageClock:
    """The clock of one process. `ahead_seconds` is the least time by which this machine's clock is ahead of
    storage's; negative if it is behind, 0 within the tolerance."""

    def __init__(
        self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._next_look = self._apart = self._ahead = 0.0
        self.ahead_seconds = 0.0

    def sent(self) -> float | None:
        """Return the time of sending; None if the last check of a reply's date is recent."""
        now, up = self._clock(), self._monotonic()
        has_jumped = abs(now - up - self._apart) >= TOLERATED_SECONDS
        return now if has_jumped or up >= self._next_look else None

    def received(self, sent: float, headers: Mapping[str, str]) -> None:
        try:
            date = parsedate_to_datetime(headers.get("date", "")).timestamp()
        except ValueError:
            return  # The date is missing or malformed.
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
                    "This machine's clock is %s storage's, whose time is used now; correct this clock", ahead
                )

    def now_ms(self) -> int:
        """Return Unix milliseconds, by storage's clock if this machine's clock is wrong."""
        return round((self._clock() - self.ahead_seconds) * 1000)


#: The clock of this process.
CLOCK: Final = StorageClock()
