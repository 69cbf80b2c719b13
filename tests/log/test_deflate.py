"""Deflated bodies in the table: fewer bytes where that saves money, and always the same bytes when read."""

import random
import sys
import zlib
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costs.page import json_event, random_bytes
from tests.support import JSON, World, filled
from tidemark.log.pack_format import RAW, fast_zlib
from tidemark.log.read import PAGE_BYTES, read_page
from tidemark.log.schema import log_pk
from tidemark.log.schema.batches import binary, deflate, encode_data, inflate
from tidemark.service.append import INLINE_BYTES
from tidemark.service.load import load_head
from tidemark.service.read import read


@given(st.binary(max_size=300), st.integers(min_value=1, max_value=400))
def test_a_deflated_body_inflates_to_the_same_bytes_by_either_library(piece: bytes, times: int) -> None:
    data = piece * times
    deflated = deflate(data)
    if deflated is not None:
        assert len(deflated) < len(data)
        assert inflate(deflated, len(data)) == zlib.decompress(deflated, RAW) == data
        assert inflate(zlib.compress(data, 1, RAW), len(data)) == data
        for size in (0, len(data) - 1, len(data) + 1):
            with pytest.raises(ValueError, match="inflate"):
                inflate(deflated, size)


@pytest.mark.parametrize("size", [768, 1024, 4096, 4097, 10_240, INLINE_BYTES])
def test_json_is_deflated_to_half_its_size_and_random_bytes_are_not(size: int) -> None:
    deflated = deflate(json_event(size))
    assert deflated is not None
    assert len(deflated) <= size * 0.6
    assert deflate(random_bytes(size)) is None


@pytest.mark.parametrize("size", [0, 1, 300, 767])
def test_a_body_within_a_billed_kilobyte_is_not_deflated(size: int) -> None:
    """It would save nothing: a reader gets it as it was sent, and a writer spends no time."""
    assert encode_data(b"x" * size) == {"b": binary(b"x" * size)}


def test_only_the_beginning_of_an_incompressible_body_is_deflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image or a video costs its writer a test of its beginning, not of all its bytes."""
    compress = Mock(wraps=fast_zlib().compress)
    monkeypatch.setattr(fast_zlib(), "compress", compress)
    assert deflate(random_bytes(INLINE_BYTES)) is None
    assert [len(call.args[0]) for call in compress.mock_calls] == [2048]


def test_a_page_inflates_no_more_than_it_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query's megabyte could hold hundreds of deflated megabytes; a function has 512."""
    (_, key), counted = filled(world, *[bytes(INLINE_BYTES)] * 100), Mock(wraps=inflate)
    monkeypatch.setattr("tidemark.log.schema.batches.inflate", counted)
    reader = world.process()
    record, start, rest = load_head(reader.stores, key).record, 0, 100 * INLINE_BYTES - PAGE_BYTES
    for size, at_tail in ((PAGE_BYTES, False), (rest, True)):
        page = read_page(reader.stores.table, record, start, fill=reader.stores.fill)
        assert (page.data, page.end, page.up_to_date) == (bytes(size), start + size, at_tail)
        assert size <= sum(call.args[1] for call in counted.mock_calls) <= size + INLINE_BYTES
        start = page.end
        counted.reset_mock()


def test_plain_and_deflated_batches_read_as_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any message, by a process that knows none of it, and by one that has not loaded msgspec."""
    chance = random.Random(7)
    sent = [json_event(chance.choice([200, 767, 1000, 5000, 60_000]), number) for number in range(30)]
    process, key = filled(world, *sent, content_type=JSON)
    items, _ = process.stores.table.query(
        log_pk(key, process.create(key, content_type=JSON).head.record.incarnation)
    )
    assert {"b" in item for item in items} == {"z" in item for item in items} == {True, False}
    start = 0
    for index, body in enumerate(sent):
        monkeypatch.setitem(sys.modules, "msgspec", msgspec if index % 2 else None)
        assert read(world.process().stores, key, start).data == b"".join(each + b"," for each in sent[index:])
        start += len(body) + 1
