"""Cache-Control of catch-up reads and long-polls."""

from __future__ import annotations

import pytest

from tidemark.protocol.caching import NO_STORE, SHARED, decide_cache_control


@pytest.mark.parametrize(
    ("has_data", "closed", "from_now", "expected"),
    [
        (True, False, False, SHARED),  # data at an offset never changes
        (True, True, False, SHARED),
        (False, True, False, SHARED),  # the end of a closed stream is final
        (False, False, False, NO_STORE),  # "nothing yet" is untrue after the next append
        (False, False, True, NO_STORE),  # §8: `now` names another place at every moment
        (False, True, True, NO_STORE),
        (True, False, True, NO_STORE),
        (True, True, True, NO_STORE),
    ],
)
def test_table(has_data: bool, closed: bool, from_now: bool, expected: str) -> None:
    assert decide_cache_control(has_data=has_data, closed=closed, from_now=from_now) == expected


def test_the_protocols_own_words() -> None:
    """§10.1 names the directives for shared streams."""
    assert SHARED == "public, max-age=60, stale-while-revalidate=300"


@pytest.mark.parametrize(
    ("life_ms", "expected"),
    [
        (None, SHARED),
        (10**12, SHARED),
        (360_000, SHARED),
        (359_999, "public, max-age=60, stale-while-revalidate=299"),
        (60_000, "public, max-age=60, stale-while-revalidate=0"),
        (3_999, "public, max-age=3, stale-while-revalidate=0"),
        (999, NO_STORE),
        (0, NO_STORE),
    ],
)
def test_no_cache_serves_a_stream_for_longer_than_it_lives(life_ms: int | None, expected: str) -> None:
    """Freshness and staleness together end before the stream does."""
    for closed in (False, True):
        assert decide_cache_control(has_data=True, closed=closed, from_now=False, life_ms=life_ms) == expected
