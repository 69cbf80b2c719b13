"""Writing through Spark: batches, streaming queries, killed tasks, a server that goes away."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.serving import posts_fail
from tests.spark.streams import Streams, started
from tests.support import JSON
from tidemark.spark.source import TidemarkSource, spark_version
from tidemark.spark.writer.publish import NotPublished

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "writing.md"
SCHEMA = StructType([StructField("value", StringType())])
Options = dict[str, str]


@pytest.fixture
def options(streams: Streams, tmp_path: Path) -> Options:
    streams.fill(content_type=JSON)
    where = {"url": streams.server.url, "stream": streams.name, "retrySeconds": "0"}
    return where | {"stagingDir": str(tmp_path / "staging")}


def numbers(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, 4).selectExpr("to_json(struct(id)) as value")


def numbered(count: int) -> list[dict[str, int]]:
    return [{"id": index} for index in range(count)]


def save(frame: Any, options: Options, mode: str = "append") -> None:
    frame.write.format("tidemark").mode(mode).options(**options).save()


def test_a_data_frame_into_a_stream(spark: Any, streams: Streams, options: Options) -> None:
    frame = numbers(spark, 5000)
    save(frame, options)
    assert streams.values() == numbered(5000)
    # A write without an id of its own leaves nothing behind, and the next one is another one.
    assert [path for path in Path(options["stagingDir"]).rglob("*") if path.is_file()] == []
    save(frame.limit(3), options)
    assert len(streams.values()) == 5003
    with pytest.raises(Exception, match="overwrite is refused"):
        save(frame, options, "overwrite")


def test_a_killed_task_is_repeated_and_lands_once(
    spark: Any, streams: Streams, options: Options, tmp_path: Path
) -> None:
    """The worker dies when it has handed on half of its rows, as if it was out of memory."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def dying(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        mark = marks / str(TaskContext.get().partitionId())
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not mark.exists():
                mark.touch()
                os._exit(1)
            yield batch.slice(half)

    save(numbers(spark, 4000).mapInArrow(dying, "value STRING"), options)
    assert len(list(marks.iterdir())) == 4
    assert streams.values() == numbered(4000)


def test_a_write_whose_commit_failed_goes_on_under_its_id(
    streams: Streams, options: Options, spoiling: Callable[..., None]
) -> None:
    """As Spark calls the writer; repeated with the rows in another order."""
    rows = [orjson.dumps(row).decode() for row in numbered(200)]

    def write(values: list[str], **more: str) -> None:
        writer = TidemarkSource(options | more).writer(SCHEMA, False)
        writer.commit([writer.write(iter([pa.record_batch({"value": values})]))])

    spoiling(posts_fail("before", behind=3))
    with pytest.raises(NotPublished) as failed:
        write(rows, bytesPerAppend="300")
    spoiling(lambda *_: None)
    told = re.search(r"Write again with producerId=(write-\w+)", " ".join(failed.value.__notes__))
    assert told is not None
    assert 0 < len(streams.values()) < 200
    write(rows[::-1], producerId=told[1])
    assert streams.values() == numbered(200)


def copy(spark: Any, source: Options, sink: Options, checkpoint: Path, change: Any = None) -> None:
    """One stream into another, exactly once."""
    frame = spark.readStream.format("tidemark").options(**source).load()
    frame = frame if change is None else change(frame)
    writing = frame.select("stream", "value").writeStream.format("tidemark").options(**sink)
    writing = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)

    def run() -> None:
        query = writing.start()
        try:
            assert query.awaitTermination(900)
        finally:
            query.stop()

    started(run)


def backwards(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in list(batches)[::-1]:
        yield batch.take(list(range(batch.num_rows))[::-1])


def test_a_streaming_query_writes_exactly_once(
    spark: Any, streams: Streams, options: Options, spoiling: Callable[..., None], tmp_path: Path
) -> None:
    """Its commits fail half way, with and without having landed; the replays bring the rows in another order,
    in other partitions and in other pieces."""
    streams.fill(suffix="-origin", content_type=JSON)
    source = streams.by_table(subscribe=f"{streams.name}-origin", bytesPerPartition="300")
    sink = options | {"bytesPerAppend": "50"}
    replays: list[Callable[[Any], Any]] = [
        lambda frame: frame.repartition(3),
        lambda frame: (
            frame.select("stream", "value").coalesce(1).mapInArrow(backwards, "stream STRING, value BINARY")
        ),
    ]
    for batch, fault in enumerate(("before", "after")):
        streams.append(orjson.dumps(list(range(batch * 100, batch * 100 + 100))), suffix="-origin")
        spoiling(posts_fail(fault, behind=1))
        with pytest.raises(Exception, match=r"of batch \d: "):
            copy(spark, source, sink, tmp_path / "checkpoint")
        spoiling(lambda *_: None)
        assert len(streams.values()) < (batch + 1) * 100
        copy(spark, source, sink | {"bytesPerAppend": "77"}, tmp_path / "checkpoint", replays[batch])
        assert streams.values() == list(range((batch + 1) * 100))


def test_a_streaming_sink_gets_arrow_batches_and_refuses_complete_output(options: Options) -> None:
    writer = TidemarkSource(options).streamWriter(SCHEMA, False)
    kinds = {kind.__name__ for kind in type(writer).__mro__}
    assert ("DataSourceStreamArrowWriter" in kinds) == (spark_version() >= (4, 1))
    with pytest.raises(Exception, match="overwrite is refused"):
        TidemarkSource(options).streamWriter(SCHEMA, True)


def test_a_foreach_batch_is_written_once_under_its_id_and_number(
    spark: Any, streams: Streams, options: Options, spoiling: Callable[..., None], tmp_path: Path
) -> None:
    """As it is printed. A batch fails before it is published, comes again with other rows, and fails behind
    its publication: what is in the stream is its first attempt, once."""
    printed = re.search(r"```python\n(def write.*?)```", PAGE.read_text(), re.DOTALL)
    assert printed is not None
    names: dict[str, Any] = {"options": options | {"resume": "true"}}
    exec(compile(printed[1], str(PAGE), "exec"), names)
    source, attempts = streams.by_table(subscribe=f"{streams.name}-source"), [0]
    streams.fill(b"0", suffix="-source", content_type=JSON)

    def run(*, fails_behind: bool = False) -> None:
        def write(frame: Any, batch: int) -> None:
            attempts[0] += 1
            rows = frame.selectExpr(f"concat('[', CAST(value AS STRING), ',{attempts[0]}]') AS value")
            names["write"](rows, batch)
            if fails_behind:
                raise RuntimeError("killed")

        stream = spark.readStream.format("tidemark").options(**source).load()
        writing = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started(lambda: writing.start().awaitTermination())

    spoiling(posts_fail("before", behind=0))
    with pytest.raises(Exception, match="append 0 of batch 0"):
        run()
    spoiling(lambda _method, _path, _headers: None)
    with pytest.raises(Exception, match="killed"):
        run(fails_behind=True)
    run()
    streams.append(b"1", suffix="-source")
    run()
    assert streams.values() == [[0, 1], [1, 4]]
