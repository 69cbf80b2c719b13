"""What all jobs share: arguments, help, progress and errors in one line."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.jobs import load_job
from tests.spark.streams import Start
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.job import Job, parse_arguments, watched

ROOT = Path(__file__).parents[2]
JOBS = ("archive", "compact", "ingest", "replay", "snapshot", "stats", "trim")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["archive", "--subscribe", "a", "--out", "x"], "--checkpoint is missing"),
        (["archive", "--subscribe", "a", "--out", "x", "--checkpoint", "y", "--option", "b"], "NAME=VALUE"),
        (
            ["snapshot", "--subscribe", "a", "--fold", "sum", "--no-consumer", "--dry-run", "x"],
            "fold must be",
        ),
        (
            ["snapshot", "--subscribe", "a", "--fold", "json:nope", "--no-consumer", "--dry-run", "x"],
            "cannot be loaded",
        ),
        (
            ["snapshot", "--subscribe", "a", "--fold", "merge-patch", "--no-consumer"],
            "--bucket is missing",
        ),
        (["compact", "--iceberg", "a.b", "--keep-days", "-1"], "--keep-days must not be below 0"),
        (["stats", "--subscribe", "nowhere"], "no such stream in v1: nowhere"),
        (["stats", "--subscribe", "a", "--option", "tabel=x"], "did you mean table?"),
        (
            ["replay", "--archive", "nothing", "--stream", "a", "--to", "b", "--staging", "s", "--id", "i"],
            "PATH_NOT_FOUND",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    start: Start, where: list[str], arguments: list[str], what: str
) -> None:
    code, said, err = start(arguments[0], *where, *arguments[1:])
    assert code in (1, 2)
    assert said == ""
    assert what in err
    assert len(err.splitlines()) == 1


def test_an_argument_that_is_none_is_refused_unless_glue_put_it_there(start: Start) -> None:
    """Glue hands its own arguments to a job, among the job's own."""
    with pytest.raises(SystemExit) as refused:
        start("stats", "--subscribe", "a", "--subscribed", "b")
    assert refused.value.code == 2
    glues = ["--JOB_ID", "j_1", "true", "--TempDir", "s3://t", "--JOB_NAME", "stats"]
    assert parse_arguments(load_job("stats").parser(), ["--subscribe", "a", *glues]).subscribe == "a"


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "--subscribe", "a", "--out", "x", "--checkpoint", "y"],
        ["stats", "--subscribe", "a", "--consumer", "c=y"],
        ["trim", "--archived", "--subscribe", "a", "--iceberg", "a.b", "--consumer", "c=y"],
        ["snapshot", "--bucket", "some", "--subscribe", "a", "--fold", "merge-patch", "--consumer", "c=y"],
    ],
)
def test_over_spark_connect_a_job_that_needs_a_checkpoint_says_so_at_once(
    start: Start, where: list[str], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.spark.job.is_remote", lambda: True)
    code, said, err = start(arguments[0], *where, *arguments[1:])
    assert (code, said, len(err.splitlines())) == (Exit.YOUR_INPUT, "", 1)
    assert "needs Spark's own driver, and Spark Connect has none here: use spark-submit" in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["compact", "--archive", "x", "--to", "y", "--days", "0"], "--days: must be a whole number above 0"),
        (["compact", "--archive", "x", "--to", "y", "--file-bytes", "-1"], "--file-bytes: must be"),
        (
            ["snapshot", "--subscribe", "a", "--fold", "f", "--no-consumer", "--tasks", "0"],
            "--tasks: must be",
        ),
    ],
)
def test_a_number_that_cannot_be_is_named(
    start: Start, capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        start(*arguments)
    assert what in capsys.readouterr().err


def test_how_far_spark_is_is_told_while_it_works(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Spark's own account of it: one of three tasks is done, and two wait for us."""
    may_end = tmp_path / "may-end"

    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        while TaskContext.get().partitionId() and not may_end.exists():
            time.sleep(0.05)
        yield from batches

    frame = spark.range(0, 3, 1, 3).mapInArrow(waits, "id BIGINT")
    working = threading.Thread(target=frame.collect)
    with watched(spark, Job("a-job"), seconds=0.05):
        working.start()
        said, until = "", time.monotonic() + 60
        while "a-job: 1 of 3 tasks of stage" not in said and time.monotonic() < until:
            time.sleep(0.05)
            said += capsys.readouterr().err
        may_end.touch()
        working.join(60)
    assert "a-job: 1 of 3 tasks of stage" in said


def test_what_a_worker_raised_is_told_and_not_that_it_did(spark: Any) -> None:
    """Spark's own first line sends its reader to a stack trace."""

    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield from ()
        raise KeyError("stream-next-offset")

    with pytest.raises(Exception, match="Traceback") as failed:
        spark.range(1).mapInArrow(fails, "id BIGINT").collect()
    assert explain_failure(failed.value) == ("KeyError: 'stream-next-offset'", Exit.FAILED)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_help(name: str) -> None:
    """As a script of its own, the way spark-submit starts it, and without starting Spark."""
    command = [sys.executable, str(ROOT / "pipeline" / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert "spark-submit" in done.stdout


def test_missing_java_is_told_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "pipeline" / "stats.py"), "--subscribe", "a"]
    import os

    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment | {"PATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert (
        done.stderr == "stats: Java is missing: Spark needs Java 17 or newer, on the PATH or at JAVA_HOME\n"
    )
