"""When the messages of a page were appended, and where messages of a time begin. `test_pack.py` asks for the
times and for the last messages of packed streams."""

import pytest

from tests.janitor.scene import FORK, KEY, ONE, SMALL, STAGES, Scene, a_scene_at, counted
from tests.support import BYTES, HOUR_MS, JSON, append_request, create_request
from tidemark.http.catalog import render_stats
from tidemark.log.due import Packing
from tidemark.protocol.authorization import EVERYTHING
from tidemark.protocol.errors import HistoryGone, Malformed, RetentionGone, SoftDeleted, StreamNotFound
from tidemark.protocol.expiry import Expiry
from tidemark.protocol.offset import NOW, render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service import catalog, start_point
from tidemark.service.append import append
from tidemark.service.catalog import load_stats, load_times
from tidemark.service.create import create
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.service.retention import trim_below
from tidemark.service.start_point import find_start, read_back


def test_an_answer_covers_the_page_of_the_read_at_the_same_offset() -> None:
    scene = Scene(packing=Packing(HOUR_MS, every_bytes=1000, min_batches=2))
    for size in (10, 70_000, 3_000_000, 2_000_000, 20, *[40_000] * 150):
        append(scene.stores, KEY, [append_request(b"x" * size)])
        scene.world.advance(7)
    times = [batch.time_ms for batch in scene.entries()]
    for packed in (False, True):
        assert not packed or scene.sweep_after().packed
        told, start = [], 0
        while (found := load_times(scene.process(), KEY, start)).end > start:
            assert found.end == read(scene.process(), KEY, start).page.end
            told += found.times_ms
            start = found.end
        assert told == times


def test_offsets_that_no_read_may_begin_at_are_refused_as_by_a_read() -> None:
    scene = Scene(content_type=JSON)
    scene.append(10)
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


def test_a_stream_that_is_gone_has_no_times_and_one_that_was_created_again_has_its_own() -> None:
    scene = Scene()
    scene.append(5)
    with pytest.raises(StreamNotFound):
        load_times(scene.stores, StreamKey("v1", "another"), 0)
    knowing = scene.process()
    before = load_times(knowing, KEY, 0).incarnation
    scene.fork(scene.ends[2])
    delete(scene.stores, KEY)
    for stores in (knowing, scene.process()):
        with pytest.raises(SoftDeleted):
            load_times(stores, KEY, 0)
    assert load_times(knowing, FORK, 0).end == scene.ends[2]
    delete(scene.stores, FORK)
    for stores in (knowing, scene.process()):
        with pytest.raises(StreamNotFound):
            load_times(stores, FORK, 0)
    scene.world.advance(1)
    create(scene.stores, KEY, create_request(JSON))
    found = load_times(knowing, KEY, 0)
    assert found.incarnation != before
    assert (found.start, found.end, found.times_ms) == (0, 0, [])


def test_a_closure_is_no_write_of_messages() -> None:
    scene = Scene()
    scene.append(5)
    append(scene.stores, KEY, [append_request(b"", close=True)])
    for start in (0, scene.ends[-1]):
        found = load_times(scene.process(), KEY, start)
        assert found.end == scene.ends[-1]
        assert sum(found.messages) == len([end for end in scene.ends if end > start])


def test_times_cost_the_item_and_the_queries_of_the_read_and_no_body_from_s3() -> None:
    scene = Scene()
    for size in (10, 70_000, 10, 100_000, 60_000):
        append(scene.stores, KEY, [append_request(scene.chance.randbytes(size))])
    for ask, expected in (
        (lambda stores: read(stores, KEY, 0), {"GetItem": 1, "Query": 1, "GetObject": 2}),
        (lambda stores: load_times(stores, KEY, 0), {"GetItem": 1, "Query": 1}),
    ):
        stores, calls = counted(scene)
        ask(stores)
        assert calls == expected


@pytest.mark.parametrize("packed", [False, True])
def test_times_cost_the_range_of_the_blocks_and_after_a_read_only_a_look_at_the_tail(packed: bool) -> None:
    scene = Scene(packing=ONE)
    scene.append(60)
    assert not packed or scene.sweep_after().packed == 1
    stores, calls = counted(scene)
    load_times(stores, KEY, 0)
    assert calls == ({"GetItem": 1, "Query": 2, "GetRange": 1} if packed else {"GetItem": 1, "Query": 1})
    read(stores, KEY, 0)
    calls.clear()
    load_times(stores, KEY, 0)
    assert calls == {"GetItem": 1, "Query": 1}


def test_times_do_not_renew_a_sliding_expiry() -> None:
    scene = Scene()
    create(scene.stores, FORK, create_request(BYTES, Expiry(ttl_seconds=60), body=b"x"))
    for _ in range(3):
        scene.world.advance(19_000)
        load_times(scene.process(), FORK, 0)
    scene.world.advance(10_000)
    with pytest.raises(StreamNotFound):
        load_times(scene.process(), FORK, 0)


@pytest.mark.parametrize("stage", STAGES)
def test_where_messages_of_a_time_begin_misses_none(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly there in plain batches; in a pack at the beginning of a block."""
    monkeypatch.setattr(start_point, "MAX_QUERIES", 10_000)
    scene = a_scene_at(stage, content_type=JSON)
    slack = 0 if stage == "plain" else SMALL.block_bytes * 2
    for at_ms in sorted({ms + more for ms in scene.times.values() for more in (-1, 0, 1)}):
        exact = min((end for end, ms in scene.times.items() if ms >= at_ms), default=len(scene.data))
        begin = max(end for end in scene.ends if end < exact) if at_ms <= max(scene.times.values()) else exact
        found = find_start(scene.process(), KEY, None, at_ms).offset
        assert begin - slack <= found <= begin
        assert found in scene.ends


@pytest.mark.parametrize("batches", [60, 600])
@pytest.mark.parametrize("packed", [False, True])
def test_a_page_backwards_costs_the_head_and_a_query_at_any_length(packed: bool, batches: int) -> None:
    scene = Scene(packing=ONE, content_type=JSON)
    scene.append(batches)
    assert not packed or scene.sweep_after().packed == 1
    for middle in (len(scene.ends) // 3, len(scene.ends) // 2):
        (stores, calls), start, end = counted(scene), scene.ends[middle - 5], scene.ends[middle]
        assert read_back(stores, KEY, end, 5).data == scene.data[start:end]
        assert 1 <= calls.pop("GetRange", 0) <= 3 if packed else "GetRange" not in calls
        assert calls == {"GetItem": 1, "Query": 2}


def test_a_page_backwards_of_large_messages_has_fewer_and_ends_where_it_must() -> None:
    scene = Scene()
    scene.write(*[b"x" * 1_500_000] * 5)
    page = read_back(scene.process(), KEY, NOW, 5).page
    assert (page.start, page.end) == (scene.ends[3], scene.ends[5])
    assert read_back(scene.process(), KEY, page.start, 5).page.end == page.start
    trim_below(scene.stores, KEY, scene.ends[2])
    assert read_back(scene.process(), KEY, page.start, 5).page.start == scene.ends[2]
    assert not read_back(scene.process(), KEY, scene.ends[2], 5).page.batches
    with pytest.raises(RetentionGone):
        read_back(scene.process(), KEY, scene.ends[1], 5)
    with pytest.raises(HistoryGone):
        read_back(scene.process(), KEY, scene.ends[-1] + 1, 5)
    append(scene.stores, KEY, [append_request(b"", close=True)])
    for before, is_last in ((scene.ends[5], True), (scene.ends[4], False)):
        page = read_back(scene.process(), KEY, before, 1).page
        assert (page.up_to_date, page.closed) == (is_last, is_last)


def test_counting_stops_before_it_reads_a_whole_packed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_point, "MAX_QUERIES", 3)
    monkeypatch.setattr(catalog, "_COUNTING_CALLS", 3)
    scene = a_scene_at("packed", content_type=JSON)
    found = find_start(scene.process(), KEY, 100)
    assert not found.complete
    assert found.messages == len([end for end in scene.ends if end > found.offset])
    stats = load_stats(scene.process(), KEY)
    assert not stats.messages_exact
    shown = render_stats(stats, EVERYTHING)
    assert shown.packed_offset == render_offset(stats.head.record.packed) > render_offset(0)
