"""How far the archive's table has each stream, and which batches may follow."""

from __future__ import annotations

import pytest

from tidemark.spark.reach import ArchiveBatch, Reach, Reaches, ReachMismatch
from tidemark.spark.readers.port import Position


def position(offset: int | None, incarnation: str = "i", *, closed: bool = False) -> Position | None:
    return None if offset is None else Position(f"{offset:016}", incarnation, closed=closed)


def batch(**moves: tuple[int | None, int]) -> ArchiveBatch:
    """By the streams' names where it begins, or None, and where it ends."""
    starts = {name: place for name, (start, _) in moves.items() if (place := position(start)) is not None}
    ends = {name: place for name, (_, end) in moves.items() if (place := position(end)) is not None}
    return ArchiveBatch("q", 1, "v1", starts, ends)


def reaches(**lasts: int) -> Reaches:
    return {("v1", name, "i"): Reach(f"{0:016}", f"{last:016}") for name, last in lasts.items()}


@pytest.mark.parametrize(
    ("known", "moves", "answer"),
    [
        ({}, {"a": (None, 5)}, False),
        ({}, {"a": (0, 5)}, False),
        ({"a": 5}, {"a": (5, 9)}, False),
        ({"a": 5}, {"a": (5, 9), "b": (None, 3)}, False),
        ({"a": 9}, {"a": (5, 9)}, True),
        ({"a": 9}, {"a": (None, 9)}, True),
        ({"a": 12}, {"a": (5, 9)}, True),
        ({"a": 9, "b": 1}, {"a": (5, 9), "b": (1, 1)}, True),
        ({"b": 7}, {"b": (5, 5)}, False),
        (
            {"a": 5},
            {"a": (6, 9)},
            "a up to 0000000000000005, and the checkpoint goes on from 0000000000000006",
        ),
        ({}, {"a": (6, 9)}, "a up to its beginning, and the checkpoint goes on from 0000000000000006"),
        (
            {"a": 7},
            {"a": (5, 9)},
            "a up to 0000000000000007, and the checkpoint goes on from 0000000000000005",
        ),
        (
            {"a": 7},
            {"a": (None, 9)},
            "a up to 0000000000000007, and the checkpoint goes on from its beginning",
        ),
        ({"a": 9, "b": 5}, {"a": (5, 9), "b": (5, 6)}, "a up to 0000000000000009"),
    ],
)
def test_a_batch_follows_where_the_table_ends_or_is_in_it(
    known: dict[str, int], moves: dict[str, tuple[int | None, int]], answer: bool | str
) -> None:
    if isinstance(answer, str):
        with pytest.raises(ReachMismatch, match=answer):
            batch(**moves).is_in(reaches(**known))
    else:
        assert batch(**moves).is_in(reaches(**known)) == answer


def test_another_incarnation_is_another_stream() -> None:
    again = ArchiveBatch("q", 1, "v1", {"a": Position("5", "i")}, {"a": Position("3", "j", closed=True)})
    assert not again.is_in({("v1", "a", "i"): Reach("0", "5")})
    after = again.added_to({("v1", "a", "i"): Reach("0", "5")}, {("v1", "a", "j"): Reach("1", "3")})
    assert after == {("v1", "a", "i"): Reach("0", "5"), ("v1", "a", "j"): Reach("1", "3", closed=True)}
    assert again.is_in(after)


def test_a_shorter_stream_is_another_one_where_a_server_tells_no_incarnations() -> None:
    known = {("v1", "a", ""): Reach("0", "5")}
    again = ArchiveBatch("q", 1, "v1", {"a": Position("5")}, {"a": Position("3")})
    assert not again.is_in(known)
    after = again.added_to(known, {})
    assert after == {("v1", "a", ""): Reach("0", "3")}
    assert again.is_in(after)
