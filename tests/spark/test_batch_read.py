"""The batch read through Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.streams import filled, key, rows
from tests.support import JSON, World
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.append import INLINE_BYTES
from tidemark.spark.source import spark_version

Read = Callable[..., Any]


def test_every_message_is_a_row_with_its_own_offsets(read: Read, world: World, name: str) -> None:
    filled(world, name, b'[{"a":1}, "two"]', b"3", content_type=JSON)
    frame = read(subscribe=name, bytesPerPartition="6")
    assert rows(frame) == [
        (render_offset(0), render_offset(8), b'{"a":1}'),
        (render_offset(8), render_offset(14), b'"two"'),
        (render_offset(14), render_offset(16), b"3"),
    ]
    assert frame.rdd.getNumPartitions() == 3
    first = frame.orderBy("offset").first()
    assert (first.bucket, first.stream, first.content_type) == (PLAIN_BUCKET, name, "application/json")
    assert first.position == 0
    assert first.timestamp.timestamp() == world.clock.now_ms / 1000


def test_bodies_from_the_bucket_are_rows_as_well(read: Read, world: World, name: str) -> None:
    large = bytes(index * 7 % 256 for index in range(INLINE_BYTES + 1))
    filled(world, name, b"<", large, b">")
    assert [value for _, _, value in rows(read(subscribe=name))] == [b"<", large, b">"]


def test_what_comes_after_planning_is_not_read(read: Read, world: World, name: str) -> None:
    filled(world, name, b"one", b"two")
    planned = read(subscribe=name).rdd
    assert planned.getNumPartitions() == 1
    world.process().append(key(name), b"three")
    assert planned.count() == 2
    assert read(subscribe=name).count() == 3


def test_producers_are_named_where_they_are_known(read: Read, world: World, name: str) -> None:
    filled(world, name, b"plain")
    process = world.process()
    process.append(key(name), b"first", claim=("p", 3, 0))
    process.append(key(name), b"plain again")
    process.append(key(name), b"second", claim=("p", 3, 1))
    found = read(subscribe=name).orderBy("offset").collect()
    assert [(row.producer_id, row.producer_epoch, row.producer_seq) for row in found] == [
        (None, None, None),
        ("p", 3, 0),
        (None, None, None),
        ("p", 3, 1),
    ]


def test_streams_by_pattern_and_filters_on_their_names(read: Read, world: World, name: str) -> None:
    for suffix in ("a", "b", "c"):
        filled(world, f"{name}.{suffix}", suffix.encode())
    frame = read(subscribePattern=rf"{name}\.[ab]", bytesPerPartition="1")
    assert {(row.stream, bytes(row.value)) for row in frame.collect()} == {
        (f"{name}.a", b"a"),
        (f"{name}.b", b"b"),
    }
    filtered = frame.where(frame.stream.isin(f"{name}.b", f"{name}.c"))
    assert [row.stream for row in filtered.collect()] == [f"{name}.b"]
    # From 4.1 on the filter decides what is read; before, everything is read and filtered.
    assert filtered.rdd.getNumPartitions() == (1 if spark_version() >= (4, 1) else 2)


FILTERS = [
    "offset = '0000000000000008'",
    "offset = '0000000000000009'",
    "offset > '0000000000000004'",
    "offset >= '0000000000000004' AND offset < '0000000000000016'",
    "offset >= '0000000000000005' AND offset <= '0000000000000012'",
    "offset <= '0000000000000000'",
    "offset < '0000000000000000'",
    "offset > '9999999999999999'",
    "offset > '5'",
    "offset < '00000000000000041'",
    "offset != '0000000000000004'",
    "offset IN ('0000000000000004', '0000000000000016')",
    "end_offset > '0000000000000012'",
    "bucket = 'v1' AND offset >= '0000000000000012'",
    "bucket = 'elsewhere'",
    "bucket IN ('elsewhere', 'v1')",
    "bucket IN ('elsewhere') OR offset = '0000000000000004'",
    "stream = 'another' AND offset >= '0000000000000000'",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_gives_the_rows_that_it_gives_anywhere(
    read: Read, spark: Any, world: World, name: str, condition: str
) -> None:
    """Whether it decides what is read or is evaluated by Spark afterwards; cut in many parts."""
    filled(world, name, b"[1,22,333]", b'"four"', b"[5,66]", content_type=JSON)
    frame = read(subscribe=name, bytesPerPartition="5")
    everything = spark.createDataFrame(frame.collect(), frame.schema)
    assert rows(frame.where(condition)) == rows(everything.where(condition))


def test_filters_on_offsets_and_buckets_decide_what_is_read(read: Read, world: World, name: str) -> None:
    """From 4.1 on: the parts of ten that hold what was asked for, and none of another bucket."""
    filled(world, name, *[b"0123456789"] * 10)
    frame = read(subscribe=name, bytesPerPartition="10")
    some = frame.where("offset >= '0000000000000030' AND offset < '0000000000000050'")
    none = frame.where("bucket = 'elsewhere'")
    pushed = spark_version() >= (4, 1)
    assert (some.rdd.getNumPartitions(), none.rdd.getNumPartitions()) == ((2, 1) if pushed else (10, 10))
    assert (some.count(), none.count()) == (2, 0)


def test_many_small_streams_share_a_task_and_its_batches(read: Read, world: World, name: str) -> None:
    for index in range(60):
        filled(world, f"{name}-{index:02}", f"{index}a".encode(), f"{index}b".encode())
    frame = read(subscribePattern=f"{name}-.*")
    assert frame.rdd.getNumPartitions() == 1
    found = [(row.stream, bytes(row.value)) for row in frame.select("stream", "value").collect()]
    assert found == [
        (f"{name}-{index:02}", f"{index}{part}".encode()) for index in range(60) for part in "ab"
    ]
    # A stream counts for what it takes to open it, however small it is.
    assert read(subscribePattern=f"{name}-.*", bytesPerPartition="1310720").rdd.getNumPartitions() == 6


def test_chosen_columns_are_all_that_is_given(read: Read, spark: Any, world: World, name: str) -> None:
    """By the option, or by a schema: both choose, and the order is theirs."""
    filled(world, name, b"1", b'{"key": "k"}', content_type=JSON)
    expected: list[Any] = [(bytearray(b"1"), render_offset(2), None)]
    expected += [(bytearray(b'{"key": "k"}'), render_offset(15), "k")]
    by_option = read(subscribe=name, columns="value, end_offset,key")
    assert [tuple(row) for row in by_option.orderBy("end_offset").collect()] == expected
    reader = spark.read.format("tidemark").options(table=world.table_name, blobBucket=world.bucket_name)
    by_schema = reader.schema("value BINARY, end_offset STRING, key STRING").load(name)
    assert [tuple(row) for row in by_schema.orderBy("end_offset").collect()] == expected
    assert len({row.incarnation for row in read(subscribe=name).collect()}) == 1
    with pytest.raises(
        Exception, match=r"schema: there is no column value STRING, key BINARY; columns: bucket"
    ):
        reader.schema("value STRING, key BINARY").load(name).count()
    with pytest.raises(Exception, match=r"columns: there is no 'keys'; columns: bucket"):
        read(subscribe=name, columns="value,keys").count()


def test_an_empty_stream_has_no_rows(read: Read, world: World, name: str) -> None:
    filled(world, name)
    assert read(subscribe=name).count() == 0


def test_every_wrong_option_is_named_before_a_task_starts(read: Read, spark: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        read(subscribe="a", subscribePatern="b", maxOffsetsPerTrigger="1", failOnDataLoss="perhaps").count()
    text = str(refused.value)
    for fault in (
        "did you mean subscribePattern?",
        "maxOffsetsPerTrigger is for a streaming",
        "failOnDataLoss: must",
    ):
        assert fault in text


def test_a_read_that_ends_before_it_begins_is_refused(read: Read, world: World, name: str) -> None:
    filled(world, name, b"one", b"two")
    places = {
        "startingOffsets": f'{{"{name}": "0000000000000006"}}',
        "endingOffsets": f'{{"{name}": "0000000000000003"}}',
    }
    with pytest.raises(Exception, match=f"startingOffsets: {name}: 0000000000000006 lies beyond"):
        read(subscribe=name, **places).count()
