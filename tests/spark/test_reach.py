"""How far the archive's table has each stream, and which batches may follow."""

from dataclasses import replace

import pytest

from tidemark.spark.reach import ArchiveBatch, Reach, table_ends
from tidemark.spark.readers.port import BEGINNING, Head, Position


def position(offset: int, incarnation: str = "i", *, closed: bool = False) -> Position:
    return Position(f"{offset:016}", incarnation, closed=closed)


def reach(last: int, *, closed: bool = False, gone: bool = False) -> Reach:
    return Reach(f"{0:016}", f"{last:016}", closed, gone)


def reaches(**lasts: int) -> dict[tuple[str, str, str], Reach]:
    return {("v1", name, "i"): reach(last) for name, last in lasts.items()}


@pytest.mark.parametrize(
    ("now", "follows"),
    [
        ({"a": 5}, True),
        ({"a": 5, "b": 7}, True),
        ({}, False),
        ({"a": 3}, False),
        ({"a": 7}, False),
        ({"a": 5, "new": 1}, False),
    ],
)
def test_a_batch_follows_where_the_table_ends_as_planned(now: dict[str, int], *, follows: bool) -> None:
    start, end = {"a": position(5)}, {"a": position(9), "new": position(3)}
    batch = ArchiveBatch("v1", start, end, {}, reaches(a=5, b=6))
    assert batch.follows(reaches(**now)) == follows
    gone = replace(batch, end={}, gone={("v1", "b", "i"): reach(6, gone=True)})
    assert gone.follows(reaches(b=6))
    assert not gone.follows(reaches(**now))


def test_the_table_reaches_to_the_end_of_the_batch() -> None:
    start = {"a": position(5), "new": position(1), "again": position(2, "old")}
    end = {"a": position(9, closed=True), "new": position(3), "again": position(4)}
    assert ArchiveBatch("v1", start, end, {}, {}).added_to(reaches(a=5, b=6)) == reaches(b=6) | {
        ("v1", "a", "i"): reach(9, closed=True),
        ("v1", "new", "i"): Reach(f"{1:016}", f"{3:016}"),
        ("v1", "again", "i"): Reach(BEGINNING, f"{4:016}"),
    }


@pytest.mark.parametrize(("before", "end"), [(reach(5), 3), (reach(5, closed=True), 7)])
def test_without_incarnations_another_stream_is_shorter_or_behind_a_close(before: Reach, end: int) -> None:
    start = replace(position(5, ""), closed=before.closed)
    batch = ArchiveBatch("v1", {"a": start}, {"a": position(end, "")}, {}, {})
    assert batch.added_to({("v1", "a", ""): before}) == {("v1", "a", ""): Reach(BEGINNING, f"{end:016}")}


def test_the_archive_goes_on_where_the_table_ends_in_streams_that_are_there() -> None:
    """A name goes on in its own incarnation, though others had it; one that is gone is told until that is
    written down."""
    known = {
        ("v1", "a", "i"): reach(5),
        ("v1", "a", "old"): reach(50, closed=True),
        ("v1", "again", "i"): reach(6),
        ("v1", "closed", "i"): reach(7, closed=True),
        ("v1", "deleted", "i"): reach(8),
        ("v1", "known to be gone", "i"): reach(8, gone=True),
        ("v1", "not subscribed", "i"): reach(9),
        ("other", "deleted", "i"): reach(9),
    }
    living = {"a": "i", "again": "j", "closed": "i", "new": "i"}
    heads = {name: Head(name, position(0, each), position(99, each)) for name, each in living.items()}
    ends, gone = table_ends("v1", known, heads, lambda name: name != "not subscribed")
    assert ends == {
        "a": position(5),
        "again": position(6),
        "closed": position(7, closed=True),
        "deleted": position(8),
    }
    assert gone == {("v1", "again", "i"): reach(6, gone=True), ("v1", "deleted", "i"): reach(8, gone=True)}
