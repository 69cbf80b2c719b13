"""Calls that may be repeated, repeated for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0


def retry(act: Callable[[], T], seconds: float, *errors: type[Exception]) -> T:
    """Return the result of `act`. One of the `errors` is retried, with longer and longer pauses, until
    `seconds` have passed: then the last error is raised."""
    deadline = time.monotonic() + seconds
    delay = _FIRST_DELAY_SECONDS
    while True:
        try:
            return act()
        except errors:
            if time.monotonic() + delay > deadline:
                raise
        time.sleep(random.uniform(0.5, 1) * delay)
        delay = min(_LONGEST_DELAY_SECONDS, 2 * delay)
