"""How far a snapshot may go: never beyond what every consumer has taken of this very stream."""

from __future__ import annotations

import pytest

from tests.spark.opaque import OpaqueServer, token
from tests.spark.streams import Streams
from tests.support import JSON
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.spark.folds import CONFLICT, NOT_TAKEN, PUBLISHED, SnapshotPlan, Snapshotter
from tidemark.spark.http_client import HttpClient
from tidemark.spark.options import ConnectionOptions, Transport
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Progress, least_taken
from tidemark.spark.readers.port import Position
from tidemark.spark.snapshots import (
    PublishedSnapshot,
    SnapshotRefused,
    SnapshotStore,
    connect_snapshots,
)


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
    """The old one's offsets are offsets of the new one by chance alone, or lie beyond its tail. A newer
    snapshot by somebody else is a conflict, not a failure."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = "some-id"
        for body in (b'{"key":1}', b'{"key":2}', b'{"key":1}'):
            foreign.append(body)
        where = ConnectionOptions(Transport.HTTP, "buck", url=foreign.url, stream_path="/buck")
        progress = Progress({"s": floor} if floor else {})
        plan = SnapshotPlan(where, "last-by-key", "key", skip_bad=False, consumers=(progress,))
        assert Snapshotter(plan).run("s").outcome == outcome
        path = f"/buck/s/snapshot/{floor.offset}" if floor else ""
        assert [there for there, _, _ in foreign.snapshots] == ([path] if outcome == PUBLISHED else [])
        foreign.append(b'{"key":1}')
        foreign.snapshot_status = 409
        plan = SnapshotPlan(where, "last-by-key", "key", skip_bad=False)
        assert Snapshotter(plan).run("s").outcome == CONFLICT


@pytest.fixture(params=["http", "dynamodb"])
def store(request: pytest.FixtureRequest, streams: Streams) -> SnapshotStore:
    """A bucket's stream `name` holds three messages that end at 4, 8 and 13."""
    create_bucket(streams.process.stores, streams.name)
    key = StreamKey(streams.name, streams.name)
    streams.process.create(key, content_type=JSON)
    for body in (b"111", b"222", b"3333"):
        streams.process.append(key, body, content_type=JSON)
    in_bucket = {"bucket": streams.name}
    given = streams.by_http(**in_bucket) if request.param == "http" else streams.by_table(**in_bucket)
    return connect_snapshots(parse_read_options(given, streaming=False).connection)


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "large"])
def test_a_snapshot_is_found_as_it_was_published(store: SnapshotStore, streams: Streams, size: int) -> None:
    """By either way, of any size: what does not fit a request or an answer goes through S3. And a
    reader gets it with what came after it."""
    name = streams.name
    assert store.latest(name) is None
    body = b"[" + b" " * size + b"]"
    store.publish(name, render_offset(8), "application/json", body)
    assert store.latest(name) == PublishedSnapshot(render_offset(8), body)
    bootstrap = f"{streams.server.url}/{name}/{name}/bootstrap"
    whole = HttpClient(None, retry_seconds=30).request("GET", bootstrap).data
    assert body in whole
    assert (b"3333" in whole) == (size == 10)


def test_an_older_snapshot_is_a_conflict_and_no_message_is_cut(store: SnapshotStore, name: str) -> None:
    store.publish(name, render_offset(8), "application/json", b"[]")
    for stream, offset, is_conflict in ((name, 4, True), (name, 10, False), ("not-there", 0, True)):
        with pytest.raises(SnapshotRefused) as refused:
            store.publish(stream, render_offset(offset), "application/json", b"[]")
        assert refused.value.is_conflict == is_conflict
    assert store.latest(name) == PublishedSnapshot(render_offset(8), b"[]")
