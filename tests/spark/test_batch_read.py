"""The batch read through Spark."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.streams import Row, Streams
from tests.support import JSON
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import PLAIN_BUCKET

Read = Callable[..., Any]


@pytest.fixture
def read(spark: Any, streams: Streams) -> Read:
    """A data frame over the table: of this test's stream, or of those that the options name."""
    return lambda **options: spark.read.format("tidemark").options(**streams.by_table(**options)).load()


def rows(frame: Any) -> list[Row]:
    found = frame.select("offset", "end_offset", "value").collect()
    return sorted((row["offset"], row["end_offset"], bytes(row["value"])) for row in found)


def test_every_message_is_a_row_with_its_own_offsets(read: Read, streams: Streams) -> None:
    streams.fill(b'[{"a":1}, "two"]', b"3", content_type=JSON)
    frame = read(bytesPerPartition="6")
    assert rows(frame) == [
        (render_offset(0), render_offset(8), b'{"a":1}'),
        (render_offset(8), render_offset(14), b'"two"'),
        (render_offset(14), render_offset(16), b"3"),
    ]
    assert frame.rdd.getNumPartitions() == 3
    first = frame.orderBy("offset").first()
    assert (first.bucket, first.stream, first.content_type) == (
        PLAIN_BUCKET,
        streams.name,
        "application/json",
    )
    assert first.position == 0
    assert first.timestamp.timestamp() == streams.world.clock.now_ms / 1000
    streams.fill(suffix="-empty")
    assert read(subscribe=f"{streams.name}-empty").count() == 0


def test_streams_by_pattern_share_tasks_and_are_filtered_by_their_names(read: Read, streams: Streams) -> None:
    for suffix in "abcdef":
        streams.fill(suffix.encode(), b"2", suffix=f".{suffix}")
    frame = read(subscribePattern=rf"{streams.name}\.[a-e]")
    assert frame.rdd.getNumPartitions() == 1
    found = [(row.stream, bytes(row.value)) for row in frame.select("stream", "value").collect()]
    assert found == [(f"{streams.name}.{each}", value) for each in "abcde" for value in (each.encode(), b"2")]
    # A stream counts for what it takes to open it, however small it is.
    spread = read(subscribePattern=rf"{streams.name}\.[a-e]", bytesPerPartition="262144")
    assert spread.rdd.getNumPartitions() == 3
    filtered = spread.where(spread.stream.isin(f"{streams.name}.b", f"{streams.name}.f"))
    assert {row.stream for row in filtered.collect()} == {f"{streams.name}.b"}


def test_chosen_columns_are_all_that_is_given(read: Read, spark: Any, streams: Streams) -> None:
    """By the option, or by a schema: both choose, and the order is theirs."""
    streams.fill(b"1", b'{"key": "k"}', content_type=JSON)
    expected = [(b"1", render_offset(2), None), (b'{"key": "k"}', render_offset(15), "k")]
    given = streams.by_table()
    del given["subscribe"]
    reader = spark.read.format("tidemark").options(**given)
    by_schema = reader.schema("value BINARY, end_offset STRING, key STRING").load(streams.name)
    for frame in (read(columns="value, end_offset,key"), by_schema):
        assert sorted((bytes(value), *more) for value, *more in frame.collect()) == expected
    strange = r"schema: there is no column value STRING, key BINARY; columns: bucket"
    with pytest.raises(Exception, match=strange):
        reader.schema("value STRING, key BINARY").load(streams.name).count()


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC"])
def test_a_time_is_the_same_in_every_zone(read: Read, spark: Any, streams: Streams, zone: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    streams.fill(b"x")
    assert read().selectExpr("unix_millis(timestamp)").first()[0] == streams.world.clock.now_ms


def test_every_wrong_option_is_named_before_a_task_starts(read: Read) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as refused:
        read(subscribePatern="b", maxBytesPerTrigger="1", failOnDataLoss="perhaps", columns="keys").count()
    for fault in (
        "did you mean subscribePattern?",
        "maxBytesPerTrigger is for a streaming",
        "failOnDataLoss: must",
        "columns: there is no 'keys'; columns: bucket",
    ):
        assert fault in str(refused.value)
