"""What a subscription may be configured to do (§6.2)."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import InvalidSubscription
from tidemark.subscriptions.configuration import (
    SubscriptionConfiguration,
    SubscriptionKind,
    check_subscription_id,
    literal_prefix,
    matches_pattern,
    normalize,
)


@pytest.mark.parametrize(
    ("pattern", "path", "is_wanted"),
    [
        ("a/*/**", "a", False),
        ("a/**/b/**/c", "a/b/b/c", True),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a/%2a", "a/b", False),
        ("events/é", "events/é", True),
        # A backtracking matcher would not come to an end.
        ("/".join(["**", "a"] * 200), "/".join(["a"] * 400 + ["b"]), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_star_is_one_whole_segment_and_two_are_any_number(pattern: str, path: str, is_wanted: bool) -> None:
    assert matches_pattern(pattern, path) is is_wanted


PATHS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=6).map("/".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**", "%2A"]), min_size=1, max_size=6).map("/".join)


@given(PATTERNS, PATHS)
def test_matching_agrees_with_a_regular_expression(pattern: str, path: str) -> None:
    parts = {"*": "/[^/]+", "**": "(?:/[^/]+)*", "%2A": r"/\*"}
    expression = "".join(parts.get(part, "/" + part) for part in pattern.split("/"))
    is_match = re.fullmatch(expression, "/" + path) is not None
    assert matches_pattern(pattern, path) == is_match
    assert not is_match or path.startswith(literal_prefix(pattern))


WEBHOOK, PULL_WAKE = SubscriptionKind.WEBHOOK, SubscriptionKind.PULL_WAKE
ASKED = SubscriptionConfiguration(PULL_WAKE, "/events/*/", ("b", "/a/", "b"), wake_stream="wake/pool")
MADE = normalize(ASKED)
LETTERS: dict[str, Any] = {"max_attempts": 3, "dead_letter_stream": "letters"}


def test_paths_lose_their_outer_slashes_and_repetitions() -> None:
    expected = SubscriptionConfiguration(PULL_WAKE, "events/*", ("a", "b"), None, "wake/pool", 30_000, None)
    assert expected == MADE


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (WEBHOOK, {}),
        (WEBHOOK, {"webhook_url": "https://example.com"}),
        (PULL_WAKE, {"webhook_url": "https://example.com"}),
        (PULL_WAKE, {"pattern": None, "streams": []}),
        (PULL_WAKE, {"pattern": "", "streams": []}),
        *((PULL_WAKE, {"wake_stream": value}) for value in (None, "__ds/x")),
        *((PULL_WAKE, {"lease_ttl_ms": value}) for value in (999, 600_001)),
        *((PULL_WAKE, {"pattern": value}) for value in ("a/\n", "a" * 1_001)),
        *((PULL_WAKE, {"streams": [value]}) for value in ("wake/pool", "a//b", "..", "", "__ds/x")),
        (PULL_WAKE, {"streams": [str(number) for number in range(1_001)]}),
        (PULL_WAKE, {"streams": [f"{number:03}" + '"' * 250 for number in range(800)]}),
        (PULL_WAKE, {"description": "x" * 1_001}),
        *((PULL_WAKE, LETTERS | {"max_attempts": value}) for value in (None, 0, 1_001)),
        *(
            (PULL_WAKE, LETTERS | {"dead_letter_stream": value})
            for value in (None, "events/x", "a", "wake/pool")
        ),
    ],
)
def test_what_makes_no_sense_is_refused(kind: SubscriptionKind, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidSubscription):
        normalize(replace(ASKED, kind=kind, **asked))


def test_a_name_with_characters_that_a_url_encodes_is_named_as_it_is() -> None:
    """No gateway has decoded it: it stands in a body. `%2A` in a pattern is a star of the name."""
    made = normalize(replace(ASKED, pattern="a/%2A", streams=("50%", "what?", "\ufffd"), wake_stream="%20"))
    assert (made.pattern, made.streams, made.wake_stream) == ("a/%2A", ("50%", "what?", "\ufffd"), "%20")
    assert [made.follows(path) for path in ("a/*", "a/b")] == [True, False]


@pytest.mark.parametrize("name", ["", "a/b", "a\n", "x" * 501])
def test_an_id_that_cannot_be_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubscription):
        check_subscription_id(name)
    assert check_subscription_id("sub-1 é") == "sub-1 é"
