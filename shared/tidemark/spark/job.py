"""What all jobs share: arguments, the Spark session, progress messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidemark.spark.options.connection import CONNECTION_OPTIONS
from tidemark.spark.options.given import InvalidOptions

#: How often a job that runs long says how far it is.
TELL_SECONDS: Final = 15.0
#: The last line of a trace of Python's, `KeyError: 'x'`; Java's begin with the package.
_RAISED: Final = re.compile(
    r"(?!java|scala|org\.)[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Fault|Warning)\b(?::|$)"
)


class JobFailed(Exception):
    """The job cannot go on; the message is one line for whoever started it."""


class Job:
    """One run of a job: progress messages on standard error, a summary at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name}: {text}\n")
        sys.stderr.flush()

    def finish(self, **summary: object) -> None:
        """The last line, on standard output, for people and for scripts."""
        took = time.monotonic() - self._started
        words = " ".join(f"{name}={value}" for name, value in summary.items())
        sys.stdout.write(f"{self.name}: {words} seconds={took:.1f}\n")
        sys.stdout.flush()


def parser_for(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = parser.add_argument_group("where the streams are")
    where.add_argument(
        "--transport", choices=("dynamodb", "http"), help="default: http with --url, else dynamodb"
    )
    where.add_argument("--url", help="root of an HTTP server, such as https://streams.example.com")
    where.add_argument("--bucket", help="bucket of the streams (default: the plain surface, v1)")
    where.add_argument("--table", help="DynamoDB table (default: TABLE_NAME, or tidemark)")
    where.add_argument(
        "--blob-bucket", help="S3 bucket of large bodies (default: BUCKET_NAME, or tidemark-blobs)"
    )
    where.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"any other option of the data source ({', '.join(CONNECTION_OPTIONS)}, …)",
    )
    return parser


def add_subscription(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--subscribe", help="names with commas between, or a JSON array")
    which.add_argument("--pattern", help="a regular expression that whole names match")


def parse_consumer(text: str) -> tuple[str, str]:
    """A streaming query as `--consumer` names it: NAME=CHECKPOINT. Raises JobFailed."""
    name, equals, checkpoint = text.partition("=")
    if not (name and equals and checkpoint):
        raise JobFailed(f"--consumer must look like NAME=CHECKPOINT, got {text!r}")
    return name, checkpoint


def taken_by(spark: Any, checkpoint: str) -> Any:
    """By stream, the position up to which this checkpoint's query has read. Raises JobFailed."""
    from tidemark.spark.queries.checkpoints import NoCheckpoint, taken_positions

    try:
        return taken_positions(spark, checkpoint)
    except NoCheckpoint as fault:
        raise JobFailed(str(fault)) from fault


def connection_options(given: argparse.Namespace) -> dict[str, str]:
    named = {
        "transport": given.transport,
        "url": given.url,
        "bucket": given.bucket,
        "table": given.table,
        "blobBucket": given.blob_bucket,
    }
    options = {name: value for name, value in named.items() if value}
    for text in given.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise JobFailed(f"--option must look like NAME=VALUE, got {text!r}")
        options[name] = value
    return options


def read_options(given: argparse.Namespace) -> dict[str, str]:
    options = connection_options(given)
    if given.subscribe:
        return options | {"subscribe": given.subscribe}
    return options | {"subscribePattern": given.pattern}


def find_java() -> None:
    """Raises JobFailed. Without this check Spark fails with a stack trace."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise JobFailed("Java is missing: Spark needs Java 17 or newer, on the PATH or at JAVA_HOME")


def open_session(name: str) -> Any:
    """The session of the JVM that submitted the job, or a local one on loopback."""
    # Where a JVM started this, `spark-submit`, EMR or Glue has set master, memory and all else.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted:
        find_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from tidemark.spark import register

    builder = SparkSession.builder.appName(f"tidemark-{name}").config("spark.sql.session.timeZone", "UTC")
    if not is_submitted:
        builder = (
            builder.master(os.environ.get("MASTER", "local[2]"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "4")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def run(
    name: str, parser: argparse.ArgumentParser, body: Callable[[Any, argparse.Namespace, Job], None]
) -> None:
    """Run a job. A successful one returns without an exit call, because Glue takes any exit for a failure."""
    code = run_with(name, parser, body, sys.argv[1:])
    if code:
        sys.exit(code)


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The job's arguments. Glue adds arguments of its own, `--JOB_NAME` among them: those are ignored."""
    given, rest = parser.parse_known_args(arguments)
    if rest and "--JOB_NAME" not in arguments:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return given


def run_with(
    name: str,
    parser: argparse.ArgumentParser,
    body: Callable[[Any, argparse.Namespace, Job], None],
    arguments: Sequence[str],
) -> int:
    """The exit code: 0, 1 if the job failed, 2 if its arguments or surroundings were wrong."""
    given = parse_arguments(parser, arguments)
    job = Job(name)
    try:
        spark = open_session(name)
        with watched(spark, job):
            body(spark, given, job)
    except (InvalidOptions, JobFailed) as fault:
        job.say(str(fault))
        return 2
    except Exception as fault:  # noqa: BLE001 - whatever Spark wraps, its first line says what it was
        job.say(first_line(fault))
        return 1
    return 0


@contextlib.contextmanager
def watched(spark: Any, job: Job, seconds: float = TELL_SECONDS) -> Iterator[None]:
    """Report Spark's progress every `seconds`."""
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def tell() -> None:
        while not ended.wait(seconds):
            for line in stages_of(tracker):
                job.say(line)

    teller = threading.Thread(target=tell, name="tidemark-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def stages_of(tracker: Any) -> list[str]:
    stages = [tracker.getStageInfo(stage) for stage in sorted(tracker.getActiveStageIds())]
    return [
        f"{stage.numCompletedTasks} of {stage.numTasks} tasks of stage {stage.stageId} are done"
        for stage in stages
        if stage is not None
    ]


def first_line(fault: Exception) -> str:
    """The line of an error that says what is wrong. Spark's own message holds stack traces in two
    languages; an error of this package is one line, and so is the last error that Python raised."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    ours = [line for line in lines if "tidemark: " in line and not line.startswith("File ")]
    if ours:
        return ours[0][ours[0].index("tidemark: ") + len("tidemark: ") :]
    pythons = [line for line in lines if _RAISED.match(line)]
    if pythons:
        return pythons[-1]
    return lines[0] if lines else type(fault).__name__
