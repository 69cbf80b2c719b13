"""What may be let go of: never anything behind a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol.retention import contiguous_end

places = st.integers(0, 30)
stretches_of_any_kind = st.lists(st.tuples(places, places).map(lambda pair: (min(pair), max(pair))))


@pytest.mark.parametrize(
    ("begin", "stretches", "end"),
    [
        (0, [], 0),
        (0, [(0, 5), (5, 9)], 9),
        (0, [(5, 9), (0, 5)], 9),
        (0, [(0, 5), (6, 9)], 5),
        (3, [(0, 5)], 5),
        (3, [(4, 5)], 3),
        (0, [(0, 9), (2, 4), (4, 12)], 12),
        (9, [(0, 5)], 9),
    ],
)
def test_a_stream_goes_on_up_to_the_first_gap(begin: int, stretches: list[tuple[int, int]], end: int) -> None:
    assert contiguous_end(begin, stretches) == end


@given(begin=places, stretches=stretches_of_any_kind)
def test_every_byte_up_to_the_end_is_in_a_stretch_and_the_next_one_in_none(
    begin: int, stretches: list[tuple[int, int]]
) -> None:
    end = contiguous_end(begin, stretches)
    held = {place for start, stop in stretches for place in range(start, stop)}
    assert set(range(begin, end)) <= held
    assert end not in held
