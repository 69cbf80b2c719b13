"""Archive streams as Parquet, by bucket and date.

Incremental: a run takes what has come since the last one with the same --checkpoint, ends when
it has read what was there at its beginning, and may be repeated or killed at any time: no
message is missing from the archive or twice in it. Read the archive with Spark, which leaves
out the files of a run that did not end. With --option failOnDataLoss=false a run goes on where
messages are gone: then it says how much of which stream it could not archive, and exits with 5.

With --every 60 the job goes on: it takes what has come every minute, until SIGTERM or Ctrl-C stops it.

With --iceberg the archive is an Iceberg table in place of a directory: any engine reads it, and nobody sees
a run that did not end. Its catalog is pyiceberg's: Glue, REST, or SQL on a laptop.

    spark-submit pipeline/archive.py --pattern '.*' --out s3a://lake/streams --checkpoint s3a://lake/_archive
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from tidemark.spark.failures import Exit, repeat_slow_start
from tidemark.spark.gaps import find_losses, losses_beside_compaction
from tidemark.spark.job import (
    Job,
    JobFailed,
    above_zero,
    add_lake,
    add_subscription,
    open_lake,
    parser_for,
    read_options,
    require_driver,
    run,
    until_stopped,
)
from tidemark.spark.options.read import columns_of, parse_read_options
from tidemark.spark.progress import (
    NoCheckpoint,
    Progress,
    file_sink_fits,
    last_planned,
    pending_batch,
    query_id,
    taken_by_all,
    taken_progress,
)
from tidemark.spark.queries import load_heads
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Head, NoTimes, is_past

NAME = "archive"
LOOK_SECONDS = 1
#: How long a query is started again that Spark did not wait for.
START_SECONDS = 300
#: What a task reads, and about what goes into a file, before compression.
FILE_BYTES = 256 * 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024 * 1024
#: Options of the data source that the job sets itself.
OWN_OPTIONS = {
    "columns": "an archive has its own",
    "maxbytespertrigger": "--batch-bytes says how large a batch is",
}
#: The columns that tell what is missing.
ROWS = "stream STRING, incarnation STRING, offset STRING, end_offset STRING, position INT"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    made.add_argument("--out", help="directory of the archive, as Parquet by bucket and date")
    add_lake(made)
    made.add_argument(
        "--batch-bytes",
        type=above_zero,
        default=BATCH_BYTES,
        help=f"of a batch, at most: a run that failed goes on behind its last batch ({BATCH_BYTES})",
    )
    made.add_argument("--every", type=float, metavar="SECONDS", help="go on, and look for more so often")
    made.add_argument("--checkpoint", help="where the progress is kept; one for each archive")
    return made


class Archived:
    """What a run has taken so far; of `lost` see `find_losses`."""

    def __init__(self) -> None:
        self.messages = 0
        self.batches = 0
        self.lost: dict[str, int | None] = {}


def archive(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if bool(given.out) == bool(given.iceberg):
        raise JobFailed("give either --out or --iceberg")
    require_driver("archive keeps a checkpoint: it")
    if not given.checkpoint:
        raise JobFailed("--checkpoint is missing: without it every run would begin at the beginning")
    if given.every is not None and given.every <= 0:
        raise JobFailed(f"--every must be a number of seconds above 0, got {given.every:g}")
    if given.out and given.out.rstrip("/") == given.checkpoint.rstrip("/"):
        raise JobFailed("--out and --checkpoint must be two directories")
    found, streams = Archived(), SubscribedStreams(given)
    require_own_checkpoint(spark, given, streams)
    if given.every is None:
        take_what_came(spark, given, job, found, streams)
    else:
        with until_stopped() as stopped:
            while not stopped.is_set():
                began = time.monotonic()
                take_what_came(spark, given, job, found, streams)
                stopped.wait(max(0.0, began + given.every - time.monotonic()))
    job.finish(
        messages=found.messages,
        batches=found.batches,
        out=given.out or given.iceberg,
        streams_with_loss=len(found.lost),
        lost_bytes=sum(size or 0 for size in found.lost.values()),
    )
    if found.lost:
        job.code = Exit.DATA_LOST


class SubscribedStreams:
    """What there is to archive, asked for by one reader: it asks less for streams that it knows. Raises
    InvalidOptions, and JobFailed."""

    def __init__(self, given: argparse.Namespace) -> None:
        options = {"bytesPerPartition": str(FILE_BYTES)} | read_options(given)
        for name, why in OWN_OPTIONS.items():
            if name in map(str.lower, options):
                raise JobFailed(f"--option {name} is not for archives: {why}")
        self._given = options
        self._options = parse_read_options(options, streaming=True)
        self._reader = connect(self._options.connection)
        self.bucket = self._options.connection.bucket
        self.may_lose = not self._options.fail_on_data_loss

    def heads(self) -> dict[str, Head]:
        """As they are now, by name."""
        return load_heads(self._options, self._reader)

    def source_options(self, heads: dict[str, Head], job: Job) -> dict[str, str]:
        """Those of the source. Over HTTP it asks for event time, unless the user has decided that: the
        archive is parted by it, and it cannot be asked for later. Where a server has none it goes without."""
        if "includetimestamps" not in map(str.lower, self._given):
            self._given |= {"includeTimestamps": "true"}
            try:
                for head in list(heads.values())[:1]:
                    self._reader.check_times(head)
            except NoTimes as fault:
                job.say(f"{fault}: messages are archived without their time, under the day of this run")
                self._given |= {"includeTimestamps": "false"}
        return dict(self._given)


def open_source(spark: Any, given: argparse.Namespace, options: dict[str, str]) -> Any:
    """With a column `timestamp`, which is null where nobody tells the time."""
    options |= {"maxBytesPerTrigger": str(given.batch_bytes), "assumeProcessingTime": "true"}
    if given.iceberg:
        options["columns"] = ",".join([*columns_of(options), "key"])
    source = spark.readStream.format("tidemark").options(**options).load()
    if "timestamp" in source.columns:
        return source
    return source.selectExpr("*", "CAST(NULL AS TIMESTAMP) AS timestamp")


def take_what_came(
    spark: Any, given: argparse.Namespace, job: Job, found: Archived, streams: SubscribedStreams
) -> None:
    """Archive what is there now, and add to `found` what that was."""
    heads = streams.heads()
    source = open_source(spark, given, streams.source_options(heads, job))
    before = progress(spark, given.checkpoint)
    if given.iceberg:
        start, new_files = to_table(spark, source, given)
    else:
        start, new_files = to_directory(spark, source, given, is_first=not before.positions)
    batches: dict[int, int] = {}
    came_to = before
    while True:
        batches |= repeat_slow_start(lambda: follow(start(), job), START_SECONDS, job.say)
        # Before Spark 4.2 a query that ends by itself reads a single batch. One that the table has already
        # brings no rows.
        came_from, came_to = came_to, progress(spark, given.checkpoint)
        if came_to == came_from or has_reached(came_to, streams.bucket, heads.values()):
            break
    if given.iceberg:
        record_closed(open_lake(given), streams.bucket, heads, came_to)
    found.messages += sum(batches.values())
    found.batches += len(batches)
    # Where no loss is allowed the query has stopped at the first one.
    if streams.may_lose:
        new = new_files()
        rows = spark.read.schema(ROWS).parquet(*new) if new else None
        lost = find_losses(rows, before.positions, came_to.positions)
        if lost:
            lost = losses_beside_compaction(lost, before.positions, heads, streams.heads())
        tell_losses(lost, job, found)


def tell_losses(lost: dict[str, int | None], job: Job, found: Archived) -> None:
    for name, size in sorted(lost.items()):
        told = "what was not read when it was deleted and created again" if size is None else f"{size} bytes"
        job.say(f"{name}: {told} could not be archived")
        before_this = found.lost.get(name, 0)
        found.lost[name] = None if size is None or before_this is None else before_this + size


def to_directory(
    spark: Any, source: Any, given: argparse.Namespace, *, is_first: bool
) -> tuple[Callable[[], Any], Callable[[], list[str]]]:
    """What starts the query, and the files that it has written since."""
    files_before = frozenset() if is_first else files_of(spark, given.out)
    # A batch that the archive has and the checkpoint does not know of belongs to this run.
    files_before -= logged_files(spark, given.out, pending_batch(spark, given.checkpoint))
    writing = (
        with_date(source)
        .writeStream.format("parquet")
        .partitionBy("bucket", "date")
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
    )
    return lambda: writing.start(given.out), lambda: sorted(files_of(spark, given.out) - files_before)


def to_table(
    spark: Any, source: Any, given: argparse.Namespace
) -> tuple[Callable[[], Any], Callable[[], list[str]]]:
    """The same; each batch is a snapshot of the table."""
    lake, new = open_lake(given), list[str]()
    # Iceberg has no INT96, which Spark writes otherwise.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def write(rows: Any, batch: int) -> None:
        # Kept in the checkpoint, so that the next run is the same query.
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        new.extend(lake.write_batch(rows, query_id, batch))

    writing = source.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    return writing.trigger(availableNow=True).start, lambda: new


def require_own_checkpoint(spark: Any, given: argparse.Namespace, streams: SubscribedStreams) -> None:
    """Raises JobFailed where the checkpoint is that of another archive or older than this one, and where it
    is new and the archive is not: the archive would lack messages, or a table would have them twice."""
    if given.out:
        if not file_sink_fits(spark, given.checkpoint, given.out):
            why = "the directory does not have the batches that the checkpoint knows of"
            raise JobFailed(not_one_archive(given, why))
        return
    lake = open_lake(given)
    lake.ensure()
    planned = last_planned(spark, given.checkpoint)
    if planned < 0:
        twice = streams_in(spark, lake, streams)
        if twice:
            more = f" and {len(twice) - 3} more" if len(twice) > 3 else ""
            why = f"the checkpoint is new, and the table has {', '.join(twice[:3])}{more}"
            raise JobFailed(not_one_archive(given, why))
        return
    written = lake.last_batch(query_id(spark, given.checkpoint))
    if written < 0 and progress(spark, given.checkpoint).positions:
        raise JobFailed(not_one_archive(given, "the table has no batch of this checkpoint"))
    # The table would take new batches under numbers that it has for repetitions, and leave their rows out.
    if written > planned:
        why = f"the table has batch {written}, and the checkpoint is older: it ends with batch {planned}"
        raise JobFailed(not_one_archive(given, why))


def not_one_archive(given: argparse.Namespace, why: str) -> str:
    return (
        f"{given.out or given.iceberg} and {given.checkpoint} do not belong together: {why}. "
        "An archive has one checkpoint, and a new checkpoint needs a new archive"
    )


def streams_in(spark: Any, lake: Any, streams: SubscribedStreams) -> list[str]:
    """Those of which the table has messages."""
    from pyspark.sql import functions

    from tidemark.spark.lake_files import SPARK_SCHEMA

    files = lake.files_of_bucket(streams.bucket)
    if not files:
        return []
    rows = spark.read.schema(SPARK_SCHEMA).parquet(*files).where(functions.col("bucket") == streams.bucket)
    incarnation = functions.coalesce("incarnation", functions.lit(""))
    there = {tuple(row) for row in rows.select("stream", incarnation).distinct().collect()}
    return sorted(name for name, head in streams.heads().items() if (name, head.tail.incarnation) in there)


def logged_files(spark: Any, out: str, batch: int | None) -> frozenset[str]:
    """The files of a batch by the log of Spark's file sink; none where the batch is not in it."""
    from pyspark.errors import AnalysisException

    if batch is None:
        return frozenset()
    try:
        lines = spark.read.text(f"{out}/_spark_metadata/{batch}").collect()
    except AnalysisException:
        return frozenset()
    return frozenset(json.loads(line.value)["path"] for line in lines if line.value.startswith("{"))


def has_reached(reached: Progress, bucket: str, heads: Iterable[Head]) -> bool:
    places = [(head, reached.taken(bucket, head)) for head in heads]
    return all(place is not None and not is_past(head.tail.offset, place.offset) for head, place in places)


def record_closed(lake: Any, bucket: str, heads: dict[str, Head], reached: Progress) -> None:
    """Streams that were closed, once the table has all of them."""
    from tidemark.spark.lake import ClosedStream

    lake.add_closed(
        [
            ClosedStream(bucket, head.name, head.tail.incarnation, head.tail.offset, head.tail.content_type)
            for head in heads.values()
            if head.closed
            and has_reached(reached, bucket, [head])
            and taken_by_all([reached], bucket, head) is not None
        ]
    )


def progress(spark: Any, checkpoint: str) -> Progress:
    """How far the archive has come; nothing before its first run."""
    try:
        return taken_progress(spark, checkpoint)
    except NoCheckpoint:
        return Progress({})


def files_of(spark: Any, out: str) -> frozenset[str]:
    """The files of the runs that ended; none where there is no archive yet."""
    from pyspark.errors import AnalysisException

    try:
        return frozenset(spark.read.schema(ROWS).parquet(out).inputFiles())
    except AnalysisException:
        return frozenset()


def follow(query: Any, job: Job) -> dict[int, int]:
    """The messages of each batch, told as they come: Spark keeps the last hundred reports alone."""
    batches: dict[int, int] = {}
    ended = False
    while not ended:
        ended = query.awaitTermination(LOOK_SECONDS)
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if rows and batch not in batches:
                job.say(f"batch {batch}: {rows} messages")
                batches[batch] = rows
    return batches


def with_date(rows: Any) -> Any:
    """A message's size and its day: today, where the server does not tell when it was appended."""
    from pyspark.sql import functions

    when = functions.coalesce(functions.col("timestamp"), functions.current_timestamp())
    return rows.withColumn("bytes", functions.length("value")).withColumn("date", functions.to_date(when))


if __name__ == "__main__":
    run(NAME, parser(), archive)
