"""Expiry (§5.1): a sliding expiry (TTL), or a fixed instant. And retention: the data that is trimmed, and the
times of the janitor's checks (docs/retention.md).

Reads and writes renew a sliding window. A write renews for free, because every batch has its time. A read
costs a small write, so it is recorded at most 20 times per window. A stream lives longer than its window by a
20th, so that a read that was not recorded is never cut short.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemark.protocol.errors import Malformed
from tidemark.protocol.header_values import parse_integer

#: The most recorded renewals in one window, which also sets the least time between two.
RENEWALS_PER_WINDOW: Final = 20
_RENEWED_MS_PER_SECOND: Final = 1000 // RENEWALS_PER_WINDOW
#: The most characters of `Stream-Expires-At`, which is stored and returned as sent.
MAX_LENGTH: Final = 64
#: A waiting reader renews this long before the end, in milliseconds, or at half of a shorter window.
_WAITING_LEAD_MS: Final = 5000

_HOUR_MINUTE = r"([01]\d|2[0-3]):[0-5]\d"
_RFC3339 = re.compile(
    rf"(?P<minute>\d{{4}}-\d{{2}}-\d{{2}}[Tt]{_HOUR_MINUTE}):(?P<second>\d{{2}})(\.(?P<fraction>\d+))?"
    rf"(?P<zone>[Zz]|[+-]{_HOUR_MINUTE})",
    re.ASCII,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

AGE_HEADER: Final = "Stream-Retain-Seconds"
SIZE_HEADER: Final = "Stream-Retain-Bytes"

_HOUR_MS: Final = 60 * 60 * 1000
_DAY_MS: Final = 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class Expiry:
    """The end of a stream's life; both None means never.

    `expires_at` is kept as written; `expires_at_ms` is the same instant.
    """

    ttl_seconds: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None

    def matches(self, other: Expiry) -> bool:
        """Whether both mean the same instant, however written (§5.1, idempotent create)."""
        return self.ttl_seconds == other.ttl_seconds and self.expires_at_ms == other.expires_at_ms


NEVER: Final = Expiry()


def parse_expiry(ttl: str | None, expires_at: str | None) -> Expiry:
    """Return the expiry. Raises Malformed for both headers at once, or for a wrong form."""
    if ttl is not None and expires_at is not None:
        raise Malformed("Send Stream-TTL or Stream-Expires-At, not both")
    if ttl is not None:
        return Expiry(ttl_seconds=parse_integer("Stream-TTL", ttl))
    if expires_at is not None:
        return Expiry(expires_at=expires_at, expires_at_ms=_parse_instant_ms(expires_at))
    return NEVER


def _parse_instant_ms(value: str) -> int:
    """Parse an instant. Digits beyond milliseconds are dropped. A leap second equals the second after it, as
    in POSIX time; it must be the last second of a month in UTC (RFC 3339 §5.7)."""
    try:
        match = _RFC3339.fullmatch(value) if len(value) <= MAX_LENGTH else None
        if match is None:
            raise ValueError(value)
        is_leap = match["second"] == "60"
        second = "59" if is_leap else match["second"]
        moment = datetime.fromisoformat(f"{match['minute']}:{second}{match['zone']}".upper()).astimezone(UTC)
        if is_leap:
            moment += timedelta(seconds=1)
            if (moment.day, moment.hour, moment.minute) != (1, 0, 0):
                raise ValueError(value)
        # Integers only: a float may lose the last millisecond.
        millisecond = int((match["fraction"] or "0")[:3].ljust(3, "0"))
        return (moment - _EPOCH) // timedelta(milliseconds=1) + millisecond
    except (ValueError, OverflowError):
        form = "an RFC 3339 timestamp such as 2030-01-15T12:00:00Z"
        raise Malformed(f"Stream-Expires-At must be {form}, got {value[:40]!r}") from None


def render_instant(ms: int) -> str:
    """Format an instant as RFC 3339, with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def deadline_ms(expiry: Expiry, touched_ms: int) -> int | None:
    """Return the first millisecond at which the stream no longer exists; None is never."""
    if expiry.ttl_seconds is not None:
        return touched_ms + expiry.ttl_seconds * (1000 + _RENEWED_MS_PER_SECOND)
    return expiry.expires_at_ms


def is_expired(expiry: Expiry, touched_ms: int, now_ms: int) -> bool:
    deadline = deadline_ms(expiry, touched_ms)
    return deadline is not None and now_ms >= deadline


def needs_renewal(expiry: Expiry, touched_ms: int, now_ms: int) -> bool:
    """Whether a read at `now_ms` must record that it renewed the window."""
    ttl_seconds = expiry.ttl_seconds
    return ttl_seconds is not None and now_ms - touched_ms >= ttl_seconds * _RENEWED_MS_PER_SECOND


def renew_waiting_at_ms(expiry: Expiry, touched_ms: int) -> int | None:
    """Return the time at which a waiting reader must renew the window, or, for a fixed instant, notice the
    end; None is never. "A stream with active live readers will not expire" (§5.1). The time is late in the
    window, so that all waiting readers together write about once per window, but well before any process
    considers the stream expired."""
    deadline = deadline_ms(expiry, touched_ms)
    if deadline is None or expiry.ttl_seconds is None:
        return deadline
    lead_ms = min(expiry.ttl_seconds * 1000 // 2, _WAITING_LEAD_MS)
    return deadline - max(lead_ms, expiry.ttl_seconds * _RENEWED_MS_PER_SECOND)


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
