"""Tells whoever reads the table's stream that a request may just have written to it."""

from __future__ import annotations

import threading


class WriteSignal:
    """Of one server, for any number of threads that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: How often it was given.
        self.count = 0

    def give(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> int:
        """Until it was given more than `seen` times, or the time is over; how often it was given."""
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, seconds)
            return self.count
