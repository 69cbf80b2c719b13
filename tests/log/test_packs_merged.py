"""Packs of packs: a new pack takes in the small ones before it, and readers get the same before, during and
after. Interleavings, killed and repeated steps, two janitors at once, and each rule kept and taken out."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.log.test_packs import FORK, HOUR_MS, KEY, Scene, counted
from tests.log.test_packs_interleaved import broken, each_call, goes_wrong, play_on
from tests.simulation.scheduler import Crashed
from tests.support import BYTES, JSON, append_request, create_request, table_of
from tidemark.janitor.pack import remove_object
from tidemark.janitor.sweep import sweep
from tidemark.log import tails
from tidemark.log.chain import ChainWalk
from tidemark.log.due import due_entries
from tidemark.log.records import DueKind
from tidemark.log.schema import decode_batch
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import ProtocolError, StorageUnavailable
from tidemark.protocol.messages import ContentType
from tidemark.protocol.pack import KEEP_REPLACED_MS, Packing
from tidemark.service.append import append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, publish_snapshot

#: Packs of some sixty bytes, none of which is small enough to be taken in.
PARTS: Final = Packing(HOUR_MS, every_bytes=64, pack_bytes=60, min_batches=2, block_bytes=40)
#: All of it in one pack.
ONE: Final = replace(PARTS, pack_bytes=10**6)


def of_parts(batches: int = 40, more: int = 20, content_type: ContentType = BYTES, **asked: Any) -> Scene:
    """A stream of many small packs, and batches that are old enough to make a pack that takes them all in."""
    scene = Scene(packing=PARTS, content_type=content_type, **asked)
    scene.append(batches)
    assert scene.pack() > 2
    scene.world._packing = ONE
    scene.append(more)
    scene.world.advance(HOUR_MS)
    return scene


def packs_of(scene: Scene) -> list[Any]:
    return [batch for batch in map(decode_batch, scene.items()) if batch.index]


def merged(**asked: Any) -> tuple[Scene, list[Any]]:
    """The stream once it is one pack, and the packs that were taken in."""
    scene = of_parts(**asked)
    parts = packs_of(scene)
    assert sweep(scene.process()).packed == 1
    return scene, parts


def wait_until_removed(scene: Scene) -> None:
    scene.world.advance(KEEP_REPLACED_MS)
    sweep(scene.process())


def entries(scene: Scene) -> list[str]:
    return [item["kd"]["S"] for item in scene.world.table.items() if item["pk"]["S"].startswith("due/p")]


# --- what becomes of them ----------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_a_new_pack_takes_in_the_small_ones_before_it(content_type: ContentType) -> None:
    scene, parts = merged(content_type=content_type)
    pack, last = map(decode_batch, scene.items())
    assert pack.index is not None
    assert (pack.start, pack.end) == (0, last.start)
    assert pack.append_id == parts[0].append_id
    scene.check()


def test_the_objects_of_packs_that_were_taken_in_stay_as_long_as_the_table_can_be_restored() -> None:
    scene, parts = merged()
    names = {part.blob for part in parts}
    assert names < scene.world.bucket.objects.keys()
    assert Counter(entries(scene)) == {"replaced": len(parts)}
    scene.world.advance(KEEP_REPLACED_MS - 1)
    assert sweep(scene.process()).replaced == 0
    assert names < scene.world.bucket.objects.keys()
    scene.world.advance(1)
    assert sweep(scene.process()).replaced == len(parts)
    assert [*scene.world.bucket.objects] == [packs_of(scene)[0].blob]
    assert entries(scene) == []
    scene.check()


def test_a_stream_of_a_small_pack_a_day_has_few_packs_after_a_year() -> None:
    """And what is written again is a few times the data, of which no more stays than the last month's."""
    day = Packing(HOUR_MS, every_bytes=64, pack_bytes=4000, min_batches=2, block_bytes=200)
    scene, written = Scene(packing=day), 0
    for _ in range(365):
        scene.append(10)
        scene.world.advance(24 * HOUR_MS)
        before = set(scene.world.bucket.objects)
        sweep(scene.process())
        written += sum(len(data) for name, data in scene.world.bucket.objects.items() if name not in before)
    sizes = [pack.size for pack in packs_of(scene)]
    small = [size for size in sizes if size < 2000]
    assert len(sizes) < 2 * len(scene.data) / 4000 + 6, sizes
    assert len(small) < 6, sizes
    stored = sum(len(scene.world.bucket.objects[pack.blob]) for pack in packs_of(scene))
    assert written < 6 * stored
    scene.check(everywhere=False)
    with counted(scene) as (stores, calls):
        read(stores, KEY, 0)
        assert calls["GetRange"] <= len(sizes)


def test_packs_are_taken_in_with_one_query_and_one_request_each() -> None:
    scene = of_parts()
    parts = len(packs_of(scene))
    with counted(scene) as (stores, calls):
        assert sweep(stores).packed == 1
    assert calls["GetRange"] == parts
    assert calls["PutObject"] == 1
    assert calls["TransactWriteItems"] == 1


def test_packs_with_a_large_body_between_them_stay_two() -> None:
    scene = Scene(packing=replace(PARTS, pack_bytes=10**6))
    for body in (b"a", b"b", b"x" * 70_000, b"c", b"d", b"e"):
        append(scene.stores, KEY, [append_request(body)])
    scene.pack()
    append(scene.stores, KEY, [append_request(b"f")])
    append(scene.stores, KEY, [append_request(b"g", close=True)])
    scene.pack()
    found = [(batch.size, batch.index is not None) for batch in map(decode_batch, scene.items())]
    assert found == [(2, True), (70_000, False), (4, True), (1, False)]


@pytest.mark.parametrize("harm", ["missing", "damaged", "index"])
def test_a_pack_that_cannot_be_read_is_not_taken_in_and_the_new_one_is_made(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = of_parts()
    harmed, objects = packs_of(scene)[1], scene.world.bucket.objects
    if harm == "missing":
        del objects[harmed.blob]
    elif harm == "damaged":
        objects[harmed.blob] = objects[harmed.blob][:16] + b"?" + objects[harmed.blob][17:]
    else:
        scene.world.table.store(scene.items()[1] | {"px": scene.items()[0]["px"]})
    before = len(scene.items())
    assert sweep(scene.process()).packed == 1
    assert "cannot be read, and is not packed again" in caplog.text
    assert len(scene.items()) < before
    with pytest.raises(ProtocolError):
        read(scene.process(), KEY, harmed.start)
    assert scene.read_from(harmed.end) == scene.data[harmed.end :]


def test_what_is_retained_may_begin_inside_a_merged_pack() -> None:
    scene, _ = merged(content_type=JSON)
    inside = scene.ends[25]
    publish_snapshot(scene.stores, KEY, PublishRequest(inside, BYTES, b"folded"))
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert read(scene.process(), KEY, inside).data == scene.data[inside:]
    updates = bootstrap(scene.process(), KEY).parts[1:]
    assert b"".join(part.body + b"," for part in updates) == scene.data[inside:]


def test_a_pack_that_lies_below_what_is_retained_in_part_is_not_taken_in() -> None:
    scene = of_parts(content_type=JSON)
    second = packs_of(scene)[1]
    inside = next(end for end in scene.ends if second.start < end < second.end)
    publish_snapshot(scene.stores, KEY, PublishRequest(inside, BYTES, b"folded"))
    sweep(scene.process())
    assert packs_of(scene)[-1].start == second.end
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert [pack.start for pack in packs_of(scene)] == [second.start, second.end]
    assert read(scene.process(), KEY, inside).data == scene.data[inside:]


def test_a_deleted_stream_leaves_nothing_of_packs_that_were_taken_in() -> None:
    scene, _ = merged()
    delete(scene.stores, KEY)
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert scene.items() == []
    assert scene.world.bucket.objects == {}
    wait_until_removed(scene)
    assert entries(scene) == []


def test_a_fork_of_a_deleted_stream_reads_what_it_inherits_of_a_merged_pack() -> None:
    scene = of_parts()
    base = scene.ends[17]
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, base, 0)))
    assert sweep(scene.process()).packed == 1
    delete(scene.stores, KEY)
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    wait_until_removed(scene)
    for start in scene.ends[:18]:
        assert read(scene.process(), FORK, start).data == scene.data[start:base]


# --- while it happens ----------------------------------------------------------------------------


def test_between_any_two_calls_everything_is_read_from_everywhere() -> None:
    scene = of_parts()
    base = scene.ends[33]
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, base, 0)))
    append(scene.stores, FORK, [append_request(b"own")])
    knowing, packer, looks = scene.process(), scene.process(), []

    def look(operation: str) -> None:
        looks.append(operation)
        for start in scene.ends[::5]:
            assert scene.read_from(start) == scene.data[start:]
            assert scene.read_from(start, knowing) == scene.data[start:]
        assert read(scene.process(), FORK, 0).data == scene.data[:base] + b"own"

    each_call(packer, look, look)
    assert sweep(packer).packed == 1
    scene.world.advance(KEEP_REPLACED_MS)
    assert sweep(packer).replaced > 2
    assert {"GetRange", "PutObject", "TransactWriteItems", "BatchWriteItem"} < set(looks)
    scene.check(everywhere=False)


def calls_of_the_sweeps() -> int:
    scene, calls = of_parts(), list[str]()
    packer = scene.process()
    each_call(packer, calls.append)
    sweep(packer)
    scene.world.advance(KEEP_REPLACED_MS)
    sweep(packer)
    return len(calls)


CALLS: Final = calls_of_the_sweeps()


@pytest.mark.parametrize("how", ["killed before", "killed behind", "lost"])
def test_a_janitor_may_be_killed_or_lose_a_reply_at_any_call(how: str) -> None:
    for at in range(CALLS):
        scene = of_parts()
        broken(scene, at, how)
        for start in scene.ends[::9]:
            assert scene.read_from(start) == scene.data[start:], at
        scene.world.advance(KEEP_REPLACED_MS)
        broken(scene, at, how)
        for start in scene.ends[::9]:
            assert scene.read_from(start) == scene.data[start:], at
        for _ in range(2):
            wait_until_removed(scene)
        assert len(scene.items()) == 2, at
        named = {pack.blob for pack in packs_of(scene)}
        # An object that was put, and whose transaction was never made, goes with the log.
        assert named <= scene.world.bucket.objects.keys(), at
        assert len(scene.world.bucket.objects) <= len(named) + 2, at
        for start in scene.ends[::9]:
            assert scene.read_from(start) == scene.data[start:], at
        assert entries(scene) == [], at


def play(seed: int) -> int:
    """Two janitors, three readers, one of them of a fork, and a writer, over packs that are taken in. How
    many of those there were."""
    chance = random.Random(seed)
    scene = of_parts(chance=chance)
    scene.world._packing = replace(ONE, pack_bytes=chance.choice((150, 200, 300)))
    play_on(scene)
    taken_in = entries(scene).count("replaced")
    wait_until_removed(scene)
    scene.check(everywhere=False)
    return taken_in


def test_janitors_readers_and_a_writer_at_once() -> None:
    assert sum(play(seed) for seed in range(60)) >= 60


# --- each rule, and what goes wrong without it ------------------------------------------------------


def test_without_looking_back_for_a_pack_readers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainWalk, "_look_back", lambda _self, _position: None)
    assert goes_wrong(range(60), play)


def overlapping() -> bool:
    """One janitor takes in all packs. Before its transaction arrives, another one has looked, later: it knows
    more batches, and takes in the last packs alone. Whether all is there."""
    scene = of_parts()
    first, other, held = scene.process(), scene.process(), []

    send = table_of(first).dynamodb.send

    def hold(operation: str, body: bytes) -> Any:
        if operation == "TransactWriteItems":
            held.append((operation, body))
            raise Crashed
        return send(operation, body)

    def let_it_arrive(operation: str) -> None:
        if operation == "TransactWriteItems" and held:
            scene.world.table.send(*held.pop())

    table_of(first).dynamodb.send = hold
    with pytest.raises(Crashed):
        sweep(first)
    scene.append(20)
    scene.world.advance(HOUR_MS)
    other.packing = replace(ONE, pack_bytes=400)
    each_call(other, let_it_arrive)
    sweep(other)
    assert not held
    sweep(scene.process())
    with suppress(ProtocolError):
        return scene.read_from(0) == scene.data
    return False


def test_merged_packs_do_not_overlap() -> None:
    assert overlapping()


@pytest.mark.usefixtures("without_the_check_of_the_streams_item")
def test_without_the_streams_item_merged_packs_overlap_and_one_is_lost() -> None:
    assert not overlapping()


def read_while_the_object_goes(keep_ms: int) -> bool:
    """A reader has the item of a pack, and asks for its bytes after a larger pack has taken it in."""
    scene = of_parts()
    scene.world._packing = replace(ONE, keep_replaced_ms=keep_ms)
    reader = scene.process()
    load_head(reader, KEY)

    def merge_all(operation: str) -> None:
        if operation == "GetRange" and len(scene.items()) > 2:
            sweep(scene.process())
            sweep(scene.process())

    each_call(reader, merge_all)
    try:
        return scene.read_from(0, reader) == scene.data
    except StorageUnavailable:
        return False


def test_a_reader_on_its_way_to_a_pack_finds_its_object() -> None:
    assert read_while_the_object_goes(HOUR_MS)


def test_where_the_objects_are_removed_at_once_such_a_reader_gets_503() -> None:
    assert not read_while_the_object_goes(0)


def remembered_pack_is_read() -> bool:
    """A process remembers the pack that it read last, and reads on after its object was removed."""
    scene = of_parts()
    knowing, part = scene.process(), packs_of(scene)[-1]
    read(knowing, KEY, part.start, small=True)
    knowing.recent._batches.clear()
    sweep(scene.process())
    wait_until_removed(scene)
    try:
        return read(knowing, KEY, part.start).data == scene.data[part.start :]
    except StorageUnavailable:
        return False


def test_a_pack_is_not_remembered_until_its_object_is_removed() -> None:
    assert remembered_pack_is_read()


def test_without_that_a_process_asks_for_an_object_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MAX_AGE_MS", 10**15)
    assert not remembered_pack_is_read()


def test_an_object_that_an_item_names_is_not_removed() -> None:
    """The janitor dies once the removal of the objects is scheduled, and before the items are removed."""
    scene = of_parts()
    packer = scene.process()

    def die(operation: str) -> None:
        if operation == "BatchWriteItem":
            raise Crashed

    each_call(packer, die)
    with pytest.raises(Crashed):
        sweep(packer)
    first, *others, _ = packs_of(scene)
    scene.world.advance(KEEP_REPLACED_MS)
    stores = scene.process()
    for due in [*due_entries(stores.table, stores.clock_ms(), packing=True)]:
        if due.kind is DueKind.REPLACED:
            remove_object(stores, due)
    assert others
    assert {other.blob for other in others} < scene.world.bucket.objects.keys()
    for start in scene.ends[::3]:
        assert scene.read_from(start) == scene.data[start:]
    for _ in range(2):
        wait_until_removed(scene)
    assert [*scene.world.bucket.objects] == [first.blob]
    scene.check(everywhere=False)
