"""How far a snapshot may go: never beyond what every consumer has taken of this very stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.spark.opaque import OpaqueServer, token
from tests.spark.serving import ThreadedServer
from tests.spark.streams import table_options
from tests.support import World
from tidemark.protocol.offset import render_offset
from tidemark.spark.clients.http import HttpClient
from tidemark.spark.options.connection import ConnectionOptions, Transport
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Progress, least_taken
from tidemark.spark.readers.port import Position
from tidemark.spark.snapshots.folds import (
    CONFLICT,
    NOT_TAKEN,
    PUBLISHED,
    SnapshotPlan,
    Snapshotter,
)
from tidemark.spark.snapshots.store import (
    PublishedSnapshot,
    SnapshotRefused,
    SnapshotStore,
    connect_snapshots,
)


def at(offset: str, incarnation: str = "i") -> Position:
    return Position(offset, incarnation, "application/json")


def test_the_floor_is_what_the_slowest_consumer_has_taken() -> None:
    """Of streams that all of them have begun; who has nothing yet holds everything back."""
    assert least_taken([at("5"), at("4")]) == at("4")
    assert least_taken([at("3"), at("-1"), at("4")]) == at("-1")
    assert least_taken([at("9")]) == at("9")
    assert least_taken([at("9"), None]) is None
    assert least_taken([None, at("9")]) is None


def test_a_stream_that_not_every_consumer_reads_has_no_floor() -> None:
    """One of them has not noticed yet that the stream was created again."""
    assert least_taken([at("5", "old"), at("4", "new")]) is None
    assert least_taken([at("5", ""), at("4", "new")]) == at("4", "new")


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
def test_a_checkpoint_of_a_deleted_stream_sets_no_floor_for_the_new_one(
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


def test_a_newer_snapshot_by_somebody_else_is_a_conflict_not_a_failure() -> None:
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b'{"key":1}')
        foreign.snapshot_status = 409
        assert Snapshotter(replace(plan(foreign.url, None), consumers=())).run("s").outcome == CONFLICT


@pytest.fixture(params=["http", "dynamodb"])
def store(request: pytest.FixtureRequest, world: World, server: ThreadedServer, name: str) -> SnapshotStore:
    """A bucket's stream `name` holds three messages that end at 4, 8 and 13."""
    web, root = HttpClient(None, retry_seconds=5), f"{server.url}/{name}"
    headers = {"Content-Type": "application/json"}
    web.request("PUT", root)
    web.request("PUT", f"{root}/{name}", headers=headers)
    for number in (111, 222, 3333):
        web.request("POST", f"{root}/{name}", headers=headers, body=str(number).encode())
    where = {"url": server.url} if request.param == "http" else table_options(world)
    return connect_snapshots(
        parse_read_options(where | {"bucket": name, "subscribe": name}, streaming=False).connection
    )


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "large"])
def test_a_snapshot_is_found_as_it_was_published(
    store: SnapshotStore, server: ThreadedServer, name: str, size: int
) -> None:
    """By either way, of any size: what does not fit a request or an answer goes through S3. And a
    reader gets it with what came after it."""
    assert store.latest(name) is None
    body = b"[" + b" " * size + b"]"
    store.publish(name, render_offset(8), "application/json", body)
    assert store.latest(name) == PublishedSnapshot(render_offset(8), body)
    whole = HttpClient(None, retry_seconds=5).request("GET", f"{server.url}/{name}/{name}/bootstrap").data
    assert body in whole
    assert (b"3333" in whole) == (size == 10)


def test_an_older_snapshot_is_a_conflict_and_no_message_is_cut(store: SnapshotStore, name: str) -> None:
    store.publish(name, render_offset(8), "application/json", b"[]")
    with pytest.raises(SnapshotRefused) as older:
        store.publish(name, render_offset(4), "application/json", b"[]")
    with pytest.raises(SnapshotRefused) as inside:
        store.publish(name, render_offset(10), "application/json", b"[]")
    with pytest.raises(SnapshotRefused) as nowhere:
        store.publish("not-there", render_offset(0), "application/json", b"[]")
    assert [each.value.is_conflict for each in (older, inside, nowhere)] == [True, False, True]
    assert store.latest(name) == PublishedSnapshot(render_offset(8), b"[]")


def plan(url: str, floor: Position | None) -> SnapshotPlan:
    origin = ConnectionOptions(
        Transport.HTTP, "some-bucket", url=url, stream_path="/some-bucket", retry_seconds=1
    )
    progress = Progress({"s": floor} if floor else {})
    return SnapshotPlan(origin, origin, "last-by-key", "key", skip_bad=False, consumers=(progress,))
