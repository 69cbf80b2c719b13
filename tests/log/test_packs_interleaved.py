"""Packs while they are made: readers between any two steps, killed and repeated steps, two janitors at once,
and each rule that the proof in docs/internals/packs.md needs, kept and taken out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from tests.log.test_packs import FORK, HOUR_MS, KEY, SMALL, Scene
from tests.simulation.scheduler import Crashed
from tests.support import BYTES, append_request, create_request, table_of
from tidemark.aws.retry import NoAnswer
from tidemark.janitor.sweep import sweep
from tidemark.log.chain import ChainWalk
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import Damaged, ProtocolError
from tidemark.protocol.pack import Packing
from tidemark.service.append import append
from tidemark.service.create import create
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, check_snapshot_offset, publish_snapshot
from tidemark.service.stores import Stores

#: One pack of all, removed in three calls.
ONE: Final = Packing(HOUR_MS, every_bytes=64, min_batches=2, block_bytes=40)
Act = Callable[[str], None]


def each_call(stores: Stores, before: Act = lambda _: None, after: Act = lambda _: None) -> None:
    """Let something happen around every call of a process."""
    for client in (table_of(stores).dynamodb, stores.blobs._objects):  # type: ignore[attr-defined]

        def acting(operation: str, *more: Any, send: Any = client.send) -> Any:
            before(operation)
            answer = send(operation, *more)
            after(operation)
            return answer

        client.send = acting


def an_old_scene(batches: int = 60, packing: Packing = ONE) -> Scene:
    scene = Scene(packing=packing)
    scene.append(batches)
    scene.world.advance(HOUR_MS)
    return scene


def calls_of_a_sweep() -> int:
    scene = an_old_scene()
    calls: list[str] = []
    packer = scene.process()
    each_call(packer, calls.append)
    assert sweep(packer).packed == 1
    return len(calls)


CALLS: Final = calls_of_a_sweep()


def test_between_any_two_calls_of_the_janitor_every_offset_can_be_read() -> None:
    scene = an_old_scene()
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, scene.ends[33], 0)))
    append(scene.stores, FORK, [append_request(b"own")])
    knowing, packer, looks = scene.process(), scene.process(), []

    def look(operation: str) -> None:
        looks.append(operation)
        for start in scene.ends[::5]:
            assert scene.read_from(start) == scene.data[start:]
            assert scene.read_from(start, knowing) == scene.data[start:]
        assert read(scene.process(), FORK, 0).data == scene.data[: scene.ends[33]] + b"own"

    each_call(packer, look, look)
    assert sweep(packer).packed == 1
    assert looks.count("BatchWriteItem") >= 4
    scene.check(everywhere=False)


def broken(scene: Scene, at: int, how: str) -> None:
    """A sweep whose call of that number is its last, is lost or carried out, or loses its reply once."""
    packer, calls = scene.process(), []

    def before(operation: str) -> None:
        calls.append(operation)
        if len(calls) == at + 1 and how == "killed before":
            raise Crashed

    def after(_operation: str) -> None:
        if len(calls) == at + 1 and how == "killed behind":
            raise Crashed
        if len(calls) == at + 1 and how == "lost":
            raise NoAnswer("injected")

    each_call(packer, before, after)
    try:
        sweep(packer)
    except Crashed:
        return


@pytest.mark.parametrize("how", ["killed before", "killed behind", "lost"])
def test_a_janitor_that_is_killed_or_loses_a_reply_at_any_call_loses_nothing(how: str) -> None:
    for at in range(CALLS):
        scene = an_old_scene()
        broken(scene, at, how)
        for start in scene.ends[::9]:
            assert scene.read_from(start) == scene.data[start:], at
        scene.world.advance(HOUR_MS)
        sweep(scene.process())
        assert len(scene.items()) == 2, at
        for start in scene.ends[::9]:
            assert scene.read_from(start) == scene.data[start:], at
        assert not [item for item in scene.world.table.items() if item["pk"]["S"].startswith("due/p")], at


def play(seed: int) -> int:
    """Two janitors, three readers, one of them of a fork, and a writer, all at once. Returns the number of
    packs."""
    chance = random.Random(seed)
    scene = Scene(packing=replace(SMALL, pack_bytes=chance.choice((100, 300, 10**6))), chance=chance)
    scene.append(40)
    scene.world.advance(HOUR_MS)
    return play_on(scene)


def play_on(scene: Scene) -> int:
    chance = scene.chance
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, chance.choice(scene.ends), 0)))
    before = len(scene.data)
    packed: list[int] = []

    def read_some() -> None:
        stores = scene.process()
        for _ in range(4):
            start = chance.choice([end for end in scene.ends if end <= before])
            data = scene.read_from(start, stores, small=chance.random() < 0.5)
            # What is written meanwhile may be read before the writer says so.
            assert data[: len(scene.data) - start] == scene.data[start : start + len(data)], start
            assert len(data) >= before - start, start

    def read_the_fork() -> None:
        stores = scene.process()
        base = load_head(stores, FORK).record.base
        for _ in range(4):
            start = chance.choice([end for end in scene.ends if end <= base])
            assert read(stores, FORK, start).data == scene.data[start:base], start

    scheduler = scene.world.scheduler
    for task in (
        *(lambda: packed.append(sweep(scene.process()).packed) for _ in range(2)),
        read_some,
        read_some,
        read_the_fork,
        lambda: scene.append(3),
    ):
        scheduler.spawn(task, 0)
    scheduler.run()
    scene.world.advance(HOUR_MS)
    sweep(scene.process())
    scene.check(everywhere=False)
    return sum(packed)


def test_concurrent_janitors_readers_and_a_writer_lose_nothing() -> None:
    assert sum(play(seed) for seed in range(60)) > 60


# --- each rule, and what goes wrong without it -------------------------------------------------


def goes_wrong(seeds: Iterable[int], play: Callable[[int], int] = play) -> bool:
    for seed in seeds:
        try:
            play(seed)
        except (AssertionError, ProtocolError):
            return True
    return False


def all_of_it(self: ChainWalk[Any], page: Iterable[Any]) -> Iterator[Any]:
    """Without the rule that skips batches that a pack holds."""
    for link in page:
        if link.start > self._reached:
            yield from self._bridge(link.start)
        self._left -= 1
        self._last, self._reached = link, max(self._reached, link.end)
        yield link


def test_without_skipping_batches_that_a_pack_holds_readers_get_them_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ChainWalk, "_in_order", all_of_it)
    assert goes_wrong(range(60))


def fork_of_a_half_removed_stretch() -> bool:
    """One call removes every second of its batches, then the janitor dies. Returns whether a fork can read
    what it inherits from any offset."""
    scene = an_old_scene()
    base = scene.ends[40]
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, base, 0)))
    packer = scene.process()
    send = table_of(packer).dynamodb.send

    def half(operation: str, body: bytes) -> Any:
        if operation == "BatchWriteItem":
            asked = orjson.loads(body)
            [(table, requests)] = asked["RequestItems"].items()
            send(operation, orjson.dumps({"RequestItems": {table: requests[::2]}}))
            raise Crashed
        return send(operation, body)

    table_of(packer).dynamodb.send = half
    with pytest.raises(Crashed):
        sweep(packer)
    try:
        for start in scene.ends[:40]:
            if read(scene.process(), FORK, start).data != scene.data[start:base]:
                return False
    except ProtocolError:
        return False
    return True


def test_a_removal_that_stops_half_way_hides_no_message() -> None:
    assert fork_of_a_half_removed_stretch()


def test_a_snapshot_may_be_published_at_every_end_while_batches_are_removed() -> None:
    """A batch that is left lies inside the pack, and says nothing of what lies behind it."""
    scene = an_old_scene()
    packer, refused = scene.process(), set()
    each_call(packer, after=lambda _: remove_every_second(scene))

    def remove_every_second(scene: Scene) -> None:
        inside = [item for item in scene.items()[1:-1] if "px" not in item]
        if "px" in scene.items()[0]:
            for item in inside[::2]:
                scene.world.table.drop(item)
        for end in scene.ends:
            try:
                check_snapshot_offset(scene.process(), KEY, end)
            except ProtocolError:
                refused.add(end)

    assert sweep(packer).packed == 1
    assert refused == set()


def test_without_looking_for_the_pack_before_an_offset_reads_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainWalk, "_look_back", lambda _self, _position: None)
    assert not fork_of_a_half_removed_stretch()


def append_by_a_sleeper(packing: Packing) -> tuple[bool, bool]:
    """A writer knows an old tail, whose key the janitor has emptied. Returns whether its append is
    acknowledged, and whether it can be read."""
    scene = an_old_scene(packing=packing)
    sleeper = scene.process()
    load_head(sleeper, KEY)
    scene.append(20)
    if packing.after_ms:
        scene.world.advance(packing.after_ms)
    assert sweep(scene.process()).packed
    answers = append(sleeper, KEY, [append_request(b"late")])
    acknowledged = not isinstance(answers[0], Exception)
    return acknowledged, b"late" in scene.read_from(0)


def test_an_append_with_an_old_tail_is_decided_on_the_new_one() -> None:
    assert append_by_a_sleeper(ONE) == (True, True)


def test_if_young_batches_were_packed_an_append_would_be_lost() -> None:
    """So no batch younger than an hour is packed in AWS."""
    assert append_by_a_sleeper(replace(ONE, after_ms=0)) == (True, False)


def trim_while_a_pack_is_committed() -> bool:
    """The trim has its list of batches when the first of them becomes a pack. Returns whether all messages
    are there."""
    scene = an_old_scene()
    packer, trimmer, published = scene.process(), scene.process(), False

    inside = scene.ends[20]

    def publish_and_trim(operation: str) -> None:
        """Before the packer's transaction: publish, an hour passes, and the trim lists its batches."""
        nonlocal published
        if operation == "TransactWriteItems" and not published:
            published = True
            publish_snapshot(scene.process(), KEY, PublishRequest(inside, BYTES, b"folded"))
            scene.world.advance(2 * HOUR_MS)
            trim_up_to_its_first_removal()

    class Stopped(BaseException):
        pass

    removals: list[tuple[Any, ...]] = []

    def trim_up_to_its_first_removal() -> None:
        """What it is about to remove is carried out later."""
        send = table_of(trimmer).dynamodb.send

        def holding(operation: str, body: bytes) -> Any:
            if operation == "BatchWriteItem":
                removals.append((operation, body))
                raise Stopped
            return send(operation, body)

        table_of(trimmer).dynamodb.send = holding
        trimmer.packing = Packing.after_seconds(10**9)
        with pytest.raises(Stopped):
            sweep(trimmer)

    each_call(packer, publish_and_trim)
    sweep(packer)
    assert removals
    scene.world.table.send(*removals[0])
    try:
        return scene.read_from(inside) == scene.data[inside:]
    except Damaged:
        return False


def test_a_pack_is_refused_while_a_trim_may_be_under_way() -> None:
    assert trim_while_a_pack_is_committed()


@pytest.mark.usefixtures("without_the_check_of_the_streams_item")
def test_without_checking_the_retained_offset_a_trim_would_remove_a_pack() -> None:
    assert not trim_while_a_pack_is_committed()


def overlapping_packs() -> bool:
    """One janitor reads from the beginning, the other later from the offset retained by then; the first one's
    transaction comes last. Returns whether all messages are there."""
    scene = an_old_scene(packing=replace(ONE, pack_bytes=300))
    first, pending = scene.process(), [True]
    inside = scene.ends[10]

    def other_packs(operation: str) -> None:
        if operation == "TransactWriteItems" and pending:
            pending.clear()
            publish_snapshot(scene.process(), KEY, PublishRequest(inside, BYTES, b"folded"))
            other = scene.process()
            other.packing = ONE
            sweep(other)

    each_call(first, other_packs)
    sweep(first)
    try:
        return scene.read_from(inside) == scene.data[inside:]
    except Damaged:
        return False


def test_packs_do_not_overlap() -> None:
    assert overlapping_packs()


@pytest.mark.usefixtures("without_the_check_of_the_streams_item")
def test_without_checking_the_streams_item_packs_overlap_and_one_is_lost() -> None:
    assert not overlapping_packs()
