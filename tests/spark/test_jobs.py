"""What all jobs share: arguments, help, progress and errors in one line. And `ingest` and `stats`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.infra.jobs import PIPELINE, parser_of
from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams, started
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.job import parse_arguments

ARCHIVE = ["archive", "--subscribe", "a", "--iceberg", "a.b"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["stats", "--subscribe", "nowhere"], "no such stream in v1: nowhere"),
        (["stats", "--subscribe", "a", "--option", "tabel=x"], "did you mean table?"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(jobs: Jobs, arguments: list[str], what: str) -> None:
    code, said, err = jobs.start(arguments[0], *jobs.where, *arguments[1:])
    assert code in (1, 2)
    assert (said, len(err.splitlines())) == ("", 1)
    assert what in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["stats", "--subscribe", "a", "--subscribed", "b"], "unrecognized arguments: --subscribed b"),
        ([*ARCHIVE, "--option", "b"], "argument --option: must look like NAME=VALUE, got 'b'"),
        (ARCHIVE[:3], "the following arguments are required: --iceberg"),
    ],
)
def test_a_bad_argument_is_named(capsys: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(parser_of(arguments[0]), arguments[1:])
    assert what in capsys.readouterr().err


def test_arguments_that_glue_adds_are_passed_over() -> None:
    glues = ["--JOB_ID", "j_1", "true", "--TempDir", "s3://t", "--JOB_NAME", "stats"]
    assert parse_arguments(parser_of("stats"), ["--subscribe", "a", *glues]).subscribe == "a"


@pytest.mark.parametrize("arguments", [ARCHIVE, ["stats", "--subscribe", "a", "--consumer", "c=y"]])
def test_over_spark_connect_a_job_that_needs_the_driver_says_so_at_once(
    jobs: Jobs, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.utils.is_remote", lambda: True)
    code, said, err = jobs.start(arguments[0], *jobs.where, *arguments[1:])
    assert (code, said, len(err.splitlines())) == (Exit.YOUR_INPUT, "", 1)
    assert "needs Spark's own driver, and Spark Connect has none here: use spark-submit" in err


def test_what_a_worker_raised_is_told_and_not_that_it_did(spark: Any) -> None:
    """Spark's own first line sends its reader to a stack trace."""

    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield from ()
        raise KeyError("stream-next-offset")

    with pytest.raises(Exception, match="Traceback") as failed:
        spark.range(1).mapInArrow(fails, "id BIGINT").collect()
    assert explain_failure(failed.value) == ("KeyError: 'stream-next-offset'", Exit.FAILED)


def test_a_job_is_a_script_of_its_own_and_does_not_start_spark_for_its_help(tmp_path: Path) -> None:
    """As spark-submit starts it. Where Java is missing, one line says so."""

    def script(job: str, *arguments: str) -> tuple[int, str, str]:
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
        command = [sys.executable, str(PIPELINE / f"{job}.py"), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment | {"PATH": str(tmp_path)}
        )
        return done.returncode, done.stdout, done.stderr

    for job in ("archive", "ingest", "replay", "stats"):
        code, said, _ = script(job, "--help")
        assert (code, "spark-submit" in said) == (0, True), job
    missing = "stats: Java is missing: Spark needs Java 17 or newer, on the PATH or at JAVA_HOME\n"
    assert script("stats", "--subscribe", "a") == (2, "", missing)


def test_ingest_writes_once_under_its_id(jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path) -> None:
    """And a used id stands neither for other rows nor for another stream. Names of columns may have dots."""
    users = f"concat('{streams.name}-', id % 3) as `user.name`"
    for file, count in (("one", 300), ("two", 400)):
        spark.range(0, count, 1, 1).selectExpr("id as `row.id`", users).write.parquet(str(tmp_path / file))
    ingest = ["ingest", "--url", streams.server.url, "--create", "--staging", str(tmp_path / "staging")]
    by_user = ["--id", streams.name, "--stream-column", "user.name", "--input"]
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert said.startswith("ingest: messages=300 streams=3")
    assert "already" not in said
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert "messages=300 streams=3" in said
    assert "already_complete=true" in said
    told = f"producer id {streams.name} was used for 300 rows to {streams.name}-0 and 2 more streams"
    to_one = ["--id", streams.name, "--stream", streams.name, "--input"]
    for other in ([*by_user, str(tmp_path / "two")], [*to_one, str(tmp_path / "one")]):
        said = jobs.refuse(*ingest, *other)
        assert told in said
        assert "give it an id of its own" in said
    for user in range(3):
        assert streams.values(f"-{user}") == [{"row.id": index} for index in range(user, 300, 3)]


def test_a_csv_is_read_by_sparks_options_and_null_stays(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """Its header names the columns, also with dots; a quoted line break is part of a value."""
    (tmp_path / "in.csv").write_text('a.b,text\n1,"two\nlines"\n2,\n')
    ingest = ["ingest", "--url", streams.server.url, "--staging", str(tmp_path / "s"), "--format", "csv"]
    ingest += ["--input", str(tmp_path / "in.csv"), "--create"]
    ingest += ["--input-option", "header=true", "--input-option", "multiLine=true"]
    jobs.run(*ingest, "--id", f"{streams.name}-1", "--stream", streams.name)
    assert streams.values() == [{"a.b": "1", "text": "two\nlines"}, {"a.b": "2", "text": None}]
    column = ["--value-column", "a.b", "--content-type", "text/plain"]
    jobs.run(*ingest, "--id", f"{streams.name}-2", "--stream", f"{streams.name}-column", *column)
    assert streams.stored("-column") == b"12"


def test_stats_say_how_many_bytes_of_each_stream_a_consumer_and_the_table_do_not_have(
    spark: Any, jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    """Of one that was created again, and of one that is new, they have nothing. A killed archive left a
    file."""
    lake, both = Lake(tmp_path / "lake"), [*jobs.where, "--pattern", f"{streams.name}-."]
    streams.fill(b"four", suffix="-a")
    streams.fill(b"other", suffix="-b")
    jobs.run("archive", *both, *lake.given)
    options = streams.by_table(subscribePattern=f"{streams.name}-.")
    query = spark.readStream.format("tidemark").options(**options).load().writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    started(lambda: query.start().awaitTermination())
    streams.append(b"later", suffix="-a")
    streams.delete("-b")
    streams.fill(b"another", suffix="-b")
    streams.fill(b"new", suffix="-c")
    (lake.directory / "data" / "left.parquet").write_bytes(b"seven..")
    consumer = ["--consumer", f"query={tmp_path / 'c'}", "--out", str(tmp_path / "out")]
    said = [line.split() for line in jobs.run("stats", *both, *lake.given, *consumer).splitlines()]
    assert said[4][1:4] == ["streams=3", "orphan_files=1", "orphan_bytes=7"]
    assert said[:4] == [
        ["stream", "bytes", "lag_query", "lag_lake"],
        [f"{streams.name}-a", "9", "5", "5"],
        [f"{streams.name}-b", "7", "7", "7"],
        [f"{streams.name}-c", "3", "3", "3"],
    ]
    (written,) = (tmp_path / "out").glob("part-*.json")
    first = orjson.loads(written.read_text().splitlines()[0])
    assert first == {"stream": f"{streams.name}-a", "bytes": 9, "lag_query": 5, "lag_lake": 5}
    assert "streams=0" in jobs.run("stats", *jobs.where, "--pattern", f"{streams.name}-none")
