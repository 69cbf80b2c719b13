"""Shared by all jobs: arguments, the Spark session, progress messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.options import CONNECTION_OPTIONS
from tidemark.spark.options.write import parse_write_options
from tidemark.spark.staging import connect_staging
from tidemark.spark.writer.manifest import Manifest, StagedBatches

#: Clears the line on a terminal, where Spark draws its progress bar.
_CLEAR_LINE: Final = "\r\x1b[K"
#: The logging of a local session: by default Spark begins with four lines of warnings.
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
#: Default size of an archive's batch.
_BATCH_BYTES: Final = 16 * 1024**3


class JobFailed(Exception):
    """The job cannot go on; the message is one line for the user."""


class Job:
    """One run of a job: progress messages on standard error, a summary at the end."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The exit code when the job has finished.
        self.code = Exit.DONE
        self._started = time.monotonic()

    def report(self, text: str) -> None:
        clear = _CLEAR_LINE if sys.stderr.isatty() else ""
        sys.stderr.write(f"{clear}{self.name}: {text}\n")
        sys.stderr.flush()

    def finish(self, **summary: object) -> None:
        """Write the summary to standard output, for people and scripts."""
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
    where = parser.add_argument_group("location of the streams")
    where.add_argument("--transport", choices=("dynamodb", "http"), help="http with --url, else dynamodb")
    where.add_argument("--url", help="root of an HTTP server, such as https://streams.example.com")
    where.add_argument("--bucket", help="bucket of the streams (default: the plain surface, v1)")
    where.add_argument("--table", help="DynamoDB table (default: TABLE_NAME, or tidemark)")
    bodies = "bucket of bodies in S3 (default: BUCKET_NAME, or tidemark-blobs)"
    where.add_argument("--blob-bucket", dest="blobBucket", metavar="BLOB_BUCKET", help=bodies)
    where.add_argument(
        "--option",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help=f"any other option of the data source ({', '.join(CONNECTION_OPTIONS)}, …)",
    )
    return parser


def above_zero(text: str) -> int:
    """Parse an argument that is a whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def add_subscription(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--subscribe", help="names separated by commas, or a JSON array")
    pattern = "a regular expression that whole names match"
    which.add_argument("--pattern", dest="subscribePattern", metavar="PATTERN", help=pattern)


def named_value(text: str) -> tuple[str, str]:
    """Parse an argument NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"must look like NAME=VALUE, got {text!r}")
    return name, value


def require_driver(what: str) -> None:
    """Raise JobFailed over Spark Connect, which has no JVM of Spark's driver in this process. `what` begins
    the error text."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise JobFailed(f"{what} needs Spark's own driver, and Spark Connect has none here: use spark-submit")


def source_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source that the arguments name."""
    names = (*CONNECTION_OPTIONS, "subscribe", "subscribePattern")
    found = {name: value for name, value in vars(given).items() if value and name in names}
    return found | dict(given.option)


def add_write(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--staging",
        required=True,
        help="a directory that the driver and all tasks share, or s3://bucket/prefix",
    )
    parser.add_argument("--id", required=True, help="id of this write; a complete write is not repeated")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="publish rows that an earlier run staged under this id, even if the input has changed",
    )


def add_lake(parser: argparse.ArgumentParser, *, required: bool) -> None:
    lake = parser.add_argument_group("the archive's Iceberg table")
    lake.add_argument("--iceberg", metavar="NAMESPACE.TABLE", required=required, help="the table")
    lake.add_argument("--catalog", default="default", help="its catalog, as in pyiceberg's configuration")
    lake.add_argument(
        "--catalog-property",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="property of the catalog: type=glue; or type=sql, uri=sqlite:///lake.db and warehouse=file:///lake",
    )


def open_lake(given: argparse.Namespace) -> Any:
    """Return the table of `--iceberg`. Raises JobFailed."""
    from tidemark.spark.lake import LakeTable

    if "." not in given.iceberg:
        raise JobFailed(f"--iceberg must look like NAMESPACE.TABLE, got {given.iceberg!r}")
    return LakeTable(given.catalog, dict(given.catalog_property), given.iceberg)


def archive_parser(description: str) -> argparse.ArgumentParser:
    made = parser_for("archive", description)
    add_subscription(made)
    add_lake(made, required=True)
    made.add_argument(
        "--batch-bytes",
        type=above_zero,
        default=_BATCH_BYTES,
        help=f"limit of a batch: a failed run continues after its last batch (default: {_BATCH_BYTES})",
    )
    made.add_argument("--every", type=float, metavar="SECONDS", help="repeat with this interval")
    return made


def run_archive(given: argparse.Namespace, job: Job, write_packs: Callable[..., Any]) -> None:
    """Run the archive, once or every `--every` seconds; for `write_packs` see `archive.Archive`. Raises
    JobFailed and the archive's exceptions."""
    from tidemark.spark.archive import Archive

    every: float | None = given.every
    if every is not None and every <= 0:
        raise JobFailed(f"--every must be a number of seconds above 0, got {every:g}")
    archive = Archive(source_options(given), open_lake(given), given.batch_bytes, write_packs, job.report)
    with until_stopped() if every else contextlib.nullcontext(threading.Event()) as stopped:
        pause = 0.0
        while not stopped.wait(pause):
            began = time.monotonic()
            archive.take_what_came()
            if every is None:
                break
            pause = max(0.0, began + every - time.monotonic())
    job.finish(
        messages=archive.messages,
        batches=archive.batches,
        out=given.iceberg,
        streams_with_loss=len(archive.lost),
        lost_bytes=archive.lost.total(),
    )
    if archive.lost:
        job.code = Exit.DATA_LOST


def archive_here(arguments: Sequence[str]) -> int:
    """Run the archive in this process, without Spark. Returns the exit code."""
    parser = archive_parser(
        "Archive messages of streams into an Iceberg table, each message exactly once despite kills.\n"
        "The catalog is any of pyiceberg's. For more data: pipeline/archive.py, on Spark.\n\n"
        "Example: tidemark archive --pattern 'orders/.*' --iceberg lake.orders"
    )
    parser.prog = "tidemark archive"
    return run_with(
        "archive", parser, lambda _, given, job: run_archive(given, job, map), arguments, by_spark=False
    )


def write_once(rows: Any, given: argparse.Namespace, job: Job, **options: str) -> dict[str, object]:
    """Write the rows under the job's id. Returns the fields of the summary, for the batch that the first run
    under this id staged. Spark's exceptions pass through."""
    own = source_options(given) | options
    own |= {"stagingDir": given.staging, "producerId": given.id, "resume": str(given.resume).lower()}
    batches = StagedBatches(connect_staging(parse_write_options(own)), given.id)
    was_complete = batches.is_done(0)
    rows.write.format("tidemark").mode("append").options(**own).save()
    settled = batches.load(0) or Manifest("", ())
    if was_complete:
        job.report(f"{given.id} was already complete: nothing was written now")
    told = {"already_complete": "true"} if was_complete else {}
    return {"messages": settled.rows, "streams": len(settled.by_stream()), "id": given.id} | told


def find_java() -> None:
    """Raise JobFailed if Java is missing. Without this check Spark fails with a stack trace."""
    home = os.environ.get("JAVA_HOME")
    if not (home and (Path(home) / "bin" / "java").exists()) and shutil.which("java") is None:
        raise JobFailed("Java is missing: Spark needs Java 17 or newer, on the PATH or at JAVA_HOME")


def open_session(name: str) -> Any:
    """Return the session of the JVM that submitted the job, of the Spark Connect server at `SPARK_REMOTE`, or
    a local session on loopback."""
    # If a JVM started this process, `spark-submit`, EMR or Glue has configured the session.
    is_set = "PYSPARK_GATEWAY_PORT" in os.environ or "SPARK_REMOTE" in os.environ
    if not is_set:
        find_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    from tidemark.spark import register

    builder = SparkSession.builder.appName(f"tidemark-{name}").config("spark.sql.session.timeZone", "UTC")
    if not is_set:
        builder = (
            builder.master(os.environ.get("MASTER", "local[2]"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        )
    # These loggers repeat exceptions, which the job reports in one line.
    for each in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(each).setLevel(logging.CRITICAL)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as fault:
        if "JAVA_GATEWAY_EXITED" not in str(fault):
            raise
        why = "Spark's Java process ended as it started: Spark needs Java 17 or newer; see its output above"
        raise JobFailed(why) from fault
    if not is_remote():
        spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def run(
    name: str, parser: argparse.ArgumentParser, body: Callable[[Any, argparse.Namespace, Job], None]
) -> None:
    """Run a job. Calls exit only after a failure, because Glue counts any exit as a failure."""
    code = run_with(name, parser, body, sys.argv[1:])
    if code:
        sys.exit(code)


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the job's arguments. On Glue, which adds `--JOB_NAME` and others, unknown arguments are
    ignored."""
    given, rest = parser.parse_known_args(arguments)
    if rest and "--JOB_NAME" not in arguments:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return given


def run_with(
    name: str,
    parser: argparse.ArgumentParser,
    body: Callable[[Any, argparse.Namespace, Job], None],
    arguments: Sequence[str],
    *,
    by_spark: bool = True,
) -> int:
    """Run a job. Returns its exit code (`failures.py`). A failed job's last line is the error message."""
    given = parse_arguments(parser, arguments)
    job = Job(name)
    try:
        body(open_session(name) if by_spark else None, given, job)
    except Exception as fault:  # noqa: BLE001 - every failure is reported in one line
        line, code = explain_failure(fault)
        job.report(line)
        return code
    return job.code


@contextlib.contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """Return an event that SIGTERM or Ctrl-C sets, so that a continuous job ends after its current round."""
    stopped = threading.Event()
    asked = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: stopped.set()) for each in asked]
    try:
        yield stopped
    finally:
        for each, handler in zip(asked, before, strict=True):
            signal.signal(each, handler)
