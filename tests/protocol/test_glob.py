"""Patterns over stream paths (§6.2)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.subscription import literal_prefix, matches

CASES = [
    ("events/*", "events/a", True),
    ("events/*", "events/a/b", False),
    ("events/*", "events", False),
    ("*", "a", True),
    ("*", "a/b", False),
    ("**", "a", True),
    ("**", "a/b/c", True),
    ("a/**", "a", True),
    ("a/**", "a/b/c", True),
    ("a/**", "ab", False),
    ("a/*/**", "a", False),
    ("a/*/**", "a/b", True),
    ("**/b", "b", True),
    ("**/b", "a/x/b", True),
    ("**/b", "a/b/c", False),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b/**/c", "a/b/b/c", True),
    ("a/b", "a/b", True),
    ("a/b", "a/c", False),
    ("a*", "ab", False),
    ("a*", "a*", True),
    ("a/%2A", "a/*", True),
    ("a/%2a", "a/b", False),
    ("events/é", "events/é", True),
]


@pytest.mark.parametrize(("pattern", "path", "wanted"), CASES)
def test_a_star_is_one_segment_and_two_are_any_number(pattern: str, path: str, wanted: bool) -> None:
    assert matches(pattern, path) is wanted


SEGMENT = st.sampled_from(["a", "b", "*", "**", "%2A"])
PATTERNS = st.lists(SEGMENT, min_size=1, max_size=6).map("/".join)
PATHS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=6).map("/".join)


@given(PATTERNS, PATHS)
def test_matching_agrees_with_a_regular_expression(pattern: str, path: str) -> None:
    parts = {"*": "/[^/]+", "**": "(?:/[^/]+)*", "%2A": r"/\*"}
    expression = "".join(parts.get(part, "/" + part) for part in pattern.split("/"))
    assert matches(pattern, path) == (re.fullmatch(expression, "/" + path) is not None)


@given(PATTERNS, PATHS)
def test_whatever_matches_begins_with_the_literal_prefix(pattern: str, path: str) -> None:
    if matches(pattern, path):
        assert path.startswith(literal_prefix(pattern))


def test_a_pattern_of_many_double_stars_takes_no_time() -> None:
    """A backtracking matcher would not come to an end."""
    assert not matches("/".join(["**", "a"] * 200), "/".join(["a"] * 400 + ["b"]))
