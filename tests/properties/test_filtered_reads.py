"""A filtered read, page by page, is the whole read without the other messages, at every page size."""

import json
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.janitor.scene import FORK, KEY, STAGES, Scene, a_scene_at
from tests.janitor.test_compacted_forks import a_scene as a_compacted_scene
from tests.support import HOUR_MS, JSON
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.where import MessageFilter, parse_filter
from tidemark.service.read import read_record, select
from tidemark.service.retention import trim_below

KINDS = [*STAGES, "compacted", "trimmed", "forked"]


@cache
def a_stream(kind: str) -> tuple[Scene, StreamKey]:
    if kind == "compacted":
        scene = a_compacted_scene()
        scene.sweep_after(HOUR_MS)
        assert scene.record().compacted
        return scene, KEY
    scene = a_scene_at(kind if kind in STAGES else "half removed", content_type=JSON)
    offset = scene.ends[len(scene.ends) // 2 + 1]
    assert kind != "trimmed" or trim_below(scene.process(), KEY, offset)
    if kind == "forked":
        scene.fork(offset)
    return scene, FORK if kind == "forked" else KEY


def read_by_pages(kind: str, limit_bytes: int, where: MessageFilter | None) -> Iterator[tuple[int, bytes]]:
    """The messages, and where each ends."""
    scene, key = a_stream(kind)
    stores, record, is_at_tail = scene.process(), scene.record(key), False
    start = record.retained
    while not is_at_tail:
        reading = read_record(stores, record, start, limit_bytes)
        page = reading.page if where is None else select(reading, where).page
        assert (page.start, page.end, page.up_to_date) == (start, reading.page.end, reading.page.up_to_date)
        at = -page.skip
        for batch in page.batches:
            for length, end in zip(batch.lengths, batch.each_message_end(), strict=True):
                at += length
                if end > start:
                    yield end, page.data[at - length : at]
        start, is_at_tail = page.end, page.up_to_date


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), limit_bytes=st.integers(1, 400))
def test_a_filtered_read_is_the_whole_read_filtered(kind: str, data: st.DataObject, limit_bytes: int) -> None:
    whole = list(read_by_pages(kind, 10**6, None))
    bodies = [json.loads(message[:-1]) for _, message in whole]
    wanted = data.draw(st.lists(st.sampled_from(bodies), max_size=4), label="wanted")
    where = parse_filter([f":in:{json.dumps(wanted)}"])
    expected = [each for each, body in zip(whole, bodies, strict=True) if body in wanted]
    assert list(read_by_pages(kind, limit_bytes, where)) == expected
