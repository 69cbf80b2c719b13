"""Cache-Control: what may be kept, and by whom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.protocol.caching import (
    EVENT_STREAM,
    NO_STORE,
    REVALIDATED,
    SHARED,
    decide_cache_control,
    decide_long_poll,
    decide_private,
)


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
def test_a_catch_up_read_with_data_or_at_a_final_end_may_be_kept(
    has_data: bool, closed: bool, from_now: bool, expected: str
) -> None:
    decided = decide_cache_control(has_data=has_data, closed=closed, from_now=from_now, is_bound=True)
    assert decided == expected
    unbound = decide_cache_control(has_data=has_data, closed=closed, from_now=from_now, is_bound=False)
    assert unbound == (REVALIDATED if expected == SHARED else NO_STORE)


@pytest.mark.parametrize(
    ("has_data", "from_now", "expected"),
    [(True, False, SHARED), (True, True, NO_STORE), (False, False, NO_STORE), (False, True, NO_STORE)],
)
def test_a_long_poll_may_be_kept_only_with_data_at_a_named_offset(
    has_data: bool, from_now: bool, expected: str
) -> None:
    assert decide_long_poll(has_data=has_data, from_now=from_now, is_bound=True) == expected
    unbound = decide_long_poll(has_data=has_data, from_now=from_now, is_bound=False)
    assert unbound == (REVALIDATED if expected == SHARED else NO_STORE)


@pytest.mark.parametrize("cache_control", [None, NO_STORE, SHARED, EVENT_STREAM])
def test_no_shared_cache_keeps_a_private_response(cache_control: str | None) -> None:
    decided = decide_private(cache_control, token_in_query=False)
    assert "public" not in decided
    assert "private" in decided or "no-store" in decided


@pytest.mark.parametrize("cache_control", [None, NO_STORE, SHARED, EVENT_STREAM])
def test_nothing_is_kept_where_the_url_has_a_token(cache_control: str | None) -> None:
    assert "no-store" in decide_private(cache_control, token_in_query=True)


def test_no_other_file_writes_a_cache_control_of_its_own() -> None:
    """Two places that decide would disagree one day."""
    shared = Path(__file__).parents[2] / "shared" / "tidemark"
    literal = re.compile(r"no-store|no-cache|(?<!Access-Control-)max-age", re.IGNORECASE)
    found = {
        path.relative_to(shared).as_posix()
        for path in shared.rglob("*.py")
        if literal.search(path.read_text())
    }
    assert found == {"protocol/caching.py"}


def test_shared_responses_have_the_directives_that_the_protocol_names() -> None:
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
        decided = decide_cache_control(
            has_data=True, closed=closed, from_now=False, is_bound=True, life_ms=life_ms
        )
        assert decided == expected
