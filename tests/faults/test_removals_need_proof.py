"""The janitor removes nothing because it does not see a stream: an item must prove that nobody needs it."""

from __future__ import annotations

import orjson
import pytest

from tests.faults.lives import (
    FOLDED,
    HOUR_AND_A_BIT,
    LARGE,
    Life,
    append,
    create_json,
    create_large,
    create_with_content,
    publish_the_upload,
    upload,
)
from tests.support import MINUTE_MS, World
from tidemark.janitor.sweep import sweep
from tidemark.log.due import schedule
from tidemark.log.records import Due, DueKind
from tidemark.protocol.errors import (
    Busy,
    UploadNotFound,
)
from tidemark.service.load import load_head
from tidemark.service.snapshots import LAPSES_AFTER_MS, PublishRequest, publish_snapshot, read_snapshot


def blind(life: Life, pk_begins: str) -> None:
    """From now on GetItem finds nothing below such a key, whatever is there."""
    send = life.process.dynamodb.send

    def lying(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "GetItem" and orjson.loads(body)["Key"]["pk"]["S"].startswith(pk_begins):
            return 200, b"{}"
        return send(operation, body)

    life.process.dynamodb.send = lying


def test_an_orphan_is_not_removed_because_its_stream_is_not_seen(world: World) -> None:
    """The creation has settled the entry. A read that finds no stream proves nothing."""
    life = Life(world.process(), world)
    create_large(life)
    world.clock.advance(HOUR_AND_A_BIT)
    blind(life, "bucket/")
    sweep(life.process.stores)
    assert world.process().read_all(life.key) == LARGE


def test_a_published_upload_is_not_removed_because_its_stream_is_not_seen(world: World) -> None:
    life = Life(world.process(), world)
    create_json(life)
    upload(life)
    publish_the_upload(life)
    world.clock.advance(LAPSES_AFTER_MS + MINUTE_MS)
    blind(life, "bucket/")
    sweep(life.process.stores)
    snapshot = read_snapshot(world.process().stores, life.key, life.notes["upload"][0])
    assert snapshot.data == b"folded elsewhere"


def test_a_log_without_a_tombstone_is_not_reclaimed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    life = Life(world.process(), world)
    create_with_content(life)
    record = load_head(life.process.stores, life.key).record
    schedule(life.process.stores.table, Due(DueKind.RECLAIM, life.key, record.incarnation, 0))
    assert sweep(life.process.stores).reclaimed == 0
    assert world.process().read_all(life.key) == b"first"
    assert "no tombstone" in caplog.text


def test_what_is_retained_is_not_trimmed_whatever_an_entry_says(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(world.process(), world)
    create_with_content(life)
    append(life)
    record = load_head(life.process.stores, life.key).record
    schedule(life.process.stores.table, Due(DueKind.TRIM, life.key, record.incarnation, 0, "mark", offset=5))
    assert sweep(life.process.stores).trimmed == 0
    assert world.process().read_all(life.key) == b"firstmore"
    assert "not trimmed" in caplog.text


def test_a_claimed_body_is_removed_by_the_next_run_if_the_first_one_stops(world: World) -> None:
    """The claim stays in the queue until the body is gone."""
    life = Life(world.process(), world)
    create_json(life)
    upload(life)
    world.clock.advance(LAPSES_AFTER_MS)

    def stopped(*_: str) -> None:
        raise Busy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(life.process.stores.blobs), "delete", stopped)
        with pytest.raises(Busy):
            sweep(life.process.stores)
    offset, name = life.notes["upload"]
    with pytest.raises(UploadNotFound):
        publish_snapshot(life.process.stores, life.key, PublishRequest(offset, FOLDED, upload=name))
    assert sweep(life.process.stores).lapsed == 1
    assert sweep(life.process.stores).lapsed == 0
