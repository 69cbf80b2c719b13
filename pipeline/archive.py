"""Archive streams into an Iceberg table, which any engine reads.

Incremental: a run takes what has come since the last one, ends when it has read what was there at its
beginning, and may be repeated or killed at any time: no message is missing from the table or twice in it.
With --option failOnDataLoss=false a run goes on where messages are gone: then it says how much of which
stream it could not archive, and exits with 5.

With --every 60 the job goes on: it takes what has come every minute, until SIGTERM or Ctrl-C stops it.

The table's catalog is pyiceberg's: Glue, REST, or SQL on a laptop.

    spark-submit pipeline/archive.py --pattern '.*' --checkpoint s3a://lake/_archive \\
        --iceberg lake.messages --catalog-property type=glue
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
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
    Positions,
    Progress,
    encode_offset,
    planned_progress,
    taken_progress,
)
from tidemark.spark.queries import load_heads
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Head, NoTimes, Position, is_past

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
    add_lake(made, required=True)
    made.add_argument(
        "--batch-bytes",
        type=above_zero,
        default=BATCH_BYTES,
        help=f"of a batch, at most: a run that failed goes on behind its last batch ({BATCH_BYTES})",
    )
    made.add_argument("--every", type=float, metavar="SECONDS", help="go on, and look for more so often")
    made.add_argument("--checkpoint", required=True, help="where the progress is kept; one for each table")
    return made


class Archived:
    """What a run has taken so far; of `lost` see `find_losses`."""

    def __init__(self) -> None:
        self.messages = 0
        self.batches = 0
        self.lost: dict[str, int | None] = {}


def archive(spark: Any, given: argparse.Namespace, job: Job) -> None:
    require_driver("archive keeps a checkpoint: it")
    if given.every is not None and given.every <= 0:
        raise JobFailed(f"--every must be a number of seconds above 0, got {given.every:g}")
    found, streams = Archived(), SubscribedStreams(given)
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
        out=given.iceberg,
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
        table is parted by it, and it cannot be asked for later. Where a server has none it goes without."""
        if "includetimestamps" not in map(str.lower, self._given):
            self._given |= {"includeTimestamps": "true"}
            try:
                for head in list(heads.values())[:1]:
                    self._reader.check_times(head)
            except NoTimes as fault:
                job.say(f"{fault}: messages are archived without their time")
                self._given |= {"includeTimestamps": "false"}
        return dict(self._given)


def open_source(spark: Any, given: argparse.Namespace, options: dict[str, str]) -> Any:
    """With a column `timestamp`, which is null where nobody tells the time."""
    options |= {"maxBytesPerTrigger": str(given.batch_bytes), "assumeProcessingTime": "true"}
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
    options = streams.source_options(heads, job)
    before = progress(spark, given.checkpoint)
    begin = {} if before.positions else reached(spark, given, streams.bucket, heads)
    if begin:
        options["between"] = json.dumps([encode_offset(Progress(begin)), {}])
    start, new_files = to_table(spark, open_source(spark, given, options), given, streams.bucket, begin)
    batches: dict[int, int] = {}
    came_to = before
    while True:
        batches |= repeat_slow_start(lambda: follow(start(), job), START_SECONDS, job.say)
        # Before Spark 4.2 a query that ends by itself reads a single batch. One that the table has already
        # brings no rows.
        came_from, came_to = came_to, progress(spark, given.checkpoint)
        if came_to == came_from or has_reached(came_to, streams.bucket, heads.values()):
            break
    found.messages += sum(batches.values())
    found.batches += len(batches)
    # Where no loss is allowed the query has stopped at the first one.
    if streams.may_lose:
        rows = spark.read.schema(ROWS).parquet(*new_files) if new_files else None
        taken = before.positions or begin
        lost = find_losses(rows, taken, came_to.positions)
        if lost:
            lost = losses_beside_compaction(lost, taken, heads, streams.heads())
        tell_losses(lost, job, found)


def tell_losses(lost: dict[str, int | None], job: Job, found: Archived) -> None:
    for name, size in sorted(lost.items()):
        told = "what was not read when it was deleted and created again" if size is None else f"{size} bytes"
        job.say(f"{name}: {told} could not be archived")
        before_this = found.lost.get(name, 0)
        found.lost[name] = None if size is None or before_this is None else before_this + size


def to_table(
    spark: Any, source: Any, given: argparse.Namespace, bucket: str, begin: Positions
) -> tuple[Callable[[], Any], list[str]]:
    """What starts the query, and the files that it has written since. Each batch is a snapshot of the table.
    `begin` is where the first batch begins."""
    from tidemark.spark.reach import ArchiveBatch

    lake, new = open_lake(given), list[str]()
    lake.ensure()
    # Iceberg has no INT96, which Spark writes otherwise.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def write(rows: Any, number: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        start = planned_progress(spark, given.checkpoint, number - 1).positions if number else begin
        end = planned_progress(spark, given.checkpoint, number).positions
        new.extend(lake.write_batch(rows, ArchiveBatch(query, number, bucket, start, end)))

    writing = source.writeStream.foreachBatch(write).option("checkpointLocation", given.checkpoint)
    return writing.trigger(availableNow=True).start, new


def reached(
    spark: Any, given: argparse.Namespace, bucket: str, heads: Mapping[str, Head]
) -> dict[str, Position]:
    """Where the table ends in the streams that it has: there the first batch of a checkpoint begins."""
    lake = open_lake(given)
    lake.ensure()
    reaches = lake.reach(spark, lake.load(), bucket)
    return {
        name: head.tail.at(reach.last)
        for name, head in heads.items()
        if (reach := reaches.get((name, head.tail.incarnation))) is not None
    }


def has_reached(reached: Progress, bucket: str, heads: Iterable[Head]) -> bool:
    places = [(head, reached.taken(bucket, head)) for head in heads]
    return all(place is not None and not is_past(head.tail.offset, place.offset) for head, place in places)


def progress(spark: Any, checkpoint: str) -> Progress:
    """How far the archive has come; nothing before its first run."""
    try:
        return taken_progress(spark, checkpoint)
    except NoCheckpoint:
        return Progress({})


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


if __name__ == "__main__":
    run(NAME, parser(), archive)
