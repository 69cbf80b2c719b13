"""Writing through Spark: batches, streaming queries, killed tasks, a server that goes away."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.spark.serving import ThreadedServer, posts_fail
from tests.spark.streams import filled, key, started, table_options
from tests.spark.streams import stored_values as stored
from tests.support import JSON, World
from tidemark.spark.source import spark_version

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "writing.md"


@pytest.fixture
def options(world: World, server: ThreadedServer, name: str, tmp_path: Path) -> dict[str, str]:
    filled(world, name, content_type=JSON)
    return {"url": server.url, "stream": name, "stagingDir": str(tmp_path / "staging"), "retrySeconds": "0"}


def test_a_data_frame_into_a_stream(spark: Any, world: World, name: str, options: dict[str, str]) -> None:
    frame = spark.range(0, 5000, 1, 3).selectExpr("to_json(struct(id)) as value")
    frame.write.format("tidemark").mode("append").options(**options).save()
    assert stored(world, name) == [{"id": index} for index in range(5000)]
    # A write without an id of its own leaves nothing behind, and the next one is another one.
    assert [path for path in Path(options["stagingDir"]).rglob("*") if path.is_file()] == []
    frame.limit(3).write.format("tidemark").mode("append").options(**options).save()
    assert len(stored(world, name)) == 5003


def test_a_killed_task_is_repeated_and_lands_once(
    spark: Any, world: World, name: str, options: dict[str, str], tmp_path: Path
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

    frame = spark.range(0, 4000, 1, 4).selectExpr("to_json(struct(id)) as value")
    frame = frame.mapInArrow(dying, "value STRING")
    frame.write.format("tidemark").mode("append").options(**options).save()
    assert len(list(marks.iterdir())) == 4
    assert stored(world, name) == [{"id": index} for index in range(4000)]


def test_a_write_whose_commit_failed_goes_on_under_its_id(
    spark: Any, world: World, name: str, options: dict[str, str], spoiling: Callable[..., None]
) -> None:
    frame = spark.range(0, 2000, 1, 4).selectExpr("to_json(struct(id)) as value")
    writing = frame.write.format("tidemark").mode("append").options(**options, bytesPerAppend="2000")
    spoiling(posts_fail("after", behind=3))
    with pytest.raises(Exception, match="Write again with producerId=write-") as failed:
        writing.save()
    spoiling(lambda *_: None)
    producer_id = re.search(r"producerId=(write-\w+)", str(failed.value))
    assert producer_id is not None
    landed = len(stored(world, name))
    assert 0 < landed < 2000
    # Repeated differently: the rows in another order and in other partitions.
    again = frame.orderBy(frame.value.desc()).coalesce(1)
    again.write.format("tidemark").mode("append").options(**options, producerId=producer_id[1]).save()
    assert stored(world, name) == [{"id": index} for index in range(2000)]


def test_overwrite_is_refused(spark: Any, world: World, name: str, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match="overwrite is refused"):
        spark.range(1).selectExpr("'1' as value").write.format("tidemark").mode("overwrite").options(
            **options
        ).save()
    assert stored(world, name) == []


def copy(
    spark: Any, source: dict[str, str], sink: dict[str, str], checkpoint: Path, change: Any = None
) -> None:
    """One stream into another, exactly once."""
    frame = spark.readStream.format("tidemark").options(**source).load()
    frame = frame if change is None else change(frame)
    writing = (
        frame.select("stream", "value")
        .writeStream.format("tidemark")
        .options(**sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )

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
    spark: Any,
    world: World,
    name: str,
    options: dict[str, str],
    spoiling: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Its commits fail half way, with and without having landed; the replays bring the rows in
    another order, in other partitions and in other pieces."""
    process = world.process()
    origin = f"{name}-origin"
    process.create(key(origin), content_type=JSON)
    source = table_options(world) | {"subscribe": origin, "bytesPerPartition": "300"}
    sink = options | {"bytesPerAppend": "50"}
    replays = [
        lambda frame: frame.repartition(3),
        lambda frame: (
            frame.select("stream", "value").coalesce(1).mapInArrow(backwards, "stream STRING, value BINARY")
        ),
    ]
    for batch in range(2):
        numbers = list(range(batch * 100, batch * 100 + 100))
        process.append(key(origin), orjson.dumps(numbers), content_type=JSON)
        spoiling(posts_fail(("before", "after")[batch], behind=1))
        with pytest.raises(Exception, match=r"of batch \d: "):
            copy(spark, source, sink, tmp_path / "checkpoint")
        spoiling(lambda *_: None)
        assert len(stored(world, name)) < (batch + 1) * 100
        replay = replays[batch]
        copy(spark, source, sink | {"bytesPerAppend": "77"}, tmp_path / "checkpoint", replay)
        # Nothing new: nothing is written.
        copy(spark, source, sink, tmp_path / "checkpoint")
        assert stored(world, name) == list(range((batch + 1) * 100))


def test_a_new_checkpoint_is_a_new_query(
    spark: Any, world: World, name: str, options: dict[str, str], tmp_path: Path
) -> None:
    """With an id of its own; under a given one it is refused rather than taken for a replay."""
    origin = f"{name}-origin"
    filled(world, origin, b"[1,2,3]", content_type=JSON)
    source = table_options(world) | {"subscribe": origin}
    copy(spark, source, options | {"producerId": name}, tmp_path / "one")
    with pytest.raises(Exception, match="needs a new producerId"):
        copy(spark, source, options | {"producerId": name}, tmp_path / "two")
    copy(spark, source, options, tmp_path / "three")
    assert stored(world, name) == [1, 2, 3, 1, 2, 3]


def test_complete_output_is_refused(
    spark: Any, options: dict[str, str], name: str, world: World, tmp_path: Path
) -> None:
    filled(world, f"{name}-o", b"[1]", content_type=JSON)
    counts = (
        spark.readStream.format("tidemark")
        .options(**table_options(world), subscribe=f"{name}-o")
        .load()
        .groupBy("stream")
        .count()
        .selectExpr("to_json(struct(stream, count)) as value")
    )
    query = (
        counts.writeStream.format("tidemark")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match="overwrite is refused"):
        # A slow machine takes minutes to start the aggregation: a wait that ends first is no refusal.
        started(lambda: query.start().awaitTermination(900))


def test_a_streaming_sink_gets_arrow_batches_where_there_are_any(spark: Any, options: dict[str, str]) -> None:
    from pyspark.sql.types import StringType, StructField, StructType

    from tidemark.spark.source import TidemarkSource

    schema = StructType([StructField("value", StringType())])
    writer = TidemarkSource(options).streamWriter(schema, False)
    kinds = {kind.__name__ for kind in type(writer).__mro__}
    assert ("DataSourceStreamArrowWriter" in kinds) == (spark_version() >= (4, 1))


def test_a_foreach_batch_is_written_once_under_its_id_and_number(
    spark: Any,
    world: World,
    name: str,
    options: dict[str, str],
    spoiling: Callable[..., None],
    tmp_path: Path,
) -> None:
    """As it is printed. A batch fails before it is published, comes again with other rows, and fails behind
    its publication: what is in the stream is its first attempt, once."""
    printed = re.search(r"```python\n(def write.*?)```", PAGE.read_text(), re.DOTALL)
    assert printed is not None
    names: dict[str, Any] = {"options": options | {"resume": "true"}}
    exec(compile(printed[1], str(PAGE), "exec"), names)
    source, attempts = f"{name}-source", [0]
    filled(world, source, content_type=JSON)

    def run(*, fails_behind: bool = False) -> None:
        def write(frame: Any, batch: int) -> None:
            attempts[0] += 1
            rows = frame.selectExpr(f"concat('[', CAST(value AS STRING), ',{attempts[0]}]') AS value")
            names["write"](rows, batch)
            if fails_behind:
                raise RuntimeError("killed")

        stream = spark.readStream.format("tidemark").options(**table_options(world), subscribe=source).load()
        writing = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started(lambda: writing.start().awaitTermination())

    for number in range(4):
        world.process().append(key(source), b"%d" % number, content_type=JSON)
        if number == 1:
            spoiling(posts_fail("before", behind=0))
            with pytest.raises(Exception, match="append 0 of batch 1"):
                run()
            spoiling(lambda _method, _path, _headers: None)
            with pytest.raises(Exception, match="killed"):
                run(fails_behind=True)
        run()
    assert stored(world, name) == [[0, 1], [1, 2], [2, 5], [3, 6]]
