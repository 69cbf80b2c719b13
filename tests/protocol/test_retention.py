"""What may be let go of: never anything behind a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import Malformed
from tidemark.protocol.expiry import FOREVER, Retention, parse_retention

HOUR_MS = 3_600_000


def test_a_limit_is_a_whole_number_above_zero() -> None:
    assert parse_retention("60", "1000") == Retention(60, 1000)
    assert parse_retention(None, None) == FOREVER
    with pytest.raises(Malformed, match="Stream-Retain-Seconds"):
        parse_retention("0", None)
    with pytest.raises(Malformed, match="Stream-Retain-Bytes"):
        parse_retention(None, "1.5")


limits = st.none() | st.integers(1, 10**9)


@given(
    retention=st.builds(Retention, limits, limits).filter(lambda made: made.is_limited),
    now_ms=st.integers(10**12, 2 * 10**12),
    oldest=st.none() | st.integers(0, 10**10),
    written=st.integers(0, 10**10),
    phase_ms=st.integers(0, HOUR_MS - 1),
)
def test_a_stream_is_looked_at_an_hour_after_something_may_go_at_the_latest(
    retention: Retention, now_ms: int, oldest: int | None, written: int, phase_ms: int
) -> None:
    oldest_ms = None if oldest is None else now_ms - oldest
    look_ms = retention.next_look_ms(now_ms, oldest_ms, now_ms - written, phase_ms)
    assert look_ms > now_ms
    if retention.seconds is not None:
        goes_ms = (now_ms if oldest_ms is None else oldest_ms) + retention.seconds * 1000
        assert look_ms <= max(goes_ms, now_ms) + HOUR_MS
    if retention.size is not None:
        assert look_ms <= now_ms + 24 * HOUR_MS
    assert (look_ms - phase_ms) % HOUR_MS == 0
