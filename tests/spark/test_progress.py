"""What every consumer has taken of a stream, which is what `trim --consumer` goes up to at most."""

from __future__ import annotations

import pytest

from tidemark.spark.progress import Progress, least_taken, taken_by_all
from tidemark.spark.readers.port import Head, Position


def at(offset: str, incarnation: str = "i") -> Position:
    return Position(offset, incarnation, "application/json")


@pytest.mark.parametrize(
    ("places", "floor"),
    [
        ([at("5"), at("4")], at("4")),
        ([at("3"), at("-1"), at("4")], at("-1")),
        ([at("9")], at("9")),
        ([at("9"), None], None),
        ([None, at("9")], None),
        # One of them has not noticed yet that the stream was created again.
        ([at("5", "old"), at("4", "new")], None),
        ([at("5", ""), at("4", "new")], at("4", "new")),
    ],
)
def test_the_floor_is_what_the_slowest_consumer_has_taken(
    places: list[Position | None], floor: Position | None
) -> None:
    """Of streams that all of them have begun; who has nothing yet holds everything back."""
    assert least_taken(places) == floor


@pytest.mark.parametrize(
    ("taken", "floor"), [(at("2"), at("2")), (at("2", ""), at("2", "")), (at("2", "old"), None), (None, None)]
)
def test_a_checkpoint_of_a_deleted_stream_sets_no_floor_for_the_new_one(
    taken: Position | None, floor: Position | None
) -> None:
    """The offsets of the old stream are offsets of the new one by chance alone."""
    progress = Progress({"s": taken} if taken else {})
    assert taken_by_all([progress], "v1", Head("s", at("3"), at("0"))) == floor
