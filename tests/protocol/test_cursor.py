"""Cursors: what keeps a cache from answering one waiting reader for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.cursor import EPOCH_SECONDS, INTERVAL_SECONDS, decide_cursor, parse_cursor
from tidemark.protocol.errors import Malformed

MAX_SAFE = 2**53 - 1
times = st.integers(min_value=0, max_value=10**14)
cursors = st.one_of(st.none(), st.integers(min_value=0, max_value=MAX_SAFE - 1))


def at_interval(interval: int, *, plus_ms: int = 0) -> int:
    return (EPOCH_SECONDS + interval * INTERVAL_SECONDS) * 1000 + plus_ms


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("0", 0), ("1000", 1000), (str(MAX_SAFE - 1), MAX_SAFE - 1)]
)
def test_a_cursor_is_a_plain_integer_or_absent(value: str | None, expected: int | None) -> None:
    assert parse_cursor(value) == expected


@pytest.mark.parametrize(
    "value", ["", "abc", "-1", "1.5", "01", " 1", "1e9", str(MAX_SAFE), str(2**53), "9" * 5000]
)
def test_any_other_cursor_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="cursor"):
        parse_cursor(value)


def test_intervals_of_twenty_seconds_count_from_the_protocols_epoch() -> None:
    """October 9, 2024 00:00:00 UTC is interval 0, and twenty seconds later is interval 1 (§10.1)."""
    assert decide_cursor(None, 1_728_432_000_000) == 0
    assert decide_cursor(None, 1_728_432_019_999) == 0
    assert decide_cursor(None, 1_728_432_020_000) == 1


@pytest.mark.parametrize(
    ("client", "expected"),
    [(None, 1000), (0, 1000), (999, 1000), (1000, 1001), (1001, 1002), (5000, 5001)],
)
def test_the_cursor_is_the_interval_now_or_one_more_than_the_clients(
    client: int | None, expected: int
) -> None:
    """A client at or ahead of the clock moves on by one, any other is brought up to it."""
    assert decide_cursor(client, at_interval(1000, plus_ms=12_345)) == expected


def test_a_clock_before_the_epoch_gives_cursor_zero() -> None:
    assert decide_cursor(None, 0) == 0


@given(cursors, times)
def test_the_cursor_is_always_greater_than_the_clients(client: int | None, now_ms: int) -> None:
    """The MUST of §10.1: or the client is handed the cached answer to its own request."""
    assert client is None or decide_cursor(client, now_ms) > client


@given(cursors, times, times)
def test_the_cursor_never_falls_as_time_goes_on(client: int | None, one: int, other: int) -> None:
    earlier, later = sorted((one, other))
    assert decide_cursor(client, earlier) <= decide_cursor(client, later)


@given(cursors, times, st.integers(min_value=0, max_value=INTERVAL_SECONDS * 1000 - 1))
def test_equal_requests_within_an_interval_get_equal_cursors(
    client: int | None, now_ms: int, later_ms: int
) -> None:
    """Within an interval, equal requests get equal cursors, so a cache collapses their next ones too."""
    start = now_ms - now_ms % (INTERVAL_SECONDS * 1000)
    assert decide_cursor(client, start) == decide_cursor(client, start + later_ms)
