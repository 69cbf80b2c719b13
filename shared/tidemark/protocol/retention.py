"""Retention: the data that is trimmed, and the times of the janitor's checks (docs/retention.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemark.protocol.errors import Malformed
from tidemark.protocol.header_values import parse_integer

AGE_HEADER: Final = "Stream-Retain-Seconds"
SIZE_HEADER: Final = "Stream-Retain-Bytes"

_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Retention:
    """A stream keeps messages for at least `seconds`, and at least its last `size` bytes; None is no limit.
    With both, data beyond either limit is trimmed."""

    seconds: int | None = None
    size: int | None = None

    @property
    def is_limited(self) -> bool:
        return self.seconds is not None or self.size is not None

    def named(self, seconds: str, size: str) -> dict[str, int]:
        limits = {seconds: self.seconds, size: self.size}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def next_look_ms(self, now_ms: int, oldest_ms: int | None, written_ms: int, phase_ms: int) -> int:
        """Return the time of the next look at the stream: at most an hour after data may be due for trimming.

        `oldest_ms` is the time of the first retained message (None: no message), and `written_ms` of the
        last. The longer a stream with a size limit is idle, the later the next look, up to a day. Looks are
        at multiples of 1, 2, 4, … hours, shifted by `phase_ms`, so that a duplicate entry in the janitor's
        queue soon merges with the first.
        """
        waits = []
        if self.seconds is not None:
            waits.append((now_ms if oldest_ms is None else oldest_ms) + self.seconds * 1000 - now_ms)
        if self.size is not None:
            waits.append(min(now_ms - written_ms, _DAY_MS))
        step = _HOUR_MS
        while step * 2 <= min(waits):
            step *= 2
        return (now_ms - phase_ms) // step * step + step + phase_ms


FOREVER: Final = Retention()


def parse_retention(seconds: str | None, size: str | None) -> Retention:
    """Raises Malformed."""
    return Retention(_parse_limit(AGE_HEADER, seconds), _parse_limit(SIZE_HEADER, size))


def _parse_limit(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    limit = parse_integer(name, value)
    if limit == 0:
        raise Malformed(f"{name} must be at least 1; leave it out to keep everything")
    return limit
