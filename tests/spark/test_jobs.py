"""What all jobs share: arguments, help, progress and errors in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.jobs import PIPELINE, parser_of
from tests.spark.jobs import Jobs
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.job import parse_arguments

ARCHIVE = ["archive", "--subscribe", "a", "--iceberg", "a.b"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([*ARCHIVE, "--option", "b"], "NAME=VALUE"),
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
