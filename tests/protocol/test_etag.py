"""Entity tags and If-None-Match."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.caching import etag_matches, parse_if_match, render_etag, render_tail_etag
from tidemark.protocol.errors import Malformed, PreconditionFailed

ETAG = '"abc:0000000000000000:0000000000000010"'
OTHER = '"abc:0000000000000000:0000000000000011"'


def test_a_tag_holds_incarnation_range_and_closure() -> None:
    assert render_etag("abc", 0, 10, closed=False) == ETAG
    assert render_etag("abc", 0, 10, closed=True) == '"abc:0000000000000000:0000000000000010:c"'


@pytest.mark.parametrize(
    "header",
    [
        ETAG,
        f" {ETAG} ",
        f"W/{ETAG}",
        f"{OTHER}, {ETAG}",
        f"{ETAG},{OTHER}",
        f"{OTHER} , W/{ETAG}",
        "*",
        " * ",
    ],
)
def test_if_none_match_matches_weakly_in_a_list_or_by_a_star(header: str) -> None:
    """RFC 9110 §13.1.2: a list, compared weakly, or anything at all."""
    assert etag_matches(header, ETAG)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        ",",
        OTHER,
        ETAG.strip('"'),
        f"w/{ETAG}",
        ETAG[:-2] + '"',
        ETAG[:-1] + ':c"',
        f"{OTHER}, {OTHER}",
        '"*"',
    ],
)
def test_if_none_match_does_not_match_another_or_a_malformed_tag(header: str | None) -> None:
    assert not etag_matches(header, ETAG)


ranges = st.tuples(
    st.sampled_from(["a", "b", "a:1"]),
    st.integers(min_value=0, max_value=30),
    st.integers(min_value=0, max_value=30),
    st.booleans(),
)


@given(ranges, ranges)
def test_two_responses_that_differ_have_different_tags(
    one: tuple[str, int, int, bool], other: tuple[str, int, int, bool]
) -> None:
    """Incarnation, start, end and closure: when one of them differs, so does the tag (§10.1)."""
    same = etag_matches(render_etag(*one[:3], closed=one[3]), render_etag(*other[:3], closed=other[3]))
    assert same == (one == other)


# --- If-Match -----------------------------------------------------------------------

TAIL = '"abc:0000000000000010"'


def test_a_tails_tag_is_not_that_of_a_page_and_changes_with_closing() -> None:
    assert render_tail_etag("abc", 10, closed=False) == TAIL
    assert render_tail_etag("abc", 10, closed=True) == '"abc:0000000000000010:c"'
    assert render_etag("abc", 0, 10, closed=False) != TAIL


@pytest.mark.parametrize("value", ["*", TAIL, f'"x", {TAIL}', f'W/"y"\t,{TAIL},"z"'])
def test_an_if_match_that_names_the_tail_passes(value: str) -> None:
    condition = parse_if_match(value)
    assert condition is not None
    condition.check("abc", 10, closed=False)


@pytest.mark.parametrize("value", [f"W/{TAIL}", '"*"', '""', '"abc:0000000000000010:c"', ETAG])
def test_an_if_match_that_names_another_tail_is_a_failed_precondition(value: str) -> None:
    condition = parse_if_match(value)
    assert condition is not None
    with pytest.raises(PreconditionFailed) as refused:
        condition.check("abc", 10, closed=False)
    assert refused.value.status == 412
    assert refused.value.headers == {"ETag": TAIL, "Stream-Next-Offset": "0000000000000010"}


@pytest.mark.parametrize(
    "value", ["", "abc", '"abc', 'abc"', "*, *", f"{TAIL},", f"{TAIL} {TAIL}", f"w/{TAIL}"]
)
def test_an_if_match_of_another_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="If-Match"):
        parse_if_match(value)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser_of_if_match(value: str) -> None:
    with contextlib.suppress(Malformed):
        assert parse_if_match(value) is not None


def test_an_append_without_if_match_has_no_condition() -> None:
    assert parse_if_match(None) is None
