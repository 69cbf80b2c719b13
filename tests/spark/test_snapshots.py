"""How far a snapshot may go: never beyond what every consumer has taken of this very stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.spark.opaque import OpaqueServer, token
from tidemark.spark.options import Origin, Transport
from tidemark.spark.origin import Position
from tidemark.spark.snapshots import CONFLICT, NOT_TAKEN, PUBLISHED, SnapshotPlan, Snapshotter, floors_of


def at(offset: str, incarnation: str = "i") -> Position:
    return Position(offset, incarnation, "application/json")


def test_the_floor_is_what_the_slowest_consumer_has_taken() -> None:
    """Of streams that all of them have begun; who has nothing yet holds everything back."""
    one = {"a": at("5"), "b": at("3"), "c": at("9")}
    other = {"a": at("4"), "b": at("-1")}
    assert floors_of([one, other]) == {"a": at("4"), "b": at("-1")}
    assert floors_of([one]) == one
    assert floors_of([]) is None


def test_consumers_that_speak_of_different_streams_agree_on_nothing() -> None:
    """One of them has not noticed yet that the stream was created again."""
    assert floors_of([{"a": at("5", "old")}, {"a": at("4", "new")}]) == {}
    assert floors_of([{"a": at("5", "")}, {"a": at("4", "new")}]) == {"a": at("4", "new")}


@pytest.mark.parametrize(
    ("floor", "outcome"),
    [
        (at(token(2), "some-id"), PUBLISHED),
        (at(token(3), "some-id"), PUBLISHED),
        (at(token(2), ""), PUBLISHED),
        (at(token(2), "an-older-one"), NOT_TAKEN),
        (at(token(9), ""), NOT_TAKEN),
        (None, NOT_TAKEN),
    ],
)
def test_what_was_taken_of_an_older_stream_lets_nothing_of_the_new_one_go(
    floor: Position | None, outcome: str
) -> None:
    """The old one's offsets are offsets of the new one by chance alone, or lie beyond its tail."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = "some-id"
        for body in (b'{"key":1}', b'{"key":2}', b'{"key":1}'):
            foreign.append(body)
        result = Snapshotter(plan(foreign.url, floor)).run("s")
        assert result.outcome == outcome
        path = f"/some-bucket/s/snapshot/{floor.offset}" if floor else ""
        assert [there for there, _, _ in foreign.snapshots] == ([path] if outcome == PUBLISHED else [])


def test_somebody_elses_snapshot_is_a_conflict_and_no_failure() -> None:
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b'{"key":1}')
        foreign.snapshot_status = 409
        assert Snapshotter(replace(plan(foreign.url, None), floors=None)).run("s").outcome == CONFLICT


def plan(url: str, floor: Position | None) -> SnapshotPlan:
    origin = Origin(Transport.HTTP, "some-bucket", url=url, stream_path="/some-bucket", retry_seconds=1)
    floors = {"s": floor} if floor else {}
    return SnapshotPlan(origin, origin, "last-by-key", "key", skip_bad=False, floors=floors)
