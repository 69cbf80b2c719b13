"""Stream-Seq."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.errors import Malformed, SequenceRegression
from tidemark.protocol.producer import MAX_LENGTH, check_stream_seq, parse_claim, parse_stream_seq

ascii_text = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=8)


@pytest.mark.parametrize("value", [None, "0", "001", "a b", "~", "x" * MAX_LENGTH])
def test_up_to_256_ascii_characters_are_a_stream_seq(value: str | None) -> None:
    assert parse_stream_seq(value) == value


@pytest.mark.parametrize("value", ["", "x" * (MAX_LENGTH + 1), "é", "\u2028", "１"])
def test_any_other_stream_seq_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Stream-Seq"):
        parse_stream_seq(value)


@pytest.mark.parametrize(
    ("last", "received"),
    [(None, None), (None, "0"), ("0", None), ("1", "2"), ("09", "1"), ("A", "a"), ("a", "aa"), ("9", "A")],
)
def test_a_greater_stream_seq_or_none_is_accepted(last: str | None, received: str | None) -> None:
    check_stream_seq(last, received)


@pytest.mark.parametrize(("last", "received"), [("1", "1"), ("2", "1"), ("2", "10"), ("a", "A"), ("aa", "a")])
def test_an_equal_or_smaller_stream_seq_is_refused(last: str, received: str) -> None:
    """Byte by byte, not as numbers: `10` comes before `2`."""
    with pytest.raises(SequenceRegression) as refused:
        check_stream_seq(last, received)
    assert refused.value.status == 409


@given(ascii_text, ascii_text)
def test_stream_seqs_are_compared_byte_by_byte(last: str, received: str) -> None:
    try:
        check_stream_seq(last, received)
    except SequenceRegression:
        assert received.encode() <= last.encode()
    else:
        assert received.encode() > last.encode()


@pytest.mark.parametrize("value", ["a,b", "a, b", ",", "a,"])
def test_a_comma_is_refused_because_gateways_join_repeats_with_one(value: str) -> None:
    with pytest.raises(Malformed, match="Stream-Seq must be sent once"):
        parse_stream_seq(value)
    with pytest.raises(Malformed, match="Producer-Id must be sent once"):
        parse_claim(value, "0", "0")


def test_a_conflict_begins_with_the_words_that_clients_look_for() -> None:
    with pytest.raises(SequenceRegression, match=r"^Sequence conflict"):
        check_stream_seq("b", "a")
