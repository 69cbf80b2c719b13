"""What may be let go of: never anything behind a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import Malformed
from tidemark.protocol.retention import FOREVER, Retention, contiguous_end, parse_retention

places = st.integers(0, 30)
stretches_of_any_kind = st.lists(st.tuples(places, places).map(lambda pair: (min(pair), max(pair))))


@pytest.mark.parametrize(
    ("begin", "stretches", "end"),
    [
        (0, [], 0),
        (0, [(0, 5), (5, 9)], 9),
        (0, [(5, 9), (0, 5)], 9),
        (0, [(0, 5), (6, 9)], 5),
        (3, [(0, 5)], 5),
        (3, [(4, 5)], 3),
        (0, [(0, 9), (2, 4), (4, 12)], 12),
        (9, [(0, 5)], 9),
    ],
)
def test_a_stream_goes_on_up_to_the_first_gap(begin: int, stretches: list[tuple[int, int]], end: int) -> None:
    assert contiguous_end(begin, stretches) == end


@given(begin=places, stretches=stretches_of_any_kind)
def test_every_byte_up_to_the_end_is_in_a_stretch_and_the_next_one_in_none(
    begin: int, stretches: list[tuple[int, int]]
) -> None:
    end = contiguous_end(begin, stretches)
    held = {place for start, stop in stretches for place in range(start, stop)}
    assert set(range(begin, end)) <= held
    assert end not in held


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
