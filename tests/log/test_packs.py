"""Packs: readers get the same before and after batches are packed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final

import pytest

from tests.simulation.scheduler import Turns
from tests.simulation.world import SimulatedWorld, combining
from tests.support import BYTES, JSON, append_request, create_request, table_of
from tidemark.janitor.sweep import sweep
from tidemark.log.packs import block_batches
from tidemark.log.read import read_page
from tidemark.log.records import Batch, Checksums
from tidemark.log.schema import decode_batch, encode_batch
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import Damaged, Malformed, ProtocolError, RetentionGone, StorageUnavailable
from tidemark.protocol.messages import ContentType
from tidemark.protocol.pack import Packing
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import append
from tidemark.service.bootstrap import bootstrap
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import PublishRequest, check_snapshot_offset, publish_snapshot
from tidemark.service.stores import Stores

HOUR_MS: Final = 60 * 60 * 1000
#: Small packs of small blocks, so that short streams have many of both.
SMALL: Final = Packing(HOUR_MS, every_bytes=64, pack_bytes=300, min_batches=2, block_bytes=40)
KEY, FORK = StreamKey("v1", "a"), StreamKey("v1", "fork")


@dataclass
class Scene:
    """A stream over simulated storage, and what was appended to it."""

    packing: Packing = SMALL
    content_type: ContentType = BYTES
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    data: bytes = b""
    ends: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.world = SimulatedWorld(self.chance, None, packing=self.packing)
        self.stores = self.process()
        create(self.stores, KEY, create_request(self.content_type))

    def process(self) -> Stores:
        return self.world.process()[1]

    def append(self, batches: int) -> None:
        """Some batches have one message, some have several appends together."""
        for _ in range(batches):
            group = [self.body() for _ in range(self.chance.choice((1, 1, 1, 3)))]
            appended = append(
                self.stores, KEY, [append_request(body, content_type=self.content_type) for body, _ in group]
            )
            assert not any(isinstance(each, Exception) for each in appended)
            for _, messages in group:
                for message in messages:
                    self.data += message
                    self.ends.append(len(self.data))

    def body(self) -> tuple[bytes, list[bytes]]:
        number = str(len(self.data)).encode()
        if not self.content_type.is_json:
            body = number + b"." * self.chance.randrange(20)
            return body, [body]
        values = [number + b"0" * self.chance.randrange(9) for _ in range(self.chance.choice((1, 1, 3)))]
        values = [b"1" + value for value in values]
        return b"[" + b",".join(values) + b"]", [value + b"," for value in values]

    def pack(self) -> int:
        self.world.advance(HOUR_MS)
        return sweep(self.process()).packed

    def items(self) -> list[dict[str, Any]]:
        """The log's batches in order."""
        items = [item for item in self.world.table.items() if item["pk"]["S"].startswith("log/v1/a#")]
        return sorted(items, key=lambda item: str(item["sk"]["S"]))

    def read_from(self, start: int, stores: Stores | None = None, *, small: bool = False) -> bytes:
        stores, data, at_tail = stores or self.process(), b"", False
        while not at_tail:
            reading = read(stores, KEY, start, small=small)
            data, start, at_tail = data + reading.data, reading.page.end, reading.page.up_to_date
        return data

    def check(self, *, everywhere: bool = True) -> None:
        """From the end of every message the rest can be read, by a process that knows nothing and by one that
        has read everything."""
        knowing = self.process()
        for start in self.ends if everywhere else self.ends[:: max(1, len(self.ends) // 7)]:
            assert self.read_from(start) == self.data[start:], start
            assert self.read_from(start, knowing) == self.data[start:], start
            assert self.read_from(start, small=True) == self.data[start:], start


def a_packed_scene(batches: int = 60, **asked: Any) -> Scene:
    scene = Scene(**asked)
    scene.append(batches)
    assert scene.pack()
    return scene


# --- what is packed ------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_old_batches_become_packs_except_the_last_one(content_type: ContentType) -> None:
    scene = a_packed_scene(content_type=content_type)
    *packs, last = [decode_batch(item) for item in scene.items()]
    assert len(packs) > 2
    assert all(batch.index for batch in packs)
    assert last.index is None
    assert last.end == len(scene.data)
    assert len(scene.world.bucket.objects) == len(packs)
    assert [
        item["kd"]["S"] for item in scene.world.table.items() if item["pk"]["S"].startswith("due/p")
    ] == []
    scene.check()


def test_packs_keep_the_chain_of_checksums() -> None:
    """Each pack has that before its first batch and that behind its last one; in between it can be worked out
    again from what the pack holds. A stretch that was written behind other bytes is found."""
    scene = a_packed_scene()
    batches = [decode_batch(item) for item in scene.items()]
    for earlier, later in pairwise(batches):
        assert earlier.checksums.after == later.checksums.before is not None
    reached = None
    for pack in batches[:-1]:
        start = pack.start
        for block in scene.process().fill(list(block_batches(pack, start))):
            assert block.times
            assert block.data
            lengths = iter(block.lengths)
            for messages in block.times.messages:
                size = sum(islice(lengths, messages))
                data = block.data[start - block.start : start - block.start + size]
                reached, start = Checksums.of(reached, start, data).after, start + size
        assert reached == pack.checksums.after
    item = scene.items()[1]
    foreign = Batch(0, Tail(1), "id", 0, b"x", checksums=Checksums(7, batches[1].checksums.after))
    scene.world.table.store(item | {"h": encode_batch("", foreign)["h"]})
    with pytest.raises(Damaged):
        scene.read_from(0)


def test_a_growing_stream_is_packed_again_and_again() -> None:
    scene = Scene(content_type=JSON)
    for _ in range(4):
        scene.append(20)
        scene.pack()
        scene.check(everywhere=False)
        batches = [decode_batch(item) for item in scene.items()]
        assert all(later.checksums.follow(earlier.checksums) for earlier, later in pairwise(batches))
    assert sum("px" in item for item in scene.items()) >= 4
    scene.check()


def test_batches_younger_than_an_hour_are_not_packed() -> None:
    scene = Scene()
    scene.append(60)
    scene.world.advance(HOUR_MS - 1)
    assert sweep(scene.process()).packed == 0
    assert len(scene.items()) == 60


def test_a_small_rest_is_packed_when_the_stream_is_idle_or_after_a_day() -> None:
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64, pack_bytes=10**6, min_batches=2))
    looks = 0
    for _ in range(30):
        scene.append(8)
        scene.world.advance(HOUR_MS // 2)
        looks += 1
        if sweep(scene.process()).packed:
            break
    assert looks > 20
    scene.check(everywhere=False)
    scene = a_packed_scene(packing=scene.packing)
    assert len(scene.items()) == 2


def test_batches_below_the_minimum_size_are_not_packed() -> None:
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64))
    scene.append(40)
    assert scene.pack() == 0
    scene.append(40)
    assert scene.pack() == 1


def test_large_bodies_are_not_packed_and_separate_the_packs() -> None:
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64, min_batches=2))
    large = b"x" * 70_000
    for body in (b"a", b"b", large, b"c", b"d", b"e", large, b"f", large, b"g", b"h"):
        append(scene.stores, KEY, [append_request(body)])
        scene.data += body
        scene.ends.append(len(scene.data))
    append(scene.stores, KEY, [append_request(b"i", close=True)])
    scene.data += b"i"
    scene.pack()
    assert ["px" in item for item in scene.items()] == [True, False, True, False, False, False, True, False]
    scene.check()


def test_batches_of_combined_appends_are_packed_too() -> None:
    scene = Scene()
    with combining(forced=True):
        for _ in range(60):
            body = scene.body()[0]
            append(scene.stores, KEY, [append_request(body)])
            scene.data += body
            scene.ends.append(len(scene.data))
    assert scene.pack()
    scene.check()


# --- what it costs ---------------------------------------------------------------------------


@contextmanager
def counted(scene: Scene) -> Iterator[tuple[Stores, Counter[str]]]:
    """A new process whose calls are counted."""
    stores, calls = scene.process(), Counter[str]()
    for client in (table_of(stores).dynamodb, stores.blobs._objects):  # type: ignore[attr-defined]

        def counting(operation: str, *more: Any, send: Any = client.send) -> Any:
            calls[operation] += 1
            return send(operation, *more)

        client.send = counting
    yield stores, calls


def test_a_read_in_a_pack_costs_one_query_and_one_range_and_the_next_page_no_query() -> None:
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64, min_batches=2, block_bytes=40))
    scene.append(200)
    scene.pack()
    for start in scene.ends[1:-40:17]:
        with counted(scene) as (stores, calls):
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
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=64, pack_bytes=400, min_batches=2, block_bytes=80))
    scene.append(200)
    packs = scene.pack()
    assert packs > 3
    with counted(scene) as (stores, calls):
        at_once: list[int] = []

        class Counting(Turns):
            def each(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
                at_once.append(len(items))
                return super().each(call, items)

        stores.concurrency = Counting(scene.world.scheduler)
        assert read(stores, KEY, 0).data == scene.data
    assert calls["GetRange"] == packs
    # The last batch of the log is in no pack.
    assert at_once == [packs + 1]


def test_an_append_makes_one_call_more_only_where_it_crosses_a_boundary() -> None:
    scene = Scene(packing=Packing(HOUR_MS))
    with counted(scene) as (stores, calls):
        append(stores, KEY, [append_request(b"x")])
        calls.clear()
        for _ in range(20):
            append(stores, KEY, [append_request(b"x" * 60_000)])
        assert calls == {"PutItem": 20 + 20 * 60_000 // (256 * 1024)}


def test_random_reads_of_a_packed_stream_equal_those_of_the_plain_one() -> None:
    scene = Scene(
        packing=Packing(HOUR_MS, every_bytes=1000, block_bytes=300, pack_bytes=4000), content_type=JSON
    )
    scene.append(800)
    assert scene.pack() > 3
    knowing = scene.process()
    for _ in range(1000):
        start = scene.chance.choice(scene.ends)
        reading = read(knowing, KEY, start, small=scene.chance.random() < 0.5)
        assert reading.data == scene.data[start : reading.page.end]
        assert reading.page.end in scene.ends


# --- what lies inside a pack ------------------------------------------------------------------


def refusal_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ProtocolError as refusal:
        return type(refusal), str(refusal)


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_snapshots_may_be_published_at_the_same_offsets(content_type: ContentType) -> None:
    plain, packed = Scene(content_type=content_type), a_packed_scene(30, content_type=content_type)
    plain.append(30)
    assert plain.data == packed.data
    for offset in range(len(plain.data) + 2):
        answers = [
            refusal_of(lambda: check_snapshot_offset(scene.process(), KEY, offset).key)  # noqa: B023
            for scene in (plain, packed)
        ]
        assert answers[0] == answers[1], offset


@pytest.mark.parametrize("content_type", [BYTES, JSON])
def test_a_fork_inside_a_pack_reads_as_one_of_the_plain_batches(content_type: ContentType) -> None:
    plain, packed = Scene(content_type=content_type), a_packed_scene(30, content_type=content_type)
    plain.append(30)
    for place in range(0, len(plain.data), 11):
        for sub_offset in (0, 1, 4):
            answers = []
            for scene in (plain, packed):
                stores = scene.process()
                asked = create_request(None, fork=ForkPoint(KEY, place, sub_offset))
                made = refusal_of(lambda: create(stores, FORK, asked).head.record.base)  # noqa: B023
                content = None
                if isinstance(made, int):
                    append(stores, FORK, [append_request(b"7", content_type=content_type)])
                    content = read(scene.process(), FORK, 0).data
                    delete(stores, FORK)
                scene.world.advance(1)
                answers.append((made, content))
            assert answers[0] == answers[1], (place, sub_offset)


def test_a_fork_reads_its_part_of_a_pack_from_any_offset() -> None:
    scene = a_packed_scene()
    for place in scene.ends[5:40:6]:
        create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, place, 0)))
        append(scene.stores, FORK, [append_request(b"own")])
        for start in [end for end in scene.ends if end <= place]:
            assert read(scene.process(), FORK, start).data == scene.data[start:place] + b"own"
        delete(scene.stores, FORK)
        scene.world.advance(1)


def test_packed_json_is_read_only_from_message_ends() -> None:
    scene = a_packed_scene(content_type=JSON)
    for offset in set(range(scene.ends[-2])) - set(scene.ends):
        with pytest.raises(Malformed):
            read(scene.process(), KEY, offset)


def test_the_retained_offset_may_lie_inside_a_pack() -> None:
    """The pack and its object stay until nothing in it is retained."""
    scene = a_packed_scene(content_type=JSON)
    first, second, *_ = [decode_batch(item) for item in scene.items()]
    inside = next(end for end in scene.ends if second.start < end < second.end)
    publish_snapshot(scene.stores, KEY, PublishRequest(inside, BYTES, b"folded"))
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert scene.items()[0]["s"]["S"] == second.blob
    assert first.blob not in scene.world.bucket.objects
    with pytest.raises(RetentionGone):
        read(scene.process(), KEY, first.start)
    assert read(scene.process(), KEY, inside).data == scene.data[inside:]
    updates = bootstrap(scene.process(), KEY).parts[1:]
    assert b"".join(part.body + b"," for part in updates) == scene.data[inside:]


def test_the_packs_of_a_deleted_stream_are_removed() -> None:
    scene = a_packed_scene()
    delete(scene.stores, KEY)
    scene.world.advance(25 * HOUR_MS)
    sweep(scene.process())
    assert scene.items() == []
    assert scene.world.bucket.objects == {}


def test_a_pack_is_kept_while_a_fork_of_its_stream_lives() -> None:
    scene = a_packed_scene()
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, scene.ends[30], 0)))
    delete(scene.stores, KEY)
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert read(scene.process(), FORK, 0).data == scene.data[: scene.ends[30]]
    delete(scene.stores, FORK)
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    scene.world.advance(2 * HOUR_MS)
    sweep(scene.process())
    assert scene.world.bucket.objects == {}


# --- what is missing or damaged ---------------------------------------------------------------


def test_a_missing_object_gets_503_and_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = a_packed_scene()
    name = decode_batch(scene.items()[0]).blob
    del scene.world.bucket.objects[name or ""]
    with pytest.raises(StorageUnavailable):
        read(scene.process(), KEY, 0)
    assert f"a pack cannot be read: {name}" in caplog.text


def test_a_damaged_block_gets_503_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    scene = a_packed_scene()
    pack = decode_batch(scene.items()[0])
    assert pack.blob
    assert pack.index
    stored = scene.world.bucket.objects[pack.blob]
    block = pack.index.blocks[0]
    scene.world.bucket.objects[pack.blob] = stored[: block.first_byte] + b"?" + stored[block.first_byte + 1 :]
    with pytest.raises(Damaged):
        read(scene.process(), KEY, 0)
    assert f"a pack is damaged: {pack.blob}" in caplog.text
    start = pack.index.blocks[1].start
    assert scene.read_from(start) == scene.data[start:]


def test_a_truncated_object_gets_503() -> None:
    scene = a_packed_scene()
    objects = scene.world.bucket.objects
    for name in objects:
        objects[name] = objects[name][:20]
    with pytest.raises(Damaged):
        read(scene.process(), KEY, 0)


def test_a_missing_pack_gets_503_and_not_an_empty_read(caplog: pytest.LogCaptureFixture) -> None:
    scene = a_packed_scene()
    _, second, third, *_ = scene.items()
    scene.world.table.drop(second)
    start = decode_batch(second).start
    assert read(scene.process(), KEY, 0).page.end == start
    with pytest.raises(Damaged):
        read(scene.process(), KEY, start)
    assert "batches are missing" in caplog.text
    assert read(scene.process(), KEY, decode_batch(third).start).data


def test_an_index_of_another_range_gets_503() -> None:
    scene = a_packed_scene()
    one, other, *_ = scene.items()
    scene.world.table.store(one | {"px": other["px"]})
    with pytest.raises(Damaged):
        read(scene.process(), KEY, 0)
