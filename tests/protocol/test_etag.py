"""Entity tags and If-None-Match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.etag import etag_matches, render_etag

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
