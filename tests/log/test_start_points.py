"""Start points and stats of packed streams are those of streams that are not packed."""

from __future__ import annotations

import pytest

from tests.log.test_packs import KEY, SMALL, Scene
from tests.support import JSON
from tidemark.http import catalog as shown_catalog
from tidemark.log.records import StreamRecord
from tidemark.protocol.authorization import EVERYTHING
from tidemark.protocol.offset import render_offset
from tidemark.service import catalog, start_point
from tidemark.service.catalog import load_stats
from tidemark.service.load import load_head
from tidemark.service.start_point import LastMessages, WrittenFrom, find_start


@pytest.fixture(autouse=True)
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short streams have many tiny packs here; real streams have few."""
    monkeypatch.setattr(start_point, "MAX_QUERIES", 10_000)
    monkeypatch.setattr(catalog, "_COUNTING_CALLS", 10_000)


def a_scene(*, packed: bool, half_removed: bool = False) -> Scene:
    scene = Scene(content_type=JSON)
    for _ in range(40):
        scene.append(1)
        scene.world.advance(1000)
    if packed:
        before = scene.items()
        assert scene.pack()
        if half_removed:
            # Some of what the packs replace is there again, as while it is being removed.
            starts = {item["sk"]["S"] for item in scene.items()}
            replaced = [item for item in before if item["sk"]["S"] not in starts]
            for item in replaced[::2]:
                scene.stores.table.put(item)
    return scene


@pytest.mark.parametrize("half_removed", [False, True])
def test_the_start_point_of_the_last_messages_is_found_in_a_packed_stream(half_removed: bool) -> None:
    scene = a_scene(packed=True, half_removed=half_removed)
    for last in range(1, len(scene.ends)):
        found = find_start(scene.process(), KEY, LastMessages(last))
        assert (found.offset, found.messages, found.complete) == (scene.ends[-1 - last], last, True)


@pytest.mark.parametrize("half_removed", [False, True])
def test_stats_count_the_messages_of_a_packed_stream(half_removed: bool) -> None:
    scene = a_scene(packed=True, half_removed=half_removed)
    found = load_stats(scene.process(), KEY)
    assert (found.messages, found.messages_exact) == (len(scene.ends) - 1, True)
    shown = shown_catalog.render_stats(found, EVERYTHING)
    assert shown.packed_offset == render_offset(found.head.record.packed) > render_offset(0)


@pytest.mark.parametrize("half_removed", [False, True])
def test_the_start_point_of_a_time_in_a_packed_stream_misses_no_message(half_removed: bool) -> None:
    """It is the beginning of a block."""
    plain = a_scene(packed=False)
    packed = a_scene(packed=True, half_removed=half_removed)
    assert plain.data == packed.data
    record: StreamRecord = load_head(plain.stores, KEY).record
    for at_ms in range(record.created_ms - 1000, record.created_ms + 42_000, 500):
        exact = find_start(plain.process(), KEY, WrittenFrom(at_ms)).offset
        found = find_start(packed.process(), KEY, WrittenFrom(at_ms)).offset
        assert exact - SMALL.block_bytes * 2 <= found <= exact
        assert found in packed.ends


def test_counting_stops_before_it_reads_a_whole_packed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_point, "MAX_QUERIES", 3)
    monkeypatch.setattr(catalog, "_COUNTING_CALLS", 3)
    scene = a_scene(packed=True)
    found = find_start(scene.process(), KEY, LastMessages(100))
    assert not found.complete
    assert found.messages == len([end for end in scene.ends if end > found.offset])
    assert not load_stats(scene.process(), KEY).messages_exact
