"""A write that arrives late changes nothing, and whoever meets what it left behind is told what is so.

A request that timed out may still be carried out after its retry, and after whatever came next. Each
scenario here is a life of some streams: every write of every use case is recorded, and sent once more
after each use case that follows. The whole table must look as if it had not been sent.

A transaction is repeated twice: with its token, as it was sent, and with another one, as if the ten
minutes were over for which DynamoDB remembers it.
"""

import secrets
from typing import Any

import orjson
import pytest

from tests.faults import lives
from tests.support import MINUTE_MS, World
from tidemark.janitor.sweep import Sweep, Swept, remove_unused, sweep
from tidemark.log.due import due_entries, schedule
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import stream_key
from tidemark.protocol.errors import Busy, StreamNotFound, UploadNotFound
from tidemark.service.buckets import create_bucket, delete_bucket
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.snapshots import LAPSES_AFTER_MS, PublishRequest, publish_snapshot, read_snapshot


@pytest.fixture
def life(world: World) -> lives.Life:
    return lives.Life(world.process(), world)


def is_harmless(life: lives.Life, pk: str, item: Any) -> bool:
    """What a late write may leave where nobody looks: an item of a log that was given back, which no
    stream leads to any more, or of what is no longer retained; and an entry in the janitor's queue, which
    looks for itself whether there is anything to do (`docs/design.md`, the table of writes)."""
    if pk.startswith("due/"):
        harmless = {"expire", "trim", "retain", "settled", "upload", "orphan", "pack", "replaced"}
        return item["kd"]["S"] in harmless
    return (pk, item["sk"]["S"]) in life.vacated


@pytest.mark.parametrize("name", list(lives.LIVES))
def test_a_write_that_is_sent_again_changes_nothing(world: World, life: lives.Life, name: str) -> None:
    seen: set[lives.Place] = set()
    left_behind: set[lives.Place] = set()
    for number, step in enumerate(lives.LIVES[name]):
        step(life)
        before, visible = life.table(), life.visible()
        life.vacated |= seen - before.keys()
        seen |= before.keys()
        for sent in life.recorded:
            was_accepted = life.repeat(sent)
            # What DynamoDB refuses changes nothing; the table behind the last write shows that, too.
            if not was_accepted and sent is not life.recorded[-1]:
                continue
            after = life.table()
            for place in before.keys() | after.keys():
                if before.get(place) == after.get(place) or place in left_behind:
                    continue
                item = after.get(place)
                assert item is not None, f"step {number}: {sent} removes {before[place]}"
                assert is_harmless(life, place[0], item), f"step {number}: {sent} leaves {item}"
                left_behind.add(place)
        assert life.visible() == visible
    visible = life.visible()
    for _ in range(3):
        world.clock.advance(LAPSES_AFTER_MS)
        sweep(life.process.stores)
        assert life.visible() == visible, "the janitor acts on nothing that was left behind"


# --- what a use case answers when it meets the work of a clock that is ahead, or an item that came late ---


def test_what_a_clock_ahead_has_deleted_can_be_made_by_a_slow_one(world: World, life: lives.Life) -> None:
    """The deletion is dated by a clock that is ahead: the creation is dated behind it."""
    fast, slow = world.process(clock=lambda: world.clock() + 5_000), life.process
    fast.create(life.key)
    delete(fast.stores, life.key)
    assert slow.create(life.key).is_new
    assert not slow.create(life.key).is_new
    name = f"skewed-{secrets.token_hex(4)}"
    for _ in range(2):
        create_bucket(fast.stores, name)
        delete_bucket(slow.stores, name)
        create_bucket(slow.stores, name)
        delete_bucket(fast.stores, name)


def test_a_stream_whose_item_came_late_does_not_block_its_name(life: lives.Life) -> None:
    """The item of a stream whose log has ended, as a version without end marks may have left it: the
    next creation takes its place."""
    lives.create_plain(life)
    item = life.process.stores.table.get(stream_key(life.key))
    assert item is not None
    lives.delete_it(life)
    life.process.stores.table.put(item)
    with pytest.raises(StreamNotFound):
        lives.append(life)
    assert life.process.create(life.key).is_new
    lives.append(life)


# --- the janitor removes nothing because it does not see a stream: an item must prove that it is not needed


def blind(life: lives.Life) -> None:
    """From now on GetItem finds no stream and no bucket, whatever is there."""
    send = life.process.dynamodb.send

    def lying(operation: str, body: bytes) -> tuple[int, bytes]:
        if operation == "GetItem" and orjson.loads(body)["Key"]["pk"]["S"].startswith("bucket/"):
            return 200, b"{}"
        return send(operation, body)

    life.process.dynamodb.send = lying


def test_an_orphan_is_not_removed_because_its_stream_is_not_seen(world: World, life: lives.Life) -> None:
    """The creation has settled the entry. A read that finds no stream proves nothing."""
    lives.create_large(life)
    world.clock.advance(lives.HOUR_AND_A_BIT)
    blind(life)
    sweep(life.process.stores)
    assert world.process().read_all(life.key) == lives.LARGE


def test_a_published_upload_stays_if_its_stream_is_not_seen(world: World, life: lives.Life) -> None:
    """Nor by a run that has read the entry before the publish settled it."""
    lives.create_json(life)
    lives.upload(life)
    lapses_ms = world.clock.now_ms + LAPSES_AFTER_MS
    [due] = due_entries(life.process.stores.table, lapses_ms, packing=False)
    lives.publish_the_upload(life)
    world.clock.advance(LAPSES_AFTER_MS + MINUTE_MS)
    blind(life)
    run = Sweep(life.process.stores, lambda: True, Swept())
    remove_unused(run, due)
    sweep(run.stores)
    assert run.swept == Swept()
    snapshot = read_snapshot(world.process().stores, life.key, life.notes["upload"][0])
    assert snapshot.data == b"folded elsewhere"


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (DueKind.RECLAIM, {}, "no tombstone"),
        (DueKind.TRIM, {"offset": 5}, "not trimmed"),
        (DueKind.PACKED, {"offset": 9}, ""),
    ],
)
def test_what_somebody_needs_is_not_removed_whatever_an_entry_says(  # noqa: PLR0917 - a row of the table
    world: World, life: lives.Life, caplog: pytest.LogCaptureFixture, kind: DueKind, more: Any, said: str
) -> None:
    lives.create_with_content(life)
    lives.append(life)
    incarnation = load_head(life.process.stores, life.key).record.incarnation
    mark = f"{0:016}-mark" if more else ""
    schedule(life.process.stores.table, Due(kind, life.key, incarnation, 0, mark, **more))
    swept = sweep(life.process.stores)
    assert (swept.reclaimed, swept.trimmed) == (0, 0)
    assert world.process().read_all(life.key) == b"firstmore"
    assert said in caplog.text


def test_a_claimed_body_is_removed_by_the_next_run_if_the_first_stops(world: World, life: lives.Life) -> None:
    """The claim stays in the queue until the body is gone."""
    lives.create_json(life)
    lives.upload(life)
    world.clock.advance(LAPSES_AFTER_MS)

    def stopped(*_: str) -> None:
        raise Busy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(life.process.stores.blobs), "delete", stopped)
        with pytest.raises(Busy):
            sweep(life.process.stores)
    offset, name = life.notes["upload"]
    with pytest.raises(UploadNotFound):
        publish_snapshot(life.process.stores, life.key, PublishRequest(offset, lives.FOLDED, upload=name))
    assert [sweep(life.process.stores).lapsed for _ in range(2)] == [1, 0]
