"""Cache-Control: what may be kept, and by whom."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol import caching
from tidemark.protocol.errors import Malformed, PreconditionFailed


@pytest.mark.parametrize(
    ("has_data", "closed", "from_now", "is_kept"),
    [
        (True, False, False, True),  # data at an offset never changes
        (True, True, False, True),
        (False, True, False, True),  # the end of a closed stream is final
        (False, False, False, False),  # "nothing yet" is untrue after the next append
        (False, False, True, False),  # §8: `now` names another place at every moment
        (False, True, True, False),
        (True, False, True, False),
        (True, True, True, False),
    ],
)
def test_a_read_of_what_is_final_is_kept(has_data: bool, closed: bool, from_now: bool, is_kept: bool) -> None:
    """A long-poll is asked as if the stream were open: without data it only says that its time is over."""
    for is_bound, kept in ((True, caching.SHARED), (False, caching.REVALIDATED)):
        expected = kept if is_kept else caching.NO_STORE
        asked = {"has_data": has_data, "from_now": from_now, "is_bound": is_bound}
        assert caching.decide_cache_control(closed=closed, **asked) == expected


@pytest.mark.parametrize("cache_control", [None, caching.NO_STORE, caching.SHARED, caching.EVENT_STREAM])
def test_no_cache_shares_a_private_response_or_keeps_one_with_a_token(cache_control: str | None) -> None:
    decided = caching.decide_private(cache_control, token_in_query=False)
    assert "public" not in decided
    assert "private" in decided or "no-store" in decided
    assert "no-store" in caching.decide_private(cache_control, token_in_query=True)


def test_no_other_file_writes_a_cache_control_of_its_own() -> None:
    shared = Path(__file__).parents[2] / "shared" / "tidemark"
    literal = re.compile(r"no-store|no-cache|(?<!Access-Control-)max-age", re.IGNORECASE)
    found = {
        path.relative_to(shared).as_posix()
        for path in shared.rglob("*.py")
        if literal.search(path.read_text())
    }
    assert found == {"protocol/caching.py"}


@pytest.mark.parametrize(
    ("life_ms", "expected"),
    [
        (None, "public, max-age=60, stale-while-revalidate=300"),  # §10.1
        (360_000, caching.SHARED),
        (359_999, "public, max-age=60, stale-while-revalidate=299"),
        (60_000, "public, max-age=60, stale-while-revalidate=0"),
        (3_999, "public, max-age=3, stale-while-revalidate=0"),
        (999, caching.NO_STORE),
    ],
)
def test_no_cache_serves_a_stream_for_longer_than_it_lives(life_ms: int | None, expected: str) -> None:
    asked = {"has_data": True, "from_now": False, "is_bound": True}
    for closed in (False, True):
        assert caching.decide_cache_control(closed=closed, life_ms=life_ms, **asked) == expected


ETAG = '"abc:0000000000000000:0000000000000010"'
OTHER = '"abc:0000000000000000:0000000000000011"'


def test_a_tag_holds_incarnation_range_and_closure() -> None:
    assert caching.render_etag("abc", 0, 10, closed=False) == ETAG
    assert caching.render_etag("abc", 0, 10, closed=True) == '"abc:0000000000000000:0000000000000010:c"'


MATCHING = (ETAG, f" {ETAG} ", f"W/{ETAG}", f"{OTHER},{ETAG}", f"{OTHER} , W/{ETAG}", "*", " * ")
NOT_MATCHING = (
    None, "", ",", OTHER, ETAG.strip('"'), f"w/{ETAG}", ETAG[:-2] + '"', ETAG[:-1] + ':c"',
    f"{OTHER}, {OTHER}", '"*"',
)  # fmt: skip


@pytest.mark.parametrize("header", MATCHING + NOT_MATCHING)
def test_if_none_match_matches_weakly_in_a_list_or_by_a_star(header: str | None) -> None:
    """RFC 9110 §13.1.2: a list, compared weakly, or anything at all; not a malformed tag."""
    assert caching.etag_matches(header, ETAG) == (header in MATCHING)


ranges = st.tuples(st.sampled_from(["a", "b", "a:1"]), st.integers(0, 30), st.integers(0, 30), st.booleans())


@given(ranges, ranges)
def test_two_responses_that_differ_have_different_tags(
    one: tuple[str, int, int, bool], other: tuple[str, int, int, bool]
) -> None:
    same = caching.etag_matches(
        caching.render_etag(*one[:3], closed=one[3]), caching.render_etag(*other[:3], closed=other[3])
    )
    assert same == (one == other)


# --- If-Match -----------------------------------------------------------------------

TAIL = '"abc:0000000000000010"'


def test_a_tails_tag_is_not_that_of_a_page_and_changes_with_closing() -> None:
    assert caching.render_tail_etag("abc", 10, closed=False) == TAIL != ETAG
    assert caching.render_tail_etag("abc", 10, closed=True) == '"abc:0000000000000010:c"'


@pytest.mark.parametrize("value", ["*", TAIL, f'"x", {TAIL}', f'W/"y"\t,{TAIL},"z"'])
def test_an_if_match_that_names_the_tail_passes(value: str) -> None:
    condition = caching.parse_if_match(value)
    assert condition is not None
    condition.check("abc", 10, closed=False)
    assert caching.parse_if_match(None) is None


@pytest.mark.parametrize("value", [f"W/{TAIL}", '"*"', '""', '"abc:0000000000000010:c"', ETAG])
def test_an_if_match_that_names_another_tail_is_a_failed_precondition(value: str) -> None:
    condition = caching.parse_if_match(value)
    assert condition is not None
    with pytest.raises(PreconditionFailed) as refused:
        condition.check("abc", 10, closed=False)
    assert refused.value.headers == {"ETag": TAIL, "Stream-Next-Offset": "0000000000000010"}


def test_only_if_none_match_lets_an_append_create_its_stream() -> None:
    for headers, fails in (((None, "*"), False), (("*", None), True), ((TAIL, None), True)):
        condition = caching.parse_if_match(*headers)
        assert condition is not None
        with pytest.raises(PreconditionFailed) if fails else nullcontext():
            condition.check_missing()
        with nullcontext() if fails else pytest.raises(PreconditionFailed, match="If-None-Match"):
            condition.check("abc", 10, closed=False)


NOT_TAGS = ["", "abc", '"abc', 'abc"', "*, *", f"{TAIL},", f"{TAIL} {TAIL}", f"w/{TAIL}"]


@given(st.sampled_from(NOT_TAGS) | st.text(max_size=40).filter(lambda text: '"' not in text and text != "*"))
def test_an_if_match_of_another_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="If-Match"):
        caching.parse_if_match(value)


# --- cursors ------------------------------------------------------------------------

MAX_SAFE = 2**53 - 1
STREAM, AGAIN = "hVoUT3vW1_oWzWtg", "pQ0c8jv1nY2sXa7D"
times = st.integers(min_value=0, max_value=10**14)
cursors = st.one_of(st.none(), st.integers(min_value=0, max_value=caching.LIMIT - 1))


def at_interval(interval: int, *, plus_ms: int = 0) -> int:
    return (caching.EPOCH_SECONDS + interval * caching.INTERVAL_SECONDS) * 1000 + plus_ms


def test_a_cursor_is_a_plain_integer_or_absent() -> None:
    assert [caching.parse_cursor(value) for value in (None, "0", "1000", str(caching.LIMIT - 1))] == [
        None,
        0,
        1000,
        caching.LIMIT - 1,
    ]
    for value in ("", "abc", "01", str(caching.LIMIT), str(MAX_SAFE), str(2**53)):
        with pytest.raises(Malformed, match="cursor"):
            caching.parse_cursor(value)
        assert caching.known_cursor(value) is None, "a catch-up read ignores what is no cursor"
    assert (caching.known_cursor("7"), caching.known_cursor(None)) == (7, None)


def test_intervals_of_twenty_seconds_count_from_the_protocols_epoch() -> None:
    """October 9, 2024 00:00:00 UTC is interval 0, and twenty seconds later is interval 1 (§10.1)."""
    for now_ms, interval in ((0, 0), (1_728_432_000_000, 0), (1_728_432_019_999, 0), (1_728_432_020_000, 1)):
        assert caching.decide_cursor(None, now_ms, STREAM) >> caching.MARK_BITS == interval


@pytest.mark.parametrize(
    ("client", "expected"), [(None, 1000), (0, 1000), (999, 1000), (1000, 1001), (1001, 1002), (5000, 5001)]
)
def test_the_cursor_is_the_interval_or_one_more_than_the_clients(client: int | None, expected: int) -> None:
    own = None if client is None else client << caching.MARK_BITS | caching.mark_of(STREAM)
    decided = caching.decide_cursor(own, at_interval(1000, plus_ms=12_345), STREAM)
    assert decided == expected << caching.MARK_BITS | caching.mark_of(STREAM)


def test_a_cursor_says_which_incarnation_gave_it() -> None:
    given = caching.decide_cursor(None, at_interval(1000), STREAM)
    assert caching.is_of(given, STREAM)
    assert not caching.is_of(given, AGAIN)
    assert not caching.is_of(None, STREAM)
    assert caching.is_of(caching.decide_cursor(given, at_interval(1000), AGAIN), AGAIN)


NOW_MS = at_interval(3_400_000)
LIVE_OF_AGAIN = caching.decide_cursor(None, NOW_MS, AGAIN)


@pytest.mark.parametrize(
    ("cursor", "refused"),
    [
        (LIVE_OF_AGAIN, True),
        (caching.decide_catch_up_cursor(None, AGAIN), True),
        (caching.decide_cursor(LIVE_OF_AGAIN, NOW_MS, AGAIN), True),  # ahead of the clock
        (caching.decide_cursor(None, at_interval(2_000_000), AGAIN), True),  # a reader that was away for long
        (caching.decide_cursor(None, NOW_MS, STREAM), False),
        (caching.decide_catch_up_cursor(None, STREAM), False),
        (None, False),
        (caching.mark_of(AGAIN), False),  # a catch-up cursor of the releases before
        (0, False),
        *((number, False) for number in (3_400_000, NOW_MS // 1000, NOW_MS, NOW_MS * 1000)),  # other servers'
        (caching.LIMIT - 1, False),
    ],
)
def test_only_a_cursor_that_another_incarnation_gave_is_of_another(cursor: int | None, refused: bool) -> None:
    assert caching.is_of_another(cursor, STREAM, NOW_MS) == refused


def test_readers_that_catch_up_share_one_cursor_or_keep_their_own() -> None:
    shared = caching.decide_catch_up_cursor(None, STREAM)
    assert caching.is_of(shared, STREAM)
    assert caching.decide_catch_up_cursor(caching.decide_cursor(None, NOW_MS, AGAIN), STREAM) == shared
    own = caching.decide_cursor(None, NOW_MS, STREAM)
    assert caching.decide_catch_up_cursor(own, STREAM) == own
    assert caching.decide_cursor(shared, NOW_MS, STREAM) == own, "it becomes a live one without a jump"


@given(cursors, times, times)
def test_the_cursor_exceeds_the_clients_and_never_falls(client: int | None, one: int, other: int) -> None:
    """The MUST of §10.1: or the client is handed the cached answer to its own request."""
    earlier, later = sorted((one, other))
    decided = caching.decide_cursor(client, earlier, STREAM)
    assert client is None or decided > client
    assert decided <= caching.decide_cursor(client, later, STREAM)
    # JavaScript holds it exactly, for 85 years.
    assert (
        caching.decide_cursor(client, min(one, at_interval(caching.LIMIT >> caching.MARK_BITS) - 1), STREAM)
        <= MAX_SAFE
    )
