"""The reader of the table, without Spark around it: no message lost, none twice, gaps told."""

from __future__ import annotations

import dataclasses
import tracemalloc
from itertools import pairwise
from random import Random

import msgspec
import orjson
import pyarrow as pa
import pytest

from tests.spark.streams import filled, key, plan_here, read_here, rows_of, table_options
from tests.support import BYTES, JSON, World
from tidemark.blobs import BlobStore, joined_key
from tidemark.log.records import Batch, Checksums
from tidemark.log.schema import decode_batch, encode_batch, encode_lengths, log_pk
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import render_offset
from tidemark.protocol.producer import ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete
from tidemark.service.snapshots import PublishRequest, publish_snapshot
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.readers.columns import BATCH_BYTES, BATCH_ROWS, join_batches
from tidemark.spark.readers.items import (
    BatchItem,
    MessageRun,
    body_of,
    merge_page,
    message_ends,
    pieces_of,
    producers_by_end,
)
from tidemark.spark.readers.port import DataLoss


@pytest.mark.parametrize("part_bytes", [1, 2, 3, 4, 5, 7, 11, 16, 1000])
def test_partitions_lose_and_repeat_no_message_wherever_they_are_cut(
    world: World, name: str, part_bytes: int
) -> None:
    filled(world, name, b'["a","bc","def"]', b"1", b"[2,3]", b'"four"', content_type=JSON)
    found = read_here(table_options(world), subscribe=name, bytesPerPartition=str(part_bytes))
    assert [value for _, _, value in found] == [b'"a"', b'"bc"', b'"def"', b"1", b"2", b"3", b'"four"']
    assert [end for _, end, _ in found[:-1]] == [start for start, _, _ in found[1:]]


def test_a_read_between_any_two_message_ends_is_exact(world: World, name: str) -> None:
    filled(world, name, b'["a","bc"]', b"[1,2]", content_type=JSON)
    every = read_here(table_options(world), subscribe=name)
    edges = [row[0] for row in every] + [every[-1][1]]
    for low in range(len(edges)):
        for high in range(low, len(edges)):
            found = read_here(
                table_options(world),
                subscribe=name,
                startingOffsets=f'{{"{name}": "{edges[low]}"}}',
                endingOffsets=f'{{"{name}": "{edges[high]}"}}',
                bytesPerPartition="3",
            )
            assert found == every[low:high]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("offset", "what"),
    [
        ("0000000000000002", "not the end of a message"),
        ("0000000000000099", "beyond the tail"),
        ("7", "16 digits"),
    ],
)
def test_an_invalid_offset_is_named_when_the_read_is_planned(
    world: World, name: str, option: str, offset: str, what: str
) -> None:
    filled(world, name, b'["a","bc"]', content_type=JSON)
    with pytest.raises(InvalidOptions, match=rf"{option}: {name}: .*{what}"):
        read_here(table_options(world), subscribe=name, **{option: f'{{"{name}": "{offset}"}}'})


def test_a_stream_without_a_given_offset_is_read_from_earliest_to_latest(world: World, name: str) -> None:
    """From their earliest message, or to their tail."""
    filled(world, f"{name}-a", b"one", b"two")
    filled(world, f"{name}-b", b"three", b"four")
    both, middle = f"{name}-a,{name}-b", f'{{"{name}-a": "{render_offset(3)}"}}'
    found = read_here(table_options(world), subscribe=both, endingOffsets=middle)
    assert [value for _, _, value in found] == [b"one", b"three", b"four"]
    found = read_here(table_options(world), subscribe=both, startingOffsets=middle)
    assert [value for _, _, value in found] == [b"two", b"three", b"four"]


def test_invalid_starting_and_ending_offsets_are_named_in_one_error(world: World, name: str) -> None:
    filled(world, name, b"one", b"two")
    places = {
        "startingOffsets": f'{{"{name}": "1"}}',
        "endingOffsets": f'{{"{name}": "{render_offset(99)}"}}',
    }
    with pytest.raises(InvalidOptions) as refused:
        read_here(table_options(world), subscribe=name, **places)
    first, second = refused.value.faults
    assert first.startswith(f"startingOffsets: {name}: '1' is not an offset")
    assert second.startswith(f"endingOffsets: {name}: {render_offset(99)} lies beyond the tail")


def test_an_offset_below_the_retained_one_is_data_loss_or_is_skipped(world: World, name: str) -> None:
    """The table's 410: an offset below what is retained, and `earliest`, which is what is retained."""
    process = world.process()
    create_bucket(process.stores, name)
    where = StreamKey(name, name)
    process.create(where)
    for body in (b"one", b"two", b"three"):
        process.append(where, body)
    publish_snapshot(process.stores, where, PublishRequest(6, BYTES, b"so far"))
    origin = table_options(world) | {"bucket": name}
    assert [row[2] for row in read_here(origin, subscribe=name)] == [b"three"]
    below = {"startingOffsets": f'{{"{name}": "{render_offset(3)}"}}'}
    with pytest.raises(DataLoss, match=f"{render_offset(3)} lies below {render_offset(6)}"):
        read_here(origin, subscribe=name, **below)
    assert [row[2] for row in read_here(origin, subscribe=name, failOnDataLoss="false", **below)] == [
        b"three"
    ]


def test_missing_streams_are_all_named(world: World, name: str) -> None:
    filled(world, name, b"x")
    with pytest.raises(InvalidOptions, match=f"no such stream in v1: {name}-b, {name}-c"):
        read_here(table_options(world), subscribe=f"{name},{name}-b,{name}-c")


def test_a_deleted_stream_is_missing(world: World, name: str) -> None:
    filled(world, name, b"x")
    delete(world.process().stores, key(name))
    with pytest.raises(InvalidOptions, match="no such stream"):
        read_here(table_options(world), subscribe=name)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("part_bytes", ["4", "1000"])
def test_a_missing_batch_is_data_loss_or_is_skipped(
    world: World, name: str, lost: int, part_bytes: str
) -> None:
    """As when DynamoDB's own expiry took it; each task sees it for its own part."""
    filled(world, name, b"abcd", b"ef", b"ghij", b"kl")
    process = world.process()
    record = process.create(key(name)).head.record
    starts = [0, 4, 6, 10]
    origin = table_options(world)
    loud = parse_read_options(origin | {"subscribe": name, "bytesPerPartition": part_bytes}, streaming=False)
    reader, parts = plan_here(loud)
    quiet = [dataclasses.replace(part, fail_on_data_loss=False) for part in parts]
    pk = log_pk(record.key, record.incarnation)
    process.stores.table.delete({"pk": {"S": pk}, "sk": {"S": render_offset(starts[lost])}})
    with pytest.raises(DataLoss, match=f"{name}: {render_offset(starts[lost])}"):
        [rows_of(reader, part) for part in parts]
    kept = [row[2] for part in quiet for row in rows_of(reader, part)]
    assert kept == [body for index, body in enumerate([b"abcd", b"ef", b"ghij", b"kl"]) if index != lost]


def test_a_planned_read_gets_its_messages_after_the_stream_was_deleted(world: World, name: str) -> None:
    filled(world, name, b"abcd", b"ef")
    reader, parts = plan_here(parse_read_options(table_options(world) | {"subscribe": name}, streaming=False))
    delete(world.process().stores, key(name))
    filled(world, name, b"another")
    assert [value for part in parts for _, _, value in rows_of(reader, part)] == [b"abcd", b"ef"]


def test_arrow_batches_are_bounded_in_rows_and_bytes(world: World, name: str) -> None:
    """Whatever the stream's size, a task holds a page and a batch."""
    small = b"[" + b",".join([b"1"] * 3 * BATCH_ROWS) + b"]"
    large = bytes(INLINE_BYTES + 1)
    filled(world, name, *[small] * 2, content_type=JSON)
    filled(world, f"{name}-l", *[large] * 100)
    for stream, rows in ((name, 6 * BATCH_ROWS), (f"{name}-l", 100)):
        options = parse_read_options(table_options(world) | {"subscribe": stream}, streaming=False)
        reader, (part,) = plan_here(options)
        batches = list(reader.read(part))
        assert sum(batch.num_rows for batch in batches) == rows
        # An item is taken whole: of tiny messages it may hold more than a batch's rows.
        assert max(batch.num_rows for batch in batches) <= max(BATCH_ROWS, 3 * BATCH_ROWS)
        values = [batch.column("value").nbytes for batch in batches]
        assert max(values) <= BATCH_BYTES + len(large) + 8 * BATCH_ROWS


@pytest.mark.parametrize("seed", range(20))
def test_small_batches_are_joined_and_large_ones_handed_on(seed: int) -> None:
    chance = Random(seed)
    batches, number = [], 0
    for _ in range(chance.randrange(30)):
        rows = chance.choice((1, 10, BATCH_ROWS // 4 - 1, BATCH_ROWS // 4, BATCH_ROWS))
        batches.append(pa.record_batch({"n": range(number, number + rows)}))
        number += rows
    joined = list(join_batches(batches))
    assert [n for batch in joined for n in batch.column("n").to_pylist()] == list(range(number))
    assert all(batch.num_rows < BATCH_ROWS * 5 // 4 for batch in joined)
    assert all(first.num_rows + second.num_rows >= BATCH_ROWS // 4 for first, second in pairwise(joined))


def test_memory_does_not_grow_with_the_stream(world: World, name: str) -> None:
    process = world.process()
    process.create(key(name))
    peaks = []
    for _ in range(2):
        for _ in range(40):
            process.append(key(name), bytes(INLINE_BYTES * 10))
        options = parse_read_options(table_options(world) | {"subscribe": name}, streaming=False)
        reader, parts = plan_here(dataclasses.replace(options, bytes_per_partition=10**9))
        tracemalloc.start()
        for part in parts:
            for _batch in reader.read(part):
                pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], "twice the stream, the same memory"


def decoded(batch: Batch) -> BatchItem:
    return msgspec.json.decode(orjson.dumps(encode_batch("log/v1/a#i", batch)), type=BatchItem, strict=False)


def test_the_bulk_decoder_and_the_schema_decode_the_same_batches() -> None:
    """The bulk decoder and the full one agree on every kind of item."""
    recent = (ProducerState("old", 1, 4, 90), ProducerState("new", 2, 0, 107))
    batches = [
        Batch(100, Tail(107, producers=recent), "id", 1, b"abcdefg", lengths=(3, 4)),
        Batch(100, Tail(107), "id", 1, b"abcdefg", lengths=(7,)),
        Batch(100, Tail(2100), "id", 1, b"deflated " * 222 + b"..", lengths=(2000,)),
        Batch(100, Tail(100, closed=True), "id", 1),
        Batch(100, Tail(400_000), "id", 1, None, "blob", lengths=(399_900,)),
        Batch(100, Tail(100, closed=True), "id", 1, tombstone=True, behind_closing=True),
    ]
    for batch in batches:
        known = decode_batch(encode_batch("log/v1/a#i", batch))
        item = decoded(batch)
        assert (item.start, item.end, item.t.N) == (known.start, known.end, known.time_ms)
        assert (item.data or None) == (known.data or None)
        assert (item.s.S if item.s else None) == known.blob
        ends = message_ends(item)
        assert [end - start for start, end in zip([known.start, *ends], ends, strict=False)] == list(
            known.lengths
        )
    assert {end: each.producer_id for end, each in producers_by_end(decoded(batches[0])).items()} == {
        107: "new"
    }
    many = tuple(ProducerState(f"writer-{number}", 0, 0, number) for number in range(108))
    crowded = decoded(Batch(100, Tail(107, producers=many), "id", 1, b"abcdefg", lengths=(7,)))
    assert crowded.p is not None
    assert crowded.p.B, "of many producers the item has them deflated"
    assert sorted(producers_by_end(crowded)) == [101, 102, 103, 104, 105, 106, 107]
    assert encode_lengths([1]) == b"\x01"


@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("body", [b"1234567", b"deflated " * 222])
def test_bytes_that_do_not_fit_their_checksum_are_damaged(body: bytes, many: int) -> None:
    """Also where many batches are taken together."""
    size = len(body)
    starts = range(0, many * size, size)
    batches = [
        Batch(at, Tail(at + size), "id", 1, body, lengths=(size,), checksums=Checksums.of(None, at, body))
        for at in starts
    ]
    items = [decoded(batch) for batch in batches]
    merged = list(merge_page(items, 0, many * size))
    assert isinstance(merged[0], MessageRun) == (many > 1)
    items[-1] = decoded(dataclasses.replace(batches[-1], data=bytes(reversed(body))))
    blobs = BlobStore.__new__(BlobStore)  # No body lies there.

    def read() -> None:
        for item in merge_page(items, 0, many * size):
            if isinstance(item, BatchItem):
                list(pieces_of(item, blobs, 0, many * size))

    with pytest.raises(Damaged):
        read()


@pytest.mark.parametrize("part_bytes", ["1", "3", "1000"])
def test_a_fork_is_read_through_its_lineage(world: World, name: str, part_bytes: str) -> None:
    """From the first source, from the middle of a message of the second, and its own."""
    filled(world, f"{name}-first", b"ab", b"cd", b"never")
    process = world.process()
    second, third = key(f"{name}-second"), key(name)
    process.fork(second, key(f"{name}-first"), 4)
    process.append(second, b"efxxx")
    process.fork(third, second, 4, sub=2)
    process.append(third, b"gh")
    delete(process.stores, second)
    found = read_here(table_options(world), subscribe=name, bytesPerPartition=part_bytes)
    assert [value for _, _, value in found] == [b"ab", b"cd", b"ef", b"gh"]
    assert [end for _, end, _ in found] == [render_offset(end) for end in (2, 4, 6, 8)]


def test_a_fork_without_data_of_its_own(world: World, name: str) -> None:
    filled(world, f"{name}-source", b"ab", b"cd")
    world.process().fork(key(name), key(f"{name}-source"), 2)
    expected = [(render_offset(0), render_offset(2), b"ab")]
    assert read_here(table_options(world), subscribe=name) == expected


def test_a_batch_of_several_objects_is_read_in_order() -> None:
    """As a crowd with large appends writes it."""
    blob = joined_key([("log/i/one", 3), ("log/i/two", 5)])
    item = decoded(Batch(100, Tail(108), "id", 1, None, blob, lengths=(3, 5)))
    blobs = BlobStore.__new__(BlobStore)
    there = {("log/i/one", 3): b"abc", ("log/i/two", 5): b"defgh"}
    blobs.get = lambda *part: there[part]  # type: ignore[method-assign]
    assert body_of(item, blobs) == b"abcdefgh"
