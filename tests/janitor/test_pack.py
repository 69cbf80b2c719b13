"""Packs: whatever is asked of a stream, the answer is that of its plain batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice, pairwise
from typing import Any

import pytest

from tests.janitor.scene import FORK, KEY, ONE, STAGES, Scene, a_scene_at, counted
from tests.simulation.tasks import Tasks
from tests.support import BYTES, HOUR_MS, JSON, append_request
from tidemark.janitor.sweep import sweep
from tidemark.log.due import KEEP_REPLACED_MS, Packing
from tidemark.log.packs import blocks_of
from tidemark.log.read import read_page
from tidemark.log.records import Batch, Checksums, Pack, Tombstone
from tidemark.log.schema import encode_batch
from tidemark.protocol.errors import Damaged, ProtocolError, RetentionGone, StorageUnavailable
from tidemark.protocol.messages import ContentType
from tidemark.protocol.offset import NOW, ReadFrom
from tidemark.protocol.stream_key import ListingRequest
from tidemark.protocol.tail import Tail
from tidemark.service import catalog, start_point
from tidemark.service.append import append
from tidemark.service.catalog import load_stats, load_times
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, bootstrap, check_snapshot_offset, publish_snapshot
from tidemark.service.start_point import find_start, read_back
from tidemark.service.stores import Stores

# --- the same answers at every stage ------------------------------------------------------------


def places(scene: Scene) -> list[int]:
    """Where every message ends, some places inside of messages, and some beyond the tail."""
    return sorted({*scene.ends, *range(0, len(scene.data), 9), len(scene.data) + 1, len(scene.data) + 2})


def answer_of(call: Callable[[], object]) -> object:
    try:
        return call()
    except ProtocolError as refusal:
        return type(refusal), str(refusal)


def times(stores: Stores, offset: int, key: Any = KEY) -> list[int]:
    """Of each byte from there on."""
    found = load_times(stores, key, offset)
    assert (found.start, found.end) == (offset, offset + sum(found.sizes))
    return [ms for ms, size in zip(found.times_ms, found.sizes, strict=True) for _ in range(size)]


def forks(scene: Scene, stores: Stores) -> Iterator[object]:
    """Where a fork may begin, and what it has, also of bytes in the middle of a pack."""
    for offset in places(scene)[::8]:
        for sub in (0, 1, 4):
            made = answer_of(partial(scene.fork, offset, sub))
            yield made
            scene.world.advance(5)
            if isinstance(made, int):
                append(stores, FORK, [append_request(b"7", content_type=scene.content_type)])
                yield scene.read_from(0, key=FORK)
                inside = max(end for end in scene.ends if end <= made * 2 // 3)
                yield scene.read_from(inside, stores, key=FORK)
                yield times(stores, inside, FORK)[: made - inside]
                delete(stores, FORK)
                scene.world.advance(1)


def last_messages(scene: Scene, stores: Stores) -> Iterator[object]:
    for last in range(1, len(scene.ends), 3):
        found = find_start(stores, KEY, last)
        assert (found.offset, found.messages, found.complete) == (scene.ends[-1 - last], last, True)
        yield found.offset


def backwards(scene: Scene, stores: Stores) -> Iterator[object]:
    """Page by page from the tail, and from every place."""
    before: ReadFrom = NOW
    while before != 0:
        page = read_back(stores, KEY, before, 4).page
        assert page.data == scene.data[page.start : page.end]
        before = page.start
        yield page.data
    for place in places(scene):
        for last in (1, 30):
            yield answer_of(lambda: read_back(stores, KEY, place, last).data)  # noqa: B023


Use = Callable[[Scene, Stores], Iterable[object]]
#: What may be asked of a stream. What a look at the times keeps in memory has no bytes: a read follows it.
USES: dict[str, Use] = {
    "times": lambda scene, stores: [answer_of(partial(times, stores, place)) for place in places(scene)],
    "reads": lambda scene, stores: [
        answer_of(partial(scene.read_from, place, stores, small=small))
        for place in places(scene)
        for small in (False, True)
    ],
    "snapshots": lambda scene, stores: [
        answer_of(lambda: check_snapshot_offset(stores, KEY, place).key)  # noqa: B023
        for place in places(scene)
    ],
    "bootstrap": lambda _scene, stores: [part.body for part in bootstrap(stores, KEY).parts],
    "last messages": last_messages,
    "backwards": backwards,
    "stats": lambda _scene, stores: [
        load_stats(stores, KEY).messages,
        load_stats(stores, KEY).messages_exact,
    ],
    "forks": forks,
}


@pytest.fixture
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short streams have many tiny packs here; real streams have few."""
    monkeypatch.setattr(start_point, "MAX_QUERIES", 10_000)
    monkeypatch.setattr(catalog, "_COUNTING_CALLS", 10_000)


@cache
def answers_of_plain_batches(content_type: ContentType) -> dict[str, list[object]]:
    scene = a_scene_at("plain", 30, content_type=content_type)
    answers = {name: [*use(scene, scene.process())] for name, use in USES.items()}
    by_byte = [scene.times[end] for start, end in pairwise(scene.ends) for _ in range(start, end)]
    for place, told, bytes_read in zip(places(scene), answers["times"], answers["reads"][::2], strict=True):
        if place in scene.ends:
            assert (told, bytes_read) == (by_byte[place:], scene.data[place:])
    published = zip(places(scene), answers["snapshots"], strict=True)
    assert [place for place, answer in published if answer == KEY] == scene.ends
    return answers


@pytest.mark.usefixtures("no_limits")
@pytest.mark.parametrize("stage", STAGES[1:])
@pytest.mark.parametrize("content_type", [BYTES, JSON], ids=["bytes", "JSON"])
def test_every_answer_is_that_of_plain_batches(stage: str, content_type: ContentType) -> None:
    expected = answers_of_plain_batches(content_type)
    scene = a_scene_at(stage, 30, content_type=content_type)
    assert len(scene.packs()) > (0 if stage.startswith("packed again") else 1)
    knowing = scene.process()
    for name, use in USES.items():
        for stores in (scene.process(), knowing):
            assert [*use(scene, stores)] == expected[name], name


def test_a_page_backwards_is_refused_where_a_batch_is_missing() -> None:
    scene = a_scene_at("plain")
    lost = scene.items()[-3]
    scene.world.table.drop({"pk": lost["pk"], "sk": lost["sk"]})
    with pytest.raises(Damaged):
        read_back(scene.process(), KEY, NOW, 20)


# --- what is packed ------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["packed", "packed again"])
def test_all_old_batches_are_in_packs_except_the_last_one(stage: str) -> None:
    scene = a_scene_at(stage)
    packs, last = scene.packs(), scene.entries()[-1]
    assert [*packs, last] == scene.entries()
    assert (type(last), last.end, packs[-1].end) == (Batch, len(scene.data), last.start)
    assert scene.due("pack", "packed") == []
    assert {pack.blob for pack in packs} <= scene.world.bucket.objects.keys()
    assert (len(packs) == 1) == (stage == "packed again")
    assert (len(packs) == len(scene.world.bucket.objects)) == (stage == "packed")


@pytest.mark.parametrize("stage", ["packed", "packed again"])
def test_packs_keep_the_chain_of_checksums(stage: str) -> None:
    """Each pack has that before its first batch and that behind its last one; in between it can be worked out
    again from what the pack holds. A stretch that was written behind other bytes is found."""
    scene = a_scene_at(stage, 60)
    entries = [entry for entry in scene.entries() if not isinstance(entry, Tombstone)]
    for earlier, later in pairwise(entries):
        assert earlier.checksums.after == later.checksums.before is not None
    reached = None
    for pack in scene.packs():
        start = pack.start
        for block in scene.process().fill(list(blocks_of(pack, start))):
            assert block.times
            assert block.data
            lengths = iter(block.lengths)
            for messages in block.times.messages:
                size = sum(islice(lengths, messages))
                data = block.data[start - block.start : start - block.start + size]
                reached, start = Checksums.of(reached, start, data).after, start + size
        assert reached == pack.checksums.after
    foreign = Batch(0, Tail(1), "id", 0, b"x", checksums=Checksums(7, entries[1].checksums.after))
    scene.world.table.store(scene.items()[1] | {"h": encode_batch("", foreign)["h"]})
    with pytest.raises(Damaged):
        scene.read_from(0)


def test_batches_are_packed_when_they_are_an_hour_old_and_enough() -> None:
    scene = Scene()
    scene.append(60)
    assert scene.sweep_after(HOUR_MS - 1).packed == 0
    assert scene.sweep_after(1).packed > 0
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64))
    for packs in (0, 1):
        scene.append(40)
        assert scene.sweep_after().packed == packs


def test_a_small_rest_is_packed_when_the_stream_is_idle_or_after_a_day() -> None:
    scene = Scene(packing=ONE)
    looks = 0
    while not scene.sweep_after(HOUR_MS // 2).packed:
        looks += 1
        scene.append(8)
    assert 20 < looks < 60
    scene = Scene(packing=ONE)
    scene.append(60)
    assert scene.sweep_after().packed
    assert len(scene.items()) == 2


def test_large_bodies_are_not_packed_and_separate_the_packs() -> None:
    scene, large = Scene(packing=ONE), b"x" * 70_000
    scene.write(b"a", b"b", large, b"c", b"d", b"e", large, b"f", large, b"g", b"h")
    scene.write(b"i", close=True)
    scene.sweep_after()
    assert [isinstance(entry, Pack) for entry in scene.entries()] == [1, 0, 1, 0, 0, 0, 1, 0]
    scene.check(1)
    scene = Scene(packing=ONE)
    scene.write(b"a", b"b", large, b"c", b"d", b"e")
    scene.sweep_after()
    scene.write(b"f")
    scene.write(b"g", close=True)
    scene.sweep_after()
    found = [(entry.size, isinstance(entry, Pack)) for entry in scene.entries()]
    assert found == [(2, True), (70_000, False), (4, True), (1, False)]


def test_a_stream_of_a_small_pack_a_day_has_few_packs_after_a_year() -> None:
    """And what is written again is a few times the data, of which no more stays than the last month's."""
    day = Packing(HOUR_MS, every_bytes=64, pack_bytes=1600, min_batches=2, block_bytes=80)
    scene, written = Scene(packing=day), 0
    for _ in range(365):
        scene.append(4)
        before = set(scene.world.bucket.objects)
        scene.sweep_after(24 * HOUR_MS)
        written += sum(len(data) for name, data in scene.world.bucket.objects.items() if name not in before)
    packs = scene.packs()
    assert len(packs) < 2 * len(scene.data) / 1600 + 6
    assert len([pack for pack in packs if pack.size < 800]) < 6
    assert written < 6 * sum(len(scene.world.bucket.objects[pack.blob or ""]) for pack in packs)
    scene.check(40)
    stores, calls = counted(scene)
    read(stores, KEY, 0)
    assert calls["GetRange"] <= len(packs)


# --- what it costs ---------------------------------------------------------------------------


def test_a_read_in_a_pack_costs_one_query_and_one_range_and_the_next_page_no_query() -> None:
    scene = Scene(packing=ONE)
    scene.append(200)
    scene.sweep_after()
    for start in scene.ends[1:-40:37]:
        stores, calls = counted(scene)
        record = load_head(stores, KEY).record
        calls.clear()
        read_some = partial(
            read_page, stores.table, record, recent=stores.recent, limit_bytes=50, fill=stores.fill
        )
        page = read_some(start)
        assert calls == {"Query": 1, "GetRange": 1}
        read_some(page.end)
        assert calls == {"Query": 1, "GetRange": 2}


def test_a_page_of_several_packs_requests_their_ranges_concurrently() -> None:
    """After the one query there is one more round trip, however many packs the page lies in."""
    scene = a_scene_at("packed", 100)
    packs = len(scene.packs())
    stores, calls = counted(scene)
    at_once: list[int] = []

    class Counting(Tasks):
        def each(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            at_once.append(len(items))
            return super().each(call, items)

    stores.concurrency = Counting()
    assert read(stores, KEY, 0).data == scene.data
    assert calls["GetRange"] == packs > 3
    # The last batch of the log is in no pack.
    assert at_once == [packs + 1]


def test_an_append_makes_one_call_more_only_where_it_crosses_a_boundary() -> None:
    scene = Scene(packing=Packing(HOUR_MS))
    stores, calls = counted(scene)
    append(stores, KEY, [append_request(b"x")])
    calls.clear()
    for _ in range(20):
        append(stores, KEY, [append_request(b"x" * 60_000)])
    assert calls == {"PutItem": 20 + 20 * 60_000 // (256 * 1024)}


def a_scene_to_merge(**asked: Any) -> tuple[Scene, list[Pack]]:
    """A stream of many small packs, and batches that are old enough to make a pack that takes them all in."""
    scene = a_scene_at("to be packed again", 60, **asked)
    return scene, scene.packs()


# --- what becomes of packs ------------------------------------------------------------------


def test_packs_are_taken_in_with_one_request_each_and_stay_as_long_as_the_table_can_be_restored() -> None:
    scene, parts = a_scene_to_merge()
    stores, calls = counted(scene)
    assert sweep(stores).packed == 1
    assert (calls["GetRange"], calls["PutObject"], calls["TransactWriteItems"]) == (len(parts), 1, 1)
    [pack] = scene.packs()
    names = {part.blob for part in parts}
    assert len(scene.due("replaced")) == len(names) == len(parts)
    assert scene.sweep_after(KEEP_REPLACED_MS - 1).replaced == 0
    assert scene.world.bucket.objects.keys() == names | {pack.blob}
    assert scene.sweep_after(1).replaced == len(parts)
    assert [*scene.world.bucket.objects] == [pack.blob]
    assert scene.due("replaced") == []
    scene.check()


@pytest.mark.parametrize("stage", ["packed", "packed again"])
def test_the_retained_offset_may_lie_inside_a_pack(stage: str) -> None:
    scene = a_scene_at(stage, 60, content_type=JSON)
    *below, last = scene.packs()
    pack = below.pop(1) if below else last
    inside = next(end for end in scene.ends if pack.start < end < pack.end)
    publish_snapshot(scene.stores, KEY, PublishRequest(inside, BYTES, b"folded"))
    scene.sweep_after(2 * HOUR_MS)
    assert scene.starts()[0] == pack.start
    assert (pack.blob in scene.world.bucket.objects, pack.start) == (True, scene.packs()[0].start)
    if below:
        assert below[0].blob not in scene.world.bucket.objects
        with pytest.raises(RetentionGone):
            read(scene.process(), KEY, below[0].start)
    assert read(scene.process(), KEY, inside).data == scene.data[inside:]
    updates = bootstrap(scene.process(), KEY).parts[1:]
    assert b"".join(part.body + b"," for part in updates) == scene.data[inside:]


def test_a_pack_that_lies_below_what_is_retained_in_part_is_not_taken_in() -> None:
    scene, parts = a_scene_to_merge(content_type=JSON)
    second = parts[1]
    inside = next(end for end in scene.ends if second.start < end < second.end)
    publish_snapshot(scene.stores, KEY, PublishRequest(inside, BYTES, b"folded"))
    sweep(scene.process())
    assert scene.packs()[-1].start == second.end
    scene.sweep_after(2 * HOUR_MS)
    assert [pack.start for pack in scene.packs()] == [second.start, second.end]
    assert read(scene.process(), KEY, inside).data == scene.data[inside:]


@pytest.mark.parametrize("stage", ["packed", "packed again"])
def test_a_deleted_stream_leaves_no_pack_once_its_last_fork_has_ended(stage: str) -> None:
    scene = a_scene_at(stage)
    base = scene.ends[30]
    scene.fork(base)
    delete(scene.stores, KEY)
    scene.sweep_after(2 * HOUR_MS)
    scene.wait_until_removed()
    for start in scene.ends[:31:3]:
        assert read(scene.process(), FORK, start).data == scene.data[start:base]
    delete(scene.stores, FORK)
    for _ in range(2):
        scene.sweep_after(2 * HOUR_MS)
    assert scene.items() == []
    assert scene.world.bucket.objects == {}
    scene.wait_until_removed()
    assert scene.due("pack", "packed", "replaced") == []


# --- what is missing or damaged ---------------------------------------------------------------


def harm(scene: Scene, how: str) -> Pack:
    """Harms the second pack."""
    first, second = scene.items()[:2]
    pack = scene.packs()[1]
    assert pack.blob
    stored, block = scene.world.bucket.objects[pack.blob], pack.index.blocks[0]
    match how:
        case "object is missing":
            del scene.world.bucket.objects[pack.blob]
        case "block is damaged":
            place = block.first_byte
            scene.world.bucket.objects[pack.blob] = stored[:place] + b"?" + stored[place + 1 :]
        case "object is cut":
            scene.world.bucket.objects[pack.blob] = stored[:20]
        case "index is another's":
            scene.world.table.store(second | {"px": first["px"]})
        case "item is missing":
            scene.world.table.drop(second)
    return pack


HARMS = {
    "object is missing": "a pack cannot be read: {blob}",
    "block is damaged": "a pack is damaged: {blob}",
    "object is cut": "",
    "index is another's": "",
    "item is missing": "batches are missing",
}


@pytest.mark.parametrize("how", HARMS)
def test_a_harmed_pack_gets_503_and_the_others_are_read(how: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = a_scene_at("packed")
    harmed = harm(scene, how)
    with pytest.raises(StorageUnavailable if how == "object is missing" else Damaged):
        read(scene.process(), KEY, harmed.start)
    assert HARMS[how].format(blob=harmed.blob) in caplog.text
    with suppress(Damaged, StorageUnavailable):
        assert read(scene.process(), KEY, 0).page.end == harmed.start
    assert scene.read_from(harmed.end) == scene.data[harmed.end :]
    if how == "block is damaged":
        start = harmed.index.blocks[1].start
        assert scene.read_from(start) == scene.data[start:]


@pytest.mark.parametrize("how", ["object is missing", "block is damaged", "index is another's"])
def test_an_unreadable_pack_is_left_out_of_the_new_one(how: str, caplog: pytest.LogCaptureFixture) -> None:
    scene, parts = a_scene_to_merge()
    harmed = harm(scene, how)
    assert sweep(scene.process()).packed == 1
    assert "cannot be read, and is not packed again" in caplog.text
    assert len(scene.items()) == len(parts) + 2
    with pytest.raises(ProtocolError):
        read(scene.process(), KEY, harmed.start)
    assert scene.read_from(harmed.end) == scene.data[harmed.end :]


def test_a_listing_does_not_take_the_place_that_a_pack_has_emptied_for_the_tail() -> None:
    """Of a stream that it knew shorter. With no least age of what is packed, that may be seconds later."""
    scene = Scene(Packing.after_seconds(0))
    scene.append(3)
    lister = scene.process()

    def listed() -> list[int]:
        found = catalog.list_streams(lister, KEY.bucket, ListingRequest())
        return [head.tail.offset for head in found.streams]

    known = scene.ends[-1]
    assert listed() == [known]
    scene.append(5)
    scene.sweep_after(1000)
    assert known not in scene.starts()
    assert listed() == [scene.ends[-1]]
