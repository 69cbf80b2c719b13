"""Values of headers: integers (§5.1, §5.2.1)."""

import pytest

from tidemark.protocol.errors import Malformed
from tidemark.protocol.header_values import MAX_SAFE_INTEGER, parse_integer

NOT_CANONICAL = (
    "", " ", "+1", "-1", "-0", "00", "007", "1.0", "1e3", "0x10", "1_000", "1,000", " 1", "1 ", "1\n", "1, 1",
    "one", "NaN", "Infinity",
    "١٢", "１", "²",  # digits to `int`, not to the protocol
)  # fmt: skip


@pytest.mark.parametrize("value", NOT_CANONICAL)
def test_an_integer_in_any_other_form_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Stream-TTL"):
        parse_integer("Stream-TTL", value)


@pytest.mark.parametrize("value", [str(2**53), str(2**53 + 1), str(2**63), "9" * 100_000], ids=len)
def test_an_integer_that_javascript_cannot_hold_exactly_is_malformed(value: str) -> None:
    """A huge one is refused without computing it: Python refuses to convert so many digits."""
    assert parse_integer("Producer-Seq", str(2**53 - 1)) == MAX_SAFE_INTEGER
    with pytest.raises(Malformed, match=str(MAX_SAFE_INTEGER)):
        parse_integer("Producer-Seq", value)
