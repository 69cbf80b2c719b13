"""Values of headers: integers (§5.1, §5.2.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import Malformed
from tidemark.protocol.header_values import MAX_SAFE_INTEGER, parse_integer

NOT_CANONICAL = [
    "",
    " ",
    "+1",
    "-1",
    "-0",
    "00",
    "007",
    "1.0",
    "1e3",
    "0x10",
    "1_000",
    "1,000",
    " 1",
    "1 ",
    "1\n",
    "1, 1",
    "one",
    "NaN",
    "Infinity",
    "١٢",  # digits to `int`, not to the protocol
    "１",
    "²",
]


@pytest.mark.parametrize("value", [0, 1, 9, 10, 3600, 2**31, 2**53 - 2, 2**53 - 1])
def test_plain_decimal_digits_are_accepted(value: int) -> None:
    assert parse_integer("Stream-TTL", str(value)) == value


@pytest.mark.parametrize("value", NOT_CANONICAL)
def test_an_integer_in_any_other_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Stream-TTL"):
        parse_integer("Stream-TTL", value)


@pytest.mark.parametrize("value", [2**53, 2**53 + 1, 2**63, 2**64, 10**16, 10**400])
def test_an_integer_that_javascript_cannot_hold_exactly_is_malformed(value: int) -> None:
    with pytest.raises(Malformed, match=str(MAX_SAFE_INTEGER)):
        parse_integer("Producer-Seq", str(value))


def test_a_huge_number_is_refused_without_computing_it() -> None:
    """Python itself refuses to convert so many digits, with an error of its own kind."""
    with pytest.raises(Malformed):
        parse_integer("Producer-Seq", "9" * 100_000)


@given(st.text(max_size=20))
def test_text_is_accepted_only_as_an_integer_is_written(value: str) -> None:
    """One integer, one spelling: whatever is accepted is written back the same."""
    try:
        parsed = parse_integer("x", value)
    except Malformed:
        assert value not in {str(n) for n in range(10)}
    else:
        assert str(parsed) == value
        assert 0 <= parsed <= MAX_SAFE_INTEGER
