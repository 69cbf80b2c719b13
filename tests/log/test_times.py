"""When the messages of a page were appended: of plain batches, packs, large bodies and forks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest

from tests.log.test_packs import FORK, HOUR_MS, KEY, SMALL, Scene, counted
from tests.support import BYTES, JSON, append_request, create_request
from tidemark.log.schema import decode_batch
from tidemark.protocol.create import ForkPoint
from tidemark.protocol.errors import HistoryGone, Malformed, RetentionGone, StreamGone, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.messages import ContentType
from tidemark.protocol.pack import Packing
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.append import append
from tidemark.service.catalog import AppendTimes, load_times
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.stores import Stores


def a_timed_scene(batches: int = 60, *, packing: Packing = SMALL, content_type: ContentType = JSON) -> Scene:
    """Between its batches passes time: often none, sometimes a day."""
    scene = Scene(packing=packing, content_type=content_type)
    for _ in range(batches):
        scene.append(1)
        scene.world.advance(scene.chance.choice((0, 0, 1, 1000, 24 * HOUR_MS)))
    return scene


def times_by_end(scene: Scene) -> dict[int, int]:
    """Of each message by where it ends, as the table has them before anything is packed."""
    found = {}
    for batch in (decode_batch(item) for item in scene.items()):
        for end in list(accumulate(batch.lengths, initial=batch.start))[1:]:
            found[end] = batch.time_ms
    return found


def messages_of(stores: Stores, found: AppendTimes) -> Iterator[tuple[int, int]]:
    """Where each message ends, by the bytes of the read, and its time."""
    times = [ms for ms, count in zip(found.times_ms, found.messages, strict=True) for _ in range(count)]
    sizes = iter(times)
    body, end = read(stores, KEY, found.start).data, found.start
    for value in body.split(b",")[:-1]:
        end += len(value) + 1
        yield end, next(sizes)
    assert next(sizes, None) is None


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("half_removed", [False, True])
def test_every_message_has_the_time_of_its_batch_from_wherever_they_are_asked_for(
    packed: bool, half_removed: bool
) -> None:
    scene = a_timed_scene()
    expected, before = times_by_end(scene), scene.items()
    if packed:
        assert scene.pack() > 3
    if half_removed:
        starts = {item["sk"]["S"] for item in scene.items()}
        for item in [item for item in before if item["sk"]["S"] not in starts][::2]:
            scene.stores.table.put(item)
    knowing = scene.process()
    for start in scene.ends:
        for stores in (scene.process(), knowing):
            found = load_times(stores, KEY, start)
            ends = [end for end in scene.ends if end > start]
            assert dict(messages_of(stores, found)) == {end: expected[end] for end in ends}
            assert (found.start, found.end) == (start, scene.ends[-1])
            assert sum(found.sizes) == found.end - start


@pytest.mark.parametrize("packed", [False, True])
def test_of_bytes_any_offset_may_be_asked_for_and_each_byte_has_a_time(packed: bool) -> None:
    scene = a_timed_scene(content_type=BYTES)
    by_end = times_by_end(scene)
    expected = [by_end[end] for start, end in pairwise(scene.ends) for _ in range(start, end)]
    if packed:
        assert scene.pack()
    stores = scene.process()
    for start in range(0, len(scene.data), 3):
        found = load_times(stores, KEY, start)
        told = [ms for ms, size in zip(found.times_ms, found.sizes, strict=True) for _ in range(size)]
        assert told == expected[start:]
        assert sum(found.messages) == sum(end > start for end in scene.ends)


def test_an_answer_covers_the_page_of_the_read_at_the_same_offset() -> None:
    """Also where a page is cut: large bodies in S3, and packs of more than a page."""
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=1000, min_batches=2))
    for size in (10, 70_000, 3_000_000, 2_000_000, 20, *[40_000] * 150):
        append(scene.stores, KEY, [append_request(b"x" * size)])
        scene.world.advance(7)
    times = [decode_batch(item).time_ms for item in scene.items()]
    for packed in (False, True):
        if packed:
            assert scene.pack()
        told, start = [], 0
        while (found := load_times(scene.process(), KEY, start)).end > start:
            assert found.end == read(scene.process(), KEY, start).page.end
            told += found.times_ms
            start = found.end
        assert told == times


def test_times_of_a_fork_reach_into_its_source() -> None:
    """Also where it leaves the source inside of an append."""
    for packed in (False, True):
        scene = a_timed_scene(content_type=BYTES)
        by_end = times_by_end(scene)
        if packed:
            assert scene.pack()
        for place in (scene.ends[20], scene.ends[20] + 1, scene.ends[-1]):
            create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, place, 0)))
            scene.world.advance(5)
            append(scene.stores, FORK, [append_request(b"own")])
            inherited = [(s, e) for s, e in pairwise(scene.ends) if s < place]
            expected = [by_end[end] for start, end in inherited for _ in range(start, min(end, place))]
            for start in (0, scene.ends[7], place):
                found = load_times(scene.process(), FORK, start)
                told = [ms for ms, size in zip(found.times_ms, found.sizes, strict=True) for _ in range(size)]
                assert told[:-3] == expected[start:]
                assert set(told[-3:]) == {found.times_ms[-1]}
                assert found.times_ms[-1] > max(expected)
            delete(scene.stores, FORK)
            scene.world.advance(1)


def test_offsets_that_no_read_may_begin_at_are_refused_as_by_a_read() -> None:
    scene = a_timed_scene(10)
    assert trim_below(scene.stores, KEY, scene.ends[4])
    for offset in range(scene.ends[-1] + 3):
        if offset < scene.ends[4]:
            with pytest.raises(RetentionGone):
                load_times(scene.process(), KEY, offset)
        elif offset not in scene.ends:
            with pytest.raises(HistoryGone if offset > scene.ends[-1] else Malformed):
                load_times(scene.process(), KEY, offset)
        else:
            assert load_times(scene.process(), KEY, offset).end == scene.ends[-1]


def test_a_stream_that_is_gone_has_no_times() -> None:
    scene = a_timed_scene(5)
    with pytest.raises(StreamNotFound):
        load_times(scene.stores, StreamKey("v1", "another"), 0)
    knowing = scene.process()
    load_times(knowing, KEY, 0)
    create(scene.stores, FORK, create_request(None, fork=ForkPoint(KEY, scene.ends[2], 0)))
    delete(scene.stores, KEY)
    for stores in (knowing, scene.process()):
        with pytest.raises(StreamGone):
            load_times(stores, KEY, 0)
    assert load_times(knowing, FORK, 0).end == scene.ends[2]
    delete(scene.stores, FORK)
    for stores in (knowing, scene.process()):
        with pytest.raises(StreamNotFound):
            load_times(stores, FORK, 0)


def test_a_stream_that_was_created_again_has_another_incarnation() -> None:
    scene = a_timed_scene(5)
    knowing = scene.process()
    before = load_times(knowing, KEY, 0).incarnation
    delete(scene.stores, KEY)
    scene.world.advance(1)
    create(scene.stores, KEY, create_request(JSON))
    found = load_times(knowing, KEY, 0)
    assert found.incarnation != before
    assert (found.start, found.end, found.times_ms) == (0, 0, [])


def test_a_closure_is_no_write_of_messages() -> None:
    scene = a_timed_scene(5)
    append(scene.stores, KEY, [append_request(b"", close=True)])
    for start in (0, scene.ends[-1]):
        found = load_times(scene.process(), KEY, start)
        assert found.end == scene.ends[-1]
        assert sum(found.messages) == len([end for end in scene.ends if end > start])


def test_times_cost_the_item_and_the_queries_of_the_read_and_no_body_from_s3() -> None:
    scene = Scene()
    for size in (10, 70_000, 10, 100_000, 60_000):
        append(scene.stores, KEY, [append_request(scene.chance.randbytes(size))])
    with counted(scene) as (stores, calls):
        read(stores, KEY, 0)
        assert calls == {"GetItem": 1, "Query": 1, "GetObject": 2}
    with counted(scene) as (stores, calls):
        load_times(stores, KEY, 0)
        assert calls == {"GetItem": 1, "Query": 1}


def test_times_of_what_a_process_has_just_read_cost_the_item_and_a_look_at_the_tail() -> None:
    for packed in (False, True):
        scene = a_timed_scene(packing=Packing(HOUR_MS, every_bytes=64, min_batches=2, block_bytes=400))
        if packed:
            assert scene.pack()
        with counted(scene) as (stores, calls):
            read(stores, KEY, 0)
            calls.clear()
            load_times(stores, KEY, 0)
            assert calls == {"GetItem": 1, "Query": 1}


def test_times_of_a_pack_cost_the_range_of_its_blocks() -> None:
    scene = a_timed_scene(packing=Packing(HOUR_MS, every_bytes=64, min_batches=2))
    assert scene.pack() == 1
    with counted(scene) as (stores, calls):
        load_times(stores, KEY, 0)
        assert calls == {"GetItem": 1, "Query": 2, "GetRange": 1}


def test_a_read_is_what_it_was_after_times_were_asked_for() -> None:
    """What a look at the times keeps in memory has no bytes, and no reader gets it."""
    for packed in (False, True):
        scene = a_timed_scene()
        if packed:
            assert scene.pack()
        stores = scene.process()
        for start in scene.ends[::5]:
            load_times(stores, KEY, start)
            assert read(stores, KEY, start).data == scene.data[start:]


def test_times_do_not_renew_a_sliding_expiry() -> None:
    scene = Scene()
    create(scene.stores, FORK, create_request(BYTES, Expiry(ttl_seconds=60), body=b"x"))
    for _ in range(3):
        scene.world.advance(19_000)
        load_times(scene.process(), FORK, 0)
    scene.world.advance(10_000)
    with pytest.raises(StreamNotFound):
        load_times(scene.process(), FORK, 0)
