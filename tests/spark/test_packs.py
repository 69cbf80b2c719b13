"""The reader of the table over packs: the same rows as of the batches that they have replaced."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.spark.streams import key, plan_here, read_here, table_options
from tests.support import BYTES, JSON, World
from tidemark.janitor.sweep import sweep
from tidemark.log.schema import encode_lengths
from tidemark.protocol.pack import Packing
from tidemark.service.append import INLINE_BYTES
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.readers import dynamodb
from tidemark.spark.readers.items import (
    RUN_BYTES,
    BatchItem,
    Binary,
    MessageRun,
    Number,
    Text,
    decode_all_lengths,
    merge_page,
)

SMALL = Packing(0, every_bytes=1, pack_bytes=150, min_batches=2, block_bytes=40)


def fill(world: World, name: str) -> None:
    process = world.process()
    process.stores.packing = SMALL
    process.create(key(name), content_type=JSON)
    for number in range(30):
        process.append(key(name), b'["%d",%d]' % (number, number), content_type=JSON)
        world.clock.advance(1000)


def pack(world: World) -> None:
    process = world.process()
    process.stores.packing = SMALL
    assert sweep(process.stores).packed


def all_rows(world: World, name: str, **options: str) -> list[dict[str, Any]]:
    parsed = parse_read_options(table_options(world) | {"subscribe": name} | options, streaming=False)
    reader, parts = plan_here(parsed)
    read = [batch for part in parts for batch in reader.read(part, parsed.columns)]
    return [row for batch in read for row in batch.to_pylist()]


def test_rows_of_packs_are_those_of_the_batches(world: World, name: str) -> None:
    fill(world, name)
    before = all_rows(world, name)
    pack(world)
    assert all_rows(world, name) == before
    assert len({row["timestamp"] for row in before}) == 30


def test_rows_of_packs_without_a_separator_and_with_many_messages_an_append(world: World, name: str) -> None:
    """Bytes have no comma behind them, and batches of one message and of several lie in one block."""
    process = world.process()
    process.stores.packing = SMALL
    for stream, content_type in ((name, BYTES), (f"{name}-json", JSON)):
        process.create(key(stream), content_type=content_type)
        for number in range(30):
            members = b",".join(b"%d" % (10**each) for each in range(number % 3 + 1))
            process.append(key(stream), b"[%s]" % members, content_type=content_type)
            world.clock.advance(1000)
    before = all_rows(world, name), all_rows(world, f"{name}-json")
    pack(world)
    assert (all_rows(world, name), all_rows(world, f"{name}-json")) == before
    assert [len(rows) for rows in before] == [30, 60]


@pytest.mark.parametrize(
    "columns", ["offset", "end_offset,timestamp", "value,producer_id", "type,key", "bucket"]
)
def test_chosen_columns_of_packs_are_those_of_the_batches(world: World, name: str, columns: str) -> None:
    process = world.process()
    process.stores.packing = SMALL
    process.create(key(name), content_type=JSON)
    for number in range(30):
        change = b'{"type":"t%d","key":"k%d","value":{}}' % (number % 2, number)
        process.append(key(name), change, content_type=JSON)
    before = all_rows(world, name, columns=columns)
    pack(world)
    assert all_rows(world, name, columns=columns) == before
    assert len(before) == 30
    assert before[0].keys() == set(columns.split(","))


@pytest.mark.parametrize("part_bytes", [1, 3, 17, 64, 1000])
def test_partitions_inside_packs_lose_and_repeat_nothing(world: World, name: str, part_bytes: int) -> None:
    fill(world, name)
    before = read_here(table_options(world), subscribe=name)
    pack(world)
    assert read_here(table_options(world), subscribe=name, bytesPerPartition=str(part_bytes)) == before


def test_offsets_inside_packs_are_checked(world: World, name: str) -> None:
    fill(world, name)
    before = read_here(table_options(world), subscribe=name)
    pack(world)
    for number, (offset, _, _) in enumerate(before):
        starting = f'{{"{name}": "{offset}"}}'
        assert read_here(table_options(world), subscribe=name, startingOffsets=starting) == before[number:]
    between = f'{{"{name}": "{int(before[7][0]) + 1:016d}"}}'
    with pytest.raises(InvalidOptions, match="not the end of a message"):
        read_here(table_options(world), subscribe=name, startingOffsets=between)


def test_a_limit_inside_a_pack_ends_where_a_block_ends(world: World, name: str) -> None:
    fill(world, name)
    pack(world)
    reader, _ = plan_here(parse_read_options(table_options(world) | {"subscribe": name}, streaming=False))
    head = reader.head(name)
    place = reader.limit(name, head.earliest, head.tail, 60)
    assert 20 <= int(place.offset) <= 60


def test_batches_of_one_message_are_read_together_and_are_the_same_rows(world: World, name: str) -> None:
    """In every partition, before and behind packs, with the times and the offsets that each has by itself."""
    process = world.process()
    process.stores.packing = SMALL
    process.create(key(name), content_type=JSON)
    expected: list[dict[str, Any]] = []
    for number in range(40):
        body = b'{"n":%d}' % number
        begin = expected[-1]["end_offset"] if expected else f"{0:016}"
        process.append(key(name), body, content_type=JSON)
        end = f"{int(begin) + len(body) + 1:016}"
        expected.append({"offset": begin, "end_offset": end, "value": body, "ms": world.clock.now_ms})
        world.clock.advance(1000)
        if number == 24:
            pack(world)
    rows = all_rows(world, name)
    assert [
        {name: row[name] for name in ("offset", "end_offset", "value")} | {"ms": epoch_ms(row["timestamp"])}
        for row in rows
    ] == expected
    for part_bytes in (1, 7, 33, 100):
        found = read_here(table_options(world), subscribe=name, bytesPerPartition=str(part_bytes))
        assert found == [(row["offset"], row["end_offset"], row["value"]) for row in expected]


def epoch_ms(instant: Any) -> int:
    return round(instant.timestamp() * 1000)


def single(start: int, end: int, **more: Any) -> BatchItem:
    data = {"b": Binary(b"x" * (end - start))}
    return BatchItem(Text(f"{start:016}"), Number(end), Number(5), **data | more)


PLAIN = [single(start, start + 4) for start in range(0, 24, 4)]
TWO_EACH = [single(start, start + 4, m=Binary(b"\x01\x03")) for start in range(24, 48, 4)]
CLOSED = single(24, 24, b=None)
LARGE = single(24, 30, b=None, s=Text("x"))


@pytest.mark.parametrize(
    ("page", "reached", "high", "merged"),
    [
        ([], 0, 99, []),
        (PLAIN, 0, 99, [(0, 24)]),
        (PLAIN, 2, 99, [PLAIN[0], (4, 24)]),
        (PLAIN, 4, 99, [PLAIN[0], (4, 24)]),
        (PLAIN, 5, 99, PLAIN),
        (PLAIN[1:], 2, 99, PLAIN[1:]),
        ([*PLAIN[:5], single(22, 30), single(30, 31)], 0, 99, [(0, 20), single(22, 30), single(30, 31)]),
        ([*PLAIN[:5], single(18, 30), single(30, 31)], 0, 99, [(0, 20), single(18, 30), single(30, 31)]),
        (PLAIN, 0, 20, [(0, 20), PLAIN[5]]),
        (PLAIN, 0, 17, [(0, 20), PLAIN[5]]),
        (PLAIN + TWO_EACH, 0, 99, [(0, 24), (24, 48)]),
        (PLAIN[:3], 0, 99, PLAIN[:3]),
        ([*PLAIN, CLOSED], 0, 99, [(0, 24), CLOSED]),
        (
            [*PLAIN, single(24, 30, b=None, s=Text("x"))],
            0,
            99,
            [(0, 24), single(24, 30, b=None, s=Text("x"))],
        ),
        ([*PLAIN[:5], single(20, 24, b=Binary(b"x"))], 0, 99, [*PLAIN[:5], single(20, 24, b=Binary(b"x"))]),
        ([single(n, n + 4, m=Binary(b"\x05")) for n in range(0, 16, 4)], 0, 99, None),
    ],
    ids=[
        "empty",
        "whole",
        "begins inside the first",
        "begins behind the first",
        "begins inside the second",
        "gap before",
        "gap",
        "overlap",
        "ends between two",
        "ends inside one",
        "several messages",
        "few",
        "mark of closing",
        "blob",
        "bytes that are too few",
        "lengths that do not add up",
    ],
)
def test_items_are_a_run_only_where_they_may_be(
    page: list[BatchItem], reached: int, high: int, merged: list[Any] | None
) -> None:
    found = [
        (each.start, each.end) if isinstance(each, MessageRun) else each
        for each in merge_page(page, reached, high)
    ]
    assert found == (page if merged is None else merged)


def test_a_run_has_a_bounded_number_of_bytes() -> None:
    size = RUN_BYTES // 8
    page = [single(start, start + size) for start in range(0, 64 * size, size)]
    sizes = [each.end - each.start for each in merge_page(page, 0, 64 * size)]
    assert sizes == [RUN_BYTES] * 8


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_runs_are_those_of_items_one_by_one(
    world: World, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items with one message and with several, deflated, in S3 and with producers, cut into partitions."""
    chance, process = Random(seed), world.process()
    content_type, first, has_blobs = (JSON, BYTES)[seed % 2], 0 if seed >= 4 else 30, seed in (0, 3)
    process.create(key(name), content_type=content_type)
    for number in range(40):
        body = b'"%s"' % (b"x" * chance.choice((1, 5, 1000)))
        if has_blobs and number % 13 == 7:
            body = b'"%s"' % chance.randbytes(INLINE_BYTES).hex().encode()
        if number // 10 % 2:
            body = b"[%s]" % b",".join([body] * chance.randrange(1, 4))
        claim = ("writer", 0, number - first) if number >= first else None
        process.append(key(name), body, content_type=content_type, claim=claim)
        world.clock.advance(1000)
    sizes = (10**9, 500_000) if has_blobs else (10**9, 5000, 300)
    runs = [all_rows(world, name, bytesPerPartition=str(size)) for size in sizes]
    monkeypatch.setattr(dynamodb, "merge_page", lambda items, _reached, _high: items)
    one_by_one = all_rows(world, name)
    assert all(rows == one_by_one for rows in runs)
    assert "writer" in {row["producer_id"] for row in one_by_one}


@pytest.mark.parametrize("seed", range(20))
def test_columns_of_lengths_decoded_together_are_those_decoded_one_by_one(seed: int) -> None:
    chance = Random(seed)
    edges = (0, 1, 127, 128, 16383, 16384, 2**21, 2**40)
    columns = [
        [max(0, chance.choice(edges) - chance.randrange(3)) for _ in range(chance.randrange(1, 30))]
        for _ in range(chance.randrange(1, 30))
    ]
    lengths, counts = decode_all_lengths([encode_lengths(column) for column in columns])
    assert lengths.tolist() == [length for column in columns for length in column]
    assert counts.tolist() == [len(column) for column in columns]


@pytest.mark.parametrize("packed", [False, True])
def test_a_read_between_two_times_has_what_was_written_between_them(
    world: World, name: str, *, packed: bool
) -> None:
    """Each append has its own second, two messages and, in packs, a block that it shares with others."""
    began = world.clock.now_ms
    fill(world, name)
    before = read_here(table_options(world), subscribe=name)
    if packed:
        pack(world)
    for first, last in ((-5, 99), (0, 30), (1, 2), (7, 7), (13, 29), (29, 30), (30, 40)):
        found = read_here(
            table_options(world),
            subscribe=name,
            startingTimestamp=str(began + 1000 * first),
            endingTimestamp=str(began + 1000 * last),
        )
        assert found == before[2 * max(first, 0) : 2 * last], (first, last)
    later = f'{{"{name}": {began + 28_001}}}'
    assert read_here(table_options(world), subscribe=name, startingOffsetsByTimestamp=later) == before[58:]


@pytest.mark.parametrize("packed", [False, True])
def test_a_limit_of_messages_ends_where_a_batch_or_a_block_does(
    world: World, name: str, *, packed: bool
) -> None:
    fill(world, name)
    if packed:
        pack(world)
    options = parse_read_options(table_options(world) | {"subscribe": name}, streaming=False)
    reader, _ = plan_here(options)
    head = reader.head(name)
    place, counts = head.earliest, []
    while place != head.tail:
        end = reader.limit_messages(name, place, head.tail, 10)
        starting, ending = (f'{{"{name}": "{each.offset}"}}' for each in (place, end))
        found = read_here(
            table_options(world), subscribe=name, startingOffsets=starting, endingOffsets=ending
        )
        counts.append(len(found))
        place = end
    assert sum(counts) == 60
    # The first block is taken whatever it holds: here are some of twelve messages.
    assert all(6 <= count <= (12 if packed else 10) for count in counts[:-1]), counts
    assert reader.limit_messages(name, head.earliest, head.tail, 1) != head.earliest
