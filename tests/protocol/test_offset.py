"""Offsets and the sentinels of a read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.offset import EARLIEST, MAX_OFFSET, NOW, parse_read_from, parse_token, render_offset

positions = st.integers(min_value=0, max_value=MAX_OFFSET)

NOT_A_TOKEN = (
    "", " ", ",", "0", "-2", "--1", "-1 ", " -1", "+1", "NOW", "now ", "1,2", "000000000000000",
    "00000000000000000", "000000000000000a", "0000000000000000,0000000000000000", "0000000000000000 ",
    " 0000000000000000", "0000000000000000\n", "00000000_0000000", "-000000000000001", "+000000000000001",
    "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠", "null", "../../../etc/pas",
)  # fmt: skip


@pytest.mark.parametrize("value", NOT_A_TOKEN)
def test_text_in_any_other_form_is_no_offset(value: str) -> None:
    assert parse_read_from(value) is None
    assert parse_token(value) is None


@pytest.mark.parametrize(("value", "expected"), [(None, EARLIEST), ("-1", EARLIEST), ("now", NOW)])
def test_absent_and_minus_one_are_the_earliest_and_now_is_the_tail(value: str | None, expected: str) -> None:
    """Where the server's own offsets are meant, the sentinels are not (§8)."""
    assert parse_read_from(value) == expected
    assert value is None or parse_token(value) is None


@given(positions, positions)
def test_a_rendered_offset_is_parsed_to_its_position_and_sorts_as_it_does(one: int, other: int) -> None:
    """§8: none of `, & = ? /`, and reasonably short."""
    token = render_offset(one)
    assert parse_token(token) == parse_read_from(token) == one
    assert (token < render_offset(other)) == (one < other)
    assert not set(token) & set(",&=?/")
    assert len(token) < 256
