"""Staging on a file system that only Hadoop's Java opens: what `write_frame` and the jobs promise there.

The file system is viewfs over a directory of this machine, or what HADOOP_DIR names (see `hadoop_dir`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark import hadoop_driver
from tests.spark.serving import ThreadedServer, is_append, posts_fail
from tests.spark.streams import filled, key, started, stored_values, table_options
from tests.support import JSON, World
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.write import parse_write_options
from tidemark.spark.staging.hadoop import HadoopStaging, StagingFault, open_staging
from tidemark.spark.staging.manifest import ReusedId
from tidemark.spark.writer.frames import SparkFiles, write_frame
from tidemark.spark.writer.writers import make_write

ROOT = Path(__file__).parents[2]
Start = Callable[..., tuple[int, str, str]]


@pytest.fixture
def options(world: World, server: ThreadedServer, name: str, hadoop_dir: str) -> dict[str, str]:
    filled(world, name, content_type=JSON)
    return {
        "url": server.url,
        "stream": name,
        "stagingDir": hadoop_dir,
        # A colon is allowed in an id, and not in a name of HDFS.
        "producerId": f"{name}:load",
        "bytesPerAppend": "2000",
        "retrySeconds": "0",
    }


@pytest.fixture
def staging(spark: Any, hadoop_dir: str) -> HadoopStaging:
    return HadoopStaging(spark, hadoop_dir)


def numbers(spark: Any, count: int = 900, tasks: int = 2) -> Any:
    return spark.range(0, count, 1, tasks).selectExpr("to_json(struct(id)) AS value")


def names_in(spark: Any, directory: str) -> set[str]:
    path = spark._jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    found = files.listFiles(path, True)
    names = set()
    while found.hasNext():
        names.add(found.next().getPath().toString().removeprefix(f"{directory}/"))
    return names


def test_of_two_notes_of_one_name_the_first_stays(staging: HadoopStaging) -> None:
    assert staging.get("a:b/m") is None
    assert staging.put_first("a:b/m", b"one") == b"one"
    assert staging.put_first("a:b/m", b"two") == b"one"
    assert staging.get("a:b/m") == b"one"
    assert staging.older_than("nothing", -60) == []
    assert staging.older_than("a:b", 60) == []
    assert "a:b/m" in staging.older_than("a:b", -60)
    staging.delete(["a:b/m", "never/was"])
    assert staging.get("a:b/m") is None


def test_a_killed_driver_is_followed_by_another_exactly_once(
    spark: Any,
    world: World,
    name: str,
    server: ThreadedServer,
    spoiling: Callable[..., None],
    hadoop_dir: str,
    tmp_path: Path,
) -> None:
    """kill -9 of a driver, of which one write stages, one has its manifest, and one is half way through its
    appends; then each again with its rows in another order, in other partitions and other appends."""
    marks, posts = tmp_path / "marks", [0]
    marks.mkdir()

    def stops(method: str, path: str, headers: dict[str, str]) -> str | None:
        if not is_append(method, headers) or not path.endswith(f"{name}-publish"):
            return None
        posts[0] += 1
        if posts[0] <= 5:
            return None
        (marks / "publish").touch()
        return "before"

    spoiling(stops)
    given = {}
    for point in ("stage", "settle", "publish"):
        filled(world, f"{name}-{point}", content_type=JSON)
        given[point] = {
            "url": server.url,
            "stream": f"{name}-{point}",
            "stagingDir": hadoop_dir,
            "producerId": f"{name}-{point}",
            "bytesPerAppend": "500",
            "retrySeconds": "600",
        }
    link = f"fs.viewfs.mounttable.{name}.link./lake"
    leads = spark.sparkContext._jsc.hadoopConfiguration().get(link)
    arguments = [str(marks), json.dumps(given), json.dumps({link: leads} if leads else {})]
    driver = subprocess.Popen(
        [sys.executable, hadoop_driver.__file__, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MASTER": "local[3]"},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 900
    while len(list(marks.iterdir())) < 3 and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    code = driver.poll()
    # Python and the JVM, which is of its group.
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert (sorted(mark.name for mark in marks.iterdir()), code) == (["publish", "settle", "stage"], None)
    spoiling(lambda *_: None)
    landed = {point: len(stored_values(world, f"{name}-{point}")) for point in given}
    assert (landed["stage"], landed["settle"], 0 < landed["publish"] < 900) == (0, 0, True)
    for point, options in given.items():
        # What has its manifest is published as it was first.
        again = numbers(spark) if point == "stage" else numbers(spark).orderBy("value").repartition(3)
        settled = write_frame(again, options | {"bytesPerAppend": "333", "retrySeconds": "0"})
        assert settled.rows == 900
        assert stored_values(world, f"{name}-{point}") == [{"id": index} for index in range(900)], point


def test_of_two_drivers_that_settle_at_once_the_first_one_wins(
    spark: Any,
    world: World,
    name: str,
    options: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have looked and found no manifest. The one that is second publishes what the first one staged."""
    put_first, dies = HadoopStaging.put_first, [True]

    def overtaken(staging: HadoopStaging, note: str, data: bytes) -> bytes:
        if dies[0]:
            dies[0] = False
            with monkeypatch.context() as inner:
                inner.setattr(SparkFiles, "publish", lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    write_frame(numbers(spark).orderBy("value"), options)
        return put_first(staging, note, data)

    monkeypatch.setattr(HadoopStaging, "put_first", overtaken)
    write_frame(numbers(spark, tasks=3), options)
    by_text = sorted(({"id": index} for index in range(900)), key=lambda row: str(row["id"]) + "}")
    assert stored_values(world, name) == by_text


def test_what_is_left_is_the_notes_and_what_is_used_again_is_refused(
    spark: Any, name: str, options: dict[str, str], world: World
) -> None:
    for _ in range(2):
        write_frame(numbers(spark, tasks=3), options)
    with pytest.raises(ReusedId, match="was used for 900 rows"):
        write_frame(numbers(spark, 5), options)
    filled(world, f"{name}-2", content_type=JSON)
    with pytest.raises(ReusedId, match=f"to {name}-2"):
        write_frame(numbers(spark), options | {"stream": f"{name}-2"})
    assert len(stored_values(world, name)) == 900
    producer = options["producerId"].replace(":", "%3A")
    notes = {f"{producer}/{kind}/{0:016d}" for kind in ("done", "manifest")}
    assert names_in(spark, options["stagingDir"]) == notes


def test_an_incomplete_write_is_completed_with_resume_though_its_rows_are_others_now(
    spark: Any, world: World, name: str, options: dict[str, str], spoiling: Callable[..., None]
) -> None:
    spoiling(posts_fail("after", behind=3))
    with pytest.raises(Exception, match="append 0 of batch 0") as failed:
        write_frame(numbers(spark), options)
    assert explain_failure(failed.value)[0].startswith(f"{name}, append ")
    spoiling(lambda *_: None)
    with pytest.raises(ReusedId, match="resume=true"):
        write_frame(numbers(spark, 5), options)
    assert write_frame(numbers(spark, 5), options | {"resume": "true"}).rows == 900
    assert stored_values(world, name) == [{"id": index} for index in range(900)]


def test_an_invalid_row_is_named_and_nothing_is_appended(
    spark: Any, world: World, name: str, options: dict[str, str]
) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("IF(id = 7, '{', '1') AS value")
    with pytest.raises(Exception, match="not JSON") as failed:
        write_frame(frame, options)
    line, code = explain_failure(failed.value)
    assert (line.startswith("row 2 of partition 1: not JSON"), code) == (True, Exit.YOUR_INPUT), line
    assert stored_values(world, name) == []
    assert names_in(spark, options["stagingDir"]) == set()
    # Nor does it stand in the way of the rows that are right.
    write_frame(frame.where("value = '1'"), options)
    assert stored_values(world, name) == [1] * 9


def test_staged_data_that_is_gone_is_an_error_and_no_gap(
    spark: Any, name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    """Of two streams; one of two files of the data set is removed, then both."""
    filled(world, f"{name}-2", content_type=JSON)
    two = options | {"streamColumn": "stream", "contentType": "application/json"}
    del two["stream"]
    frame = numbers(spark, tasks=2).selectExpr(
        f"IF(value < '{{\"id\":5', '{name}', '{name}-2') stream", "value"
    )
    publish = SparkFiles.publish

    def publish_less(files: Any, publisher: Any, publications: Any) -> None:
        directory = files._staging.path(publications[0].runs[0].file)
        part = min(part for part in names_in(spark, directory) if part.endswith(".parquet"))
        path = spark._jvm.org.apache.hadoop.fs.Path(f"{directory}/{part}")
        path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).delete(path, False)
        publish(files, publisher, publications)

    monkeypatch.setattr(SparkFiles, "publish", publish_less)
    for what in ("bytes were staged, and", "nothing is in"):
        with pytest.raises(Exception, match=what):
            write_frame(frame, two)
    assert len(stored_values(world, name)) + len(stored_values(world, f"{name}-2")) < 900


def test_a_task_whose_output_is_there_twice_is_an_error(
    spark: Any, options: dict[str, str], name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a committer leaves it that keeps the files of failed attempts."""
    read = SparkFiles._read
    monkeypatch.setattr(
        SparkFiles, "_read", lambda files, *paths: read(files, *paths).union(read(files, *paths))
    )
    with pytest.raises(StagingFault, match="output of every task once"):
        write_frame(numbers(spark), options)
    assert stored_values(world, name) == []


@pytest.mark.skipif("HADOOP_DIR" in os.environ, reason="the age of a file is set on this machine's disk")
def test_leftovers_of_a_day_ago_are_removed_and_newer_ones_stay(
    spark: Any, options: dict[str, str], tmp_path: Path
) -> None:
    staged = tmp_path / "behind-viewfs" / "staged" / options["producerId"].replace(":", "%3A")
    for kind in ("old", "new"):
        part = staged / kind / "_temporary" / "0" / "part-0"
        part.parent.mkdir(parents=True)
        part.touch()
        os.utime(part, (0, 0) if kind == "old" else None)
        # The time of a directory says nothing: object stores have none.
        os.utime(staged / kind, (0, 0))
    (staged / "just-begun").mkdir()
    os.utime(staged / "just-begun", (0, 0))
    (staged / "of-no-file").mkdir()
    os.utime(staged / "of-no-file", (9, 9))
    write_frame(numbers(spark), options)
    assert sorted(path.name for path in staged.iterdir()) == ["just-begun", "new"]


@pytest.mark.skipif("HADOOP_DIR" in os.environ, reason="pyarrow reads the files on this machine's disk")
def test_spark_holds_little_of_staged_data_however_well_it_compresses(
    spark: Any, options: dict[str, str], staging: HadoopStaging, tmp_path: Path
) -> None:
    """It reads a row group as a whole. Compressed, one of a few megabytes had been hundreds in memory."""
    frame = spark.range(0, 40_000, 1, 1).selectExpr("concat('\"', repeat('x', 1000), '\"') AS value")
    parsed = parse_write_options(options)
    SparkFiles(spark, parsed, staging).stage(make_write(parsed, frame.schema, staging), frame)
    (part,) = (tmp_path / "behind-viewfs").rglob("part-*.parquet")
    held = pq.ParquetFile(part).metadata
    sizes = [held.row_group(index).total_byte_size for index in range(held.num_row_groups)]
    assert (max(sizes) < 24 * 1024 * 1024, sum(sizes) > 40_000_000) == (True, True), sizes


def test_an_empty_data_frame_writes_nothing_and_leaves_nothing(
    spark: Any, options: dict[str, str], world: World, name: str
) -> None:
    assert write_frame(spark.createDataFrame([], "value STRING"), options).rows == 0
    assert write_frame(numbers(spark).where("value = ''"), options).rows == 0
    assert stored_values(world, name) == []
    assert {part for part in names_in(spark, options["stagingDir"]) if part.startswith("staged/")} == set()


def test_the_data_source_refuses_such_a_directory_and_names_what_takes_it(
    spark: Any, options: dict[str, str], tmp_path: Path
) -> None:
    said = r"stagingDir \w+://.*out of reach; use tidemark.spark.writer.frames.write_frame, in foreachBatch"
    with pytest.raises(Exception, match=said):
        numbers(spark).write.format("tidemark").mode("append").options(**options).save()
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    writing = stream.writeStream.format("tidemark").options(**options)
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=said):
        started(lambda: writing.start().awaitTermination(900))


def test_over_spark_connect_such_a_directory_is_refused(options: dict[str, str]) -> None:
    class ConnectSession:
        """It has no `_jvm`: PySpark raises an AttributeError of its own."""

    with pytest.raises(InvalidOptions, match=r"stagingDir \w+://.*: over Spark Connect"):
        open_staging(ConnectSession(), parse_write_options(options))


def test_a_foreach_batch_is_written_once(
    spark: Any, world: World, name: str, options: dict[str, str], tmp_path: Path
) -> None:
    """Each batch twice: what is in the stream is its first attempt."""
    attempts = [0]
    filled(world, f"{name}-source", b"[1,2,3]", content_type=JSON)

    def write(frame: Any, batch: int) -> None:
        for _ in range(2):
            attempts[0] += 1
            rows = frame.selectExpr(f"concat('[', CAST(value AS STRING), ',{attempts[0]}]') AS value")
            write_frame(rows, options | {"resume": "true"}, batch=batch)

    stream = spark.readStream.format("tidemark").options(**table_options(world), subscribe=f"{name}-source")
    writing = stream.load().writeStream.foreachBatch(write).trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    started(lambda: writing.start().awaitTermination(900))
    assert (stored_values(world, name), attempts) == ([[1, 1], [2, 1], [3, 1]], [2])


def test_ingest_and_replay_stage_there(
    start: Start, where: list[str], spark: Any, world: World, name: str, hadoop_dir: str, tmp_path: Path
) -> None:
    spark.range(0, 300, 1, 2).write.parquet(str(tmp_path / "events"))
    staging = ["--staging", hadoop_dir]
    ingest = ["ingest", *where, "--input", str(tmp_path / "events"), "--stream", f"{name}-a", "--create"]
    for already in (False, True):
        code, said, err = start(*ingest, *staging, "--id", f"{name}-a")
        assert (code, "messages=300" in said, "already_complete=true" in said) == (0, True, already), err
    archive = ["--out", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "checkpoint")]
    assert start("archive", *where, "--subscribe", f"{name}-a", *archive)[0] == 0
    replay = ["replay", *where, "--archive", str(tmp_path / "archive"), "--stream", f"{name}-a"]
    for _ in range(2):
        code, _, err = start(*replay, "--to", f"{name}-b", *staging, "--id", f"{name}-b")
        assert code == 0, err
    process = world.process()
    assert process.read_all(key(f"{name}-b")) == process.read_all(key(f"{name}-a"))
    assert {row["id"] for row in stored_values(world, f"{name}-b")} == set(range(300))


def test_a_file_system_that_hadoop_does_not_know_is_named(
    start: Start, where: list[str], spark: Any, name: str, tmp_path: Path
) -> None:
    spark.range(1).write.parquet(str(tmp_path / "events"))
    ingest = ["ingest", *where, "--input", str(tmp_path / "events"), "--stream", name, "--create"]
    code, _, err = start(*ingest, "--staging", "nowhere://lake/staging", "--id", name)
    assert (code, "stagingDir nowhere://lake/staging" in err) == (Exit.YOUR_INPUT, True), err
    assert 'scheme "nowhere"' in err or "nowhere" in err.splitlines()[-1]
