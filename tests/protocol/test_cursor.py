"""Cursors: what keeps a cache from answering one waiting reader for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.caching import (
    EPOCH_SECONDS,
    INTERVAL_SECONDS,
    LIMIT,
    MARK_BITS,
    decide_catch_up_cursor,
    decide_cursor,
    is_of,
    known_cursor,
    mark_of,
    parse_cursor,
)
from tidemark.protocol.errors import Malformed

MAX_SAFE = 2**53 - 1
STREAM, AGAIN = "hVoUT3vW1_oWzWtg", "pQ0c8jv1nY2sXa7D"
times = st.integers(min_value=0, max_value=10**14)
cursors = st.one_of(st.none(), st.integers(min_value=0, max_value=LIMIT - 1))


def at_interval(interval: int, *, plus_ms: int = 0) -> int:
    return (EPOCH_SECONDS + interval * INTERVAL_SECONDS) * 1000 + plus_ms


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("0", 0), ("1000", 1000), (str(LIMIT - 1), LIMIT - 1)]
)
def test_a_cursor_is_a_plain_integer_or_absent(value: str | None, expected: int | None) -> None:
    assert parse_cursor(value) == expected


@pytest.mark.parametrize(
    "value", ["", "abc", "-1", "1.5", "01", " 1", "1e9", str(LIMIT), str(MAX_SAFE), str(2**53), "9" * 5000]
)
def test_any_other_cursor_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="cursor"):
        parse_cursor(value)


def test_intervals_of_twenty_seconds_count_from_the_protocols_epoch() -> None:
    """October 9, 2024 00:00:00 UTC is interval 0, and twenty seconds later is interval 1 (§10.1)."""
    assert decide_cursor(None, 1_728_432_000_000, STREAM) >> MARK_BITS == 0
    assert decide_cursor(None, 1_728_432_019_999, STREAM) >> MARK_BITS == 0
    assert decide_cursor(None, 1_728_432_020_000, STREAM) >> MARK_BITS == 1


@pytest.mark.parametrize(
    ("client", "expected"),
    [(None, 1000), (0, 1000), (999, 1000), (1000, 1001), (1001, 1002), (5000, 5001)],
)
def test_the_cursor_is_the_interval_now_or_one_more_than_the_clients(
    client: int | None, expected: int
) -> None:
    """A client at or ahead of the clock moves on by one, any other is brought up to it."""
    own = None if client is None else client << MARK_BITS | mark_of(STREAM)
    decided = decide_cursor(own, at_interval(1000, plus_ms=12_345), STREAM)
    assert decided == expected << MARK_BITS | mark_of(STREAM)


def test_a_clock_before_the_epoch_gives_interval_zero() -> None:
    assert decide_cursor(None, 0, STREAM) == mark_of(STREAM)


def test_a_cursor_says_which_incarnation_gave_it() -> None:
    """Also that of a stream that is created again under the same name."""
    given = decide_cursor(None, at_interval(1000), STREAM)
    assert is_of(given, STREAM)
    assert not is_of(given, AGAIN)
    assert not is_of(None, STREAM)
    assert is_of(decide_cursor(given, at_interval(1000), AGAIN), AGAIN)


def test_readers_that_catch_up_share_one_cursor_or_keep_their_own() -> None:
    shared = decide_catch_up_cursor(None, STREAM)
    assert is_of(shared, STREAM)
    assert decide_catch_up_cursor(decide_cursor(None, at_interval(7), AGAIN), STREAM) == shared
    own = decide_cursor(None, at_interval(7), STREAM)
    assert decide_catch_up_cursor(own, STREAM) == own
    assert decide_cursor(shared, at_interval(7), STREAM) == own, "it becomes a live one without a jump"


def test_a_catch_up_read_ignores_what_is_no_cursor() -> None:
    assert known_cursor("x") is known_cursor(str(MAX_SAFE)) is known_cursor(None) is None
    assert known_cursor("7") == 7


@given(cursors, times)
def test_javascript_holds_every_cursor_exactly(client: int | None, now_ms: int) -> None:
    assert decide_cursor(client, min(now_ms, at_interval(LIMIT >> MARK_BITS) - 1), STREAM) <= MAX_SAFE


@given(cursors, times)
def test_the_cursor_is_always_greater_than_the_clients(client: int | None, now_ms: int) -> None:
    """The MUST of §10.1: or the client is handed the cached answer to its own request."""
    assert client is None or decide_cursor(client, now_ms, STREAM) > client


@given(cursors, times, times)
def test_the_cursor_never_falls_as_time_goes_on(client: int | None, one: int, other: int) -> None:
    earlier, later = sorted((one, other))
    assert decide_cursor(client, earlier, STREAM) <= decide_cursor(client, later, STREAM)


@given(cursors, times, st.integers(min_value=0, max_value=INTERVAL_SECONDS * 1000 - 1))
def test_equal_requests_within_an_interval_get_equal_cursors(
    client: int | None, now_ms: int, later_ms: int
) -> None:
    """Within an interval, equal requests get equal cursors, so a cache collapses their next ones too."""
    start = now_ms - now_ms % (INTERVAL_SECONDS * 1000)
    assert decide_cursor(client, start, STREAM) == decide_cursor(client, start + later_ms, STREAM)
