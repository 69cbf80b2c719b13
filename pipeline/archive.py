"""Archive streams as Parquet, by bucket and date.

Incremental: a run takes what has come since the last one with the same --checkpoint, ends when
it has read what was there at its beginning, and may be repeated or killed at any time: no
message is missing from the archive or twice in it. Read the archive with Spark, which leaves
out the files of a run that did not end. With --option failOnDataLoss=false a run goes on where
messages are gone: then it says how much of which stream it could not archive, and exits with 5.

With --every 60 the job goes on: it takes what has come every minute, until SIGTERM or Ctrl-C stops it.

With --iceberg the archive is an Iceberg table in place of a directory: any engine reads it, and nobody sees
a run that did not end. Its catalog is pyiceberg's: Glue, REST, or SQL on a laptop.

With --from-export the messages come from a point-in-time export of the table instead, all of
them, and --out is written anew.

    spark-submit pipeline/archive.py --pattern '.*' --out s3a://lake/streams --checkpoint s3a://lake/_archive
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from tidemark.spark.failures import SLOW_START, Exit
from tidemark.spark.job import (
    Job,
    JobFailed,
    add_lake,
    connection_options,
    open_lake,
    parser_for,
    read_options,
    run,
    until_stopped,
)

NAME = "archive"
LOOK_SECONDS = 1
#: How long a query is started again that Spark did not wait for.
START_SECONDS = 300
#: What a task reads, and about what goes into a file, before compression.
FILE_BYTES = 256 * 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024 * 1024
#: The columns that tell what is missing.
ROWS = "stream STRING, incarnation STRING, offset STRING, end_offset STRING, position INT"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("--subscribe", help="names with commas between, or a JSON array")
    which.add_argument("--pattern", help="a regular expression that whole names match")
    which.add_argument("--from-export", metavar="PATH", help="the data directory of a point-in-time export")
    made.add_argument("--out", help="directory of the archive, as Parquet by bucket and date")
    add_lake(made)
    made.add_argument(
        "--batch-bytes",
        type=int,
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
    if given.from_export:
        return archive_export(spark, given, job)
    if not given.checkpoint:
        raise JobFailed("--checkpoint is missing: without it every run would begin at the beginning")
    if given.every is not None and given.every <= 0:
        raise JobFailed(f"--every must be a number of seconds above 0, got {given.every:g}")
    found, streams = Archived(), SubscribedStreams(source_options(given))
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
    return None


def source_options(given: argparse.Namespace) -> dict[str, str]:
    return {"bytesPerPartition": str(FILE_BYTES)} | read_options(given)


class SubscribedStreams:
    """What there is to archive, asked for by one reader: it asks less for streams that it knows. Raises
    InvalidOptions."""

    def __init__(self, options: dict[str, str]) -> None:
        from tidemark.spark.options.read import parse_read_options
        from tidemark.spark.readers.connect import connect

        self._options = parse_read_options(options, streaming=True)
        self._reader = connect(self._options.connection)
        self.bucket = self._options.connection.bucket

    def heads(self) -> Any:
        """As they are now, by name."""
        from tidemark.spark.queries.plan import load_heads

        return load_heads(self._options, self._reader)


def take_what_came(
    spark: Any, given: argparse.Namespace, job: Job, found: Archived, streams: SubscribedStreams
) -> None:
    """Archive what is there now, and add to `found` what that was."""
    from tidemark.spark.gaps import find_losses

    limit = {"maxBytesPerTrigger": str(given.batch_bytes), "assumeProcessingTime": "true"}
    source = spark.readStream.format("tidemark").options(**source_options(given) | limit).load()
    heads = streams.heads()
    before = progress(spark, given.checkpoint)
    if given.iceberg:
        start, new_files = to_table(spark, source, given)
    else:
        start, new_files = to_directory(spark, source, given, is_first=not before.positions)
    batches: dict[int, int] = {}
    came_to = before
    while True:
        batches |= take_batches(start, job)
        # Before Spark 4.2 a query that ends by itself reads a single batch. One that the table has already
        # brings no rows.
        came_from, came_to = came_to, progress(spark, given.checkpoint)
        if came_to == came_from or has_reached(came_to, streams.bucket, heads):
            break
    if given.iceberg:
        record_closed(open_lake(given), streams.bucket, heads, came_to)
    found.messages += sum(batches.values())
    found.batches += len(batches)
    new = new_files()
    rows = spark.read.schema(ROWS).parquet(*new) if new else None
    lost = find_losses(rows, before.positions, came_to.positions)
    for name, size in sorted(lost.items()):
        told = "what was not read when it was deleted and created again" if size is None else f"{size} bytes"
        job.say(f"{name}: {told} could not be archived")
        before_this = found.lost.get(name, 0)
        found.lost[name] = None if size is None or before_this is None else before_this + size


def to_directory(
    spark: Any, source: Any, given: argparse.Namespace, *, is_first: bool
) -> tuple[Callable[[], Any], Callable[[], list[str]]]:
    """What starts the query, and the files that it has written since."""
    from tidemark.spark.queries.checkpoints import pending_batch

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
    lake.ensure()
    # Iceberg has no INT96, which Spark writes otherwise.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def write(rows: Any, batch: int) -> None:
        # Kept in the checkpoint, so that the next run is the same query.
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        new.extend(lake.write_batch(rows, query_id, batch))

    writing = source.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    return writing.trigger(availableNow=True).start, lambda: new


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


def has_reached(reached: Any, bucket: str, heads: Any) -> bool:
    from tidemark.spark.readers.port import is_past

    places = {name: reached.taken(bucket, head) for name, head in heads.items()}
    return all(
        places[name] is not None and not is_past(head.tail.offset, places[name].offset)
        for name, head in heads.items()
    )


def record_closed(lake: Any, bucket: str, heads: Any, reached: Any) -> None:
    """Streams that were closed, once the table has all of them."""
    from tidemark.spark.lake import ClosedStream

    whole = {
        name: head
        for name, head in heads.items()
        if head.closed and has_reached(reached, bucket, {name: head})
    }
    lake.add_closed(
        [
            ClosedStream(bucket, name, head.tail.incarnation, head.tail.offset, head.tail.content_type)
            for name, head in whole.items()
            if not reached.taken(bucket, head).is_of_another(head.tail)
        ]
    )


def progress(spark: Any, checkpoint: str) -> Any:
    """How far the archive has come; nothing before its first run."""
    from tidemark.spark.progress import Progress
    from tidemark.spark.queries.checkpoints import NoCheckpoint, taken_progress

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


def take_batches(start: Callable[[], Any], job: Job) -> dict[int, int]:
    """The messages of each batch of the query that `start` gives. Spark waits ten seconds for its Python
    process to start. Where that is too short, as on a busy driver, nothing was read, and it starts again."""
    from pyspark.errors import StreamingQueryException

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return follow(start(), job)
        except StreamingQueryException as fault:
            if SLOW_START not in str(fault) or time.monotonic() > deadline:
                raise
            job.say("Spark's Python process took more than ten seconds to start: the query starts again")


def follow(query: Any, job: Job) -> dict[int, int]:
    """The messages of each batch, told as they come: Spark keeps the last hundred reports alone."""
    batches: dict[int, int] = {}
    ended = False
    while not ended:
        ended = query.awaitTermination(LOOK_SECONDS)
        for progress in query.recentProgress:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if batch not in batches:
                job.say(f"batch {batch}: {rows} messages")
            batches[batch] = max(rows, batches.get(batch, 0))
    return batches


def archive_export(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from tidemark.spark.options.read import parse_read_options
    from tidemark.spark.readers.export import read_export

    options = parse_read_options(connection_options(given) | {"subscribe": "-"}, streaming=False)
    rows = with_date(read_export(spark, given.from_export, options.connection))
    rows.write.mode("overwrite").partitionBy("bucket", "date").parquet(given.out)
    job.finish(messages=spark.read.parquet(given.out).count(), out=given.out)


def with_date(rows: Any) -> Any:
    """A message's size and its day. Over HTTP nobody says when it was appended: then it is today's."""
    from pyspark.sql import functions

    when = functions.coalesce(functions.col("timestamp"), functions.current_timestamp())
    return rows.withColumn("bytes", functions.length("value")).withColumn("date", functions.to_date(when))


if __name__ == "__main__":
    run(NAME, parser(), archive)
