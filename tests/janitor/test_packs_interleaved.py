"""Batches become a pack, and packs a larger one, while readers and writers go on: between any two calls, with
steps that are killed, and by two janitors. `tests/mutations` takes out rules of docs/internals/packs.md."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.janitor import scene as scenes
from tests.simulation.tasks import Crashed
from tests.support import BYTES, HOUR_MS, append_request, table_of
from tidemark.janitor.replace import remove_object
from tidemark.janitor.sweep import sweep
from tidemark.log.due import KEEP_REPLACED_MS, Packing, due_entries
from tidemark.log.records import DueKind
from tidemark.protocol.errors import ProtocolError
from tidemark.service.append import append
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.service.stores import Stores

pytestmark = pytest.mark.slow


def of_batches(packing: Packing = scenes.ONE, batches: int = 40) -> scenes.Scene:
    """Batches that are old enough to be packed."""
    scene = scenes.Scene(packing=packing)
    scene.append(batches)
    scene.world.advance(HOUR_MS)
    return scene


def of_parts() -> scenes.Scene:
    """Many small packs, and batches that are old enough to make a pack that takes them all in."""
    return scenes.a_scene_at("to be packed again", 40)


SCENES: dict[str, Callable[[], scenes.Scene]] = {"batches": of_batches, "packs": of_parts}


def pack_and_remove(scene: scenes.Scene, stores: Stores) -> None:
    """All that the janitor does in this scene; what was replaced goes long after."""
    sweep(stores)
    scene.world.advance(KEEP_REPLACED_MS)
    sweep(stores)


@pytest.mark.parametrize("kind", SCENES)
def test_between_any_two_calls_everything_is_read_from_everywhere(kind: str) -> None:
    scene = SCENES[kind]()
    base = scene.ends[33]
    scene.fork(base)
    append(scene.stores, scenes.FORK, [append_request(b"own")])
    knowing, packer, looks = scene.process(), scene.process(), set[str]()

    def look(operation: str) -> None:
        looks.add(operation)
        scene.check(9, knowing=knowing)
        assert scene.read_from(0, key=scenes.FORK) == scene.data[:base] + b"own"

    scenes.each_call(packer, look, look)
    pack_and_remove(scene, packer)
    assert {"PutObject", "TransactWriteItems", "BatchWriteItem"} <= looks
    assert ("GetRange" in looks) == (kind == "packs")
    assert (len(scene.items()), len(scene.world.bucket.objects)) == (2, 1)
    scene.check()


@pytest.mark.parametrize("kind", SCENES)
@pytest.mark.parametrize("how", scenes.BREAKS)
def test_a_janitor_may_be_killed_or_lose_a_reply_at_any_call(how: str, kind: str) -> None:
    for at in count():
        scene = SCENES[kind]()
        packer = scene.process()
        calls = scenes.break_call(packer, at, how)
        with suppress(Crashed):
            pack_and_remove(scene, packer)
        scene.check(23)
        for _ in range(3):
            scene.wait_until_removed()
        assert len(scene.items()) == 2, at
        named = {pack.blob for pack in scene.packs()}
        # An object that was put, and whose transaction was never made, goes with the log.
        assert named <= scene.world.bucket.objects.keys(), at
        assert len(scene.world.bucket.objects) <= len(named) + 2, at
        assert scene.due("pack", "packed", "replaced") == [], at
        scene.check(23)
        if len(calls) <= at:
            break
    assert at > 10


def test_an_object_that_an_item_names_is_not_removed() -> None:
    scene = of_parts()
    packer = scene.process()
    scenes.before_the_next(packer, "BatchWriteItem", scenes.die)
    with pytest.raises(Crashed):
        sweep(packer)
    first, *others = scene.packs()
    scene.world.advance(KEEP_REPLACED_MS)
    stores = scene.process()
    for due in [*due_entries(stores.table, stores.clock_ms(), packing=True)]:
        if due.kind is DueKind.REPLACED:
            remove_object(stores, due)
    assert others
    assert {other.blob for other in others} < scene.world.bucket.objects.keys()
    scene.check(3)
    for _ in range(2):
        scene.wait_until_removed()
    assert [*scene.world.bucket.objects] == [first.blob]
    scene.check()


# --- each rule of the proof ------------------------------------------------------
#
# Each scene returns whether all messages are there and can be read.


def all_is_read(scene: scenes.Scene, start: int = 0, stores: Stores | None = None) -> bool:
    with suppress(ProtocolError):
        return scene.read_from(start, stores) == scene.data[start:]
    return False


def a_fork_of_a_half_removed_stretch_is_read() -> bool:
    scene = scenes.a_scene_at("half removed", 60)
    base = scene.ends[40]
    scene.fork(base)
    with suppress(ProtocolError):
        return all(scene.read_from(at, key=scenes.FORK) == scene.data[at:base] for at in scene.ends[:40])
    return False


def an_append_by_a_sleeper_is_read(after_ms: int) -> bool:
    """A writer knows an old tail, whose key the janitor has emptied. Its append is acknowledged."""
    scene = of_batches(replace(scenes.ONE, after_ms=after_ms))
    sleeper = scene.process()
    load_head(sleeper, scenes.KEY)
    scene.append(20)
    assert scene.sweep_after(after_ms).packed
    [answer] = append(sleeper, scenes.KEY, [append_request(b"late")])
    assert not isinstance(answer, Exception)
    return b"late" in scene.read_from(0)


def held_back(scene: scenes.Scene, operation: str, packing: Packing) -> Callable[[], object]:
    """A janitor dies with its first call of this operation still under way. Returns what lets it arrive."""
    janitor, held = scene.process(packing), list[tuple[Any, ...]]()
    send = table_of(janitor).dynamodb.send

    def holding(sent: str, body: bytes) -> Any:
        if sent == operation:
            held.append((sent, body))
            raise Crashed
        return send(sent, body)

    table_of(janitor).dynamodb.send = holding
    with pytest.raises(Crashed):
        sweep(janitor)
    return lambda: scene.world.table.send(*held[0])


def a_trim_under_way_removes_no_pack() -> bool:
    """The trim has its list of batches when the first of them becomes a pack."""
    scene, arrives = of_batches(), list[Callable[[], object]]()
    packer, inside = scene.process(), scene.ends[20]

    def publish_and_trim() -> None:
        publish_snapshot(scene.process(), scenes.KEY, PublishRequest(inside, BYTES, b"folded"))
        scene.world.advance(2 * HOUR_MS)
        arrives.append(held_back(scene, "BatchWriteItem", Packing.after_seconds(10**9)))

    scenes.before_the_next(packer, "TransactWriteItems", publish_and_trim)
    sweep(packer)
    arrives[0]()
    return all_is_read(scene, inside)


def packs_of_two_janitors_do_not_overlap() -> bool:
    """One reads from the beginning, the other later from the offset retained by then; the first one's
    transaction comes last."""
    scene = of_batches(replace(scenes.ONE, pack_bytes=300))
    first, inside = scene.process(), scene.ends[10]

    def other_packs() -> None:
        publish_snapshot(scene.process(), scenes.KEY, PublishRequest(inside, BYTES, b"folded"))
        sweep(scene.process(scenes.ONE))

    scenes.before_the_next(first, "TransactWriteItems", other_packs)
    sweep(first)
    return all_is_read(scene, inside)


def merged_packs_of_two_janitors_do_not_overlap() -> bool:
    """One takes in all packs. Before its transaction arrives, the other has looked, later: it knows more
    batches, and takes in the last packs alone."""
    scene = of_parts()
    first_arrives = held_back(scene, "TransactWriteItems", scenes.ONE)
    scene.append(20)
    scene.world.advance(HOUR_MS)
    other = scene.process(replace(scenes.ONE, pack_bytes=400))
    scenes.before_the_next(other, "TransactWriteItems", first_arrives)
    sweep(other)
    sweep(scene.process())
    return all_is_read(scene)


def a_reader_on_its_way_to_a_pack_finds_its_object(keep_ms: int) -> bool:
    """It has the item of a pack, and asks for its bytes after a larger pack has taken it in."""
    scene = of_parts()
    scene.pack_by(replace(scenes.ONE, keep_replaced_ms=keep_ms))
    reader = scene.process()
    load_head(reader, scenes.KEY)
    scenes.before_the_next(reader, "GetRange", lambda: [sweep(scene.process()) for _ in range(2)])
    return all_is_read(scene, 0, reader)


def a_remembered_pack_is_read_in_time() -> bool:
    """A process remembers the pack that it read last, and reads on after its object was removed."""
    scene = of_parts()
    knowing, part = scene.process(), scene.packs()[-1]
    read(knowing, scenes.KEY, part.start, small=True)
    knowing.recent._batches.clear()
    sweep(scene.process())
    scene.wait_until_removed()
    return all_is_read(scene, part.start, knowing)


@pytest.mark.parametrize(
    "is_right",
    [
        a_fork_of_a_half_removed_stretch_is_read,
        a_trim_under_way_removes_no_pack,
        packs_of_two_janitors_do_not_overlap,
        merged_packs_of_two_janitors_do_not_overlap,
        a_remembered_pack_is_read_in_time,
    ],
)
def test_all_is_read_though(is_right: Callable[[], bool]) -> None:
    assert is_right()


def test_no_batch_younger_than_an_hour_is_packed_or_an_append_would_be_lost() -> None:
    assert an_append_by_a_sleeper_is_read(HOUR_MS)
    assert not an_append_by_a_sleeper_is_read(0)


def test_objects_of_packs_that_were_taken_in_stay_or_a_reader_on_its_way_gets_503() -> None:
    assert a_reader_on_its_way_to_a_pack_finds_its_object(HOUR_MS)
    assert not a_reader_on_its_way_to_a_pack_finds_its_object(0)
