"""Strategies for JSON as text, in all the ways one value can be written."""

from __future__ import annotations

from hypothesis import strategies as st

BLANK = st.text(alphabet=" \t\r\n", max_size=3)

_NUMBER = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?",
    fullmatch=True,
    alphabet="-+.eE0123456789",
)
_PLAIN = st.characters(min_codepoint=0x20, exclude_characters='"\\', exclude_categories=["Cs"])
_ESCAPE = st.sampled_from(
    ['\\"', "\\\\", "\\/", "\\b", "\\n", "\\u0000", "\\u00e9", "\\uD83D\\uDE00", "\\ud83c\\udf0a"]
)
_STRING = st.lists(st.one_of(_PLAIN, _ESCAPE), max_size=12).map(lambda parts: '"' + "".join(parts) + '"')
_SCALAR = st.one_of(_NUMBER, _STRING, st.sampled_from(["true", "false", "null"]))


@st.composite
def _array(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    return array_text(draw, draw(st.lists(items, max_size=4)))


def array_text(draw: st.DrawFn, items: list[str]) -> str:
    """An array of these texts, with white space wherever it may stand."""
    padded = ",".join(draw(BLANK) + item + draw(BLANK) for item in items)
    return "[" + (padded or draw(BLANK)) + "]"


@st.composite
def _object(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """Keys in any order; the same key may come twice."""
    pairs = draw(st.lists(st.tuples(_STRING, values), max_size=4))
    members = [
        draw(BLANK) + key + draw(BLANK) + ":" + draw(BLANK) + value + draw(BLANK) for key, value in pairs
    ]
    return "{" + (",".join(members) or draw(BLANK)) + "}"


VALUES: st.SearchStrategy[str] = st.recursive(
    _SCALAR, lambda inner: st.one_of(_array(inner), _object(inner)), max_leaves=12
)
"""One value, without white space around it."""


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, list[str]]:
    """An array as a body, and the texts of its elements."""
    elements = draw(st.lists(VALUES, max_size=6))
    return draw(BLANK) + array_text(draw, elements) + draw(BLANK), elements
