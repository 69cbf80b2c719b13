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
from collections.abc import Iterable, Mapping
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


def archive(spark: Any, given: argparse.Namespace, job: Job) -> None:
    require_driver("archive keeps a checkpoint: it")
    if given.every is not None and given.every <= 0:
        raise JobFailed(f"--every must be a number of seconds above 0, got {given.every:g}")
    archive = Archive(spark, given, job)
    if given.every is None:
        archive.take_what_came()
    else:
        with until_stopped() as stopped:
            while not stopped.is_set():
                began = time.monotonic()
                archive.take_what_came()
                stopped.wait(max(0.0, began + given.every - time.monotonic()))
    job.finish(
        messages=archive.messages,
        batches=archive.batches,
        out=given.iceberg,
        streams_with_loss=len(archive.lost),
        lost_bytes=sum(size or 0 for size in archive.lost.values()),
    )
    if archive.lost:
        job.code = Exit.DATA_LOST


class Archive:
    """A run of the job, and what it has taken so far; of `lost` see `find_losses`. Its one reader asks less
    for streams that it knows. Raises InvalidOptions, and JobFailed."""

    def __init__(self, spark: Any, given: argparse.Namespace, job: Job) -> None:
        self._asked = {"bytesPerPartition": str(FILE_BYTES)} | read_options(given)
        for name, why in OWN_OPTIONS.items():
            if name in map(str.lower, self._asked):
                raise JobFailed(f"--option {name} is not for archives: {why}")
        self._options = parse_read_options(self._asked, streaming=True)
        self._reader, self._bucket = connect(self._options.connection), self._options.connection.bucket
        self._spark, self._given, self._job = spark, given, job
        self._lake = open_lake(given)
        self.messages = self.batches = 0
        self.lost: dict[str, int | None] = {}
        #: What the tasks have read of each stream since the job looked last (`lake_files.WRITTEN`).
        self._read: list[Any] = []

    def take_what_came(self) -> None:
        """Archive what is there now."""
        heads = load_heads(self._options, self._reader)
        options = self._source_options(heads)
        self._lake.ensure()
        before = came_to = self._progress()
        begin = {} if before.positions else self._reached(heads)
        if begin:
            options["between"] = json.dumps([encode_offset(Progress(begin)), {}])
        self._read.clear()
        start = self._query(options, begin)
        while True:
            repeat_slow_start(lambda: start().awaitTermination(), START_SECONDS, self._job.say)
            # Before Spark 4.2 a query that ends by itself reads a single batch. One that the table has
            # already brings no rows.
            came_from, came_to = came_to, self._progress()
            if came_to == came_from or has_reached(came_to, self._bucket, heads.values()):
                break
        # Where no loss is allowed the query has stopped at the first one.
        if not self._options.fail_on_data_loss:
            taken = before.positions or begin
            lost = find_losses(self._read, taken, came_to.positions)
            if lost:
                now = load_heads(self._options, self._reader)
                lost = losses_beside_compaction(lost, taken, heads, now)
            self._tell_losses(lost)

    def _source_options(self, heads: dict[str, Head]) -> dict[str, str]:
        """Those of the source. Over HTTP it asks for event time, unless the user has decided that: the
        table is parted by it, and it cannot be asked for later. Where a server has none it goes without."""
        if "includetimestamps" not in map(str.lower, self._asked):
            self._asked |= {"includeTimestamps": "true"}
            try:
                for head in list(heads.values())[:1]:
                    self._reader.check_times(head)
            except NoTimes as fault:
                self._job.say(f"{fault}: messages are archived without their time")
                self._asked |= {"includeTimestamps": "false"}
        columns = ",".join([*columns_of(self._asked), "key"])
        limit = {"maxBytesPerTrigger": str(self._given.batch_bytes), "assumeProcessingTime": "true"}
        return self._asked | limit | {"columns": columns}

    def _query(self, options: dict[str, str], begin: Positions) -> Any:
        """What starts the query. Each batch is a snapshot of the table; the first one begins at `begin`."""
        from tidemark.spark.reach import ArchiveBatch
        from tidemark.spark.source import source_of_files

        spark, checkpoint = self._spark, self._given.checkpoint

        def write(rows: Any, number: int) -> None:
            query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            start = planned_progress(spark, checkpoint, number - 1).positions if number else begin
            end = planned_progress(spark, checkpoint, number).positions
            batch = ArchiveBatch(query, number, self._bucket, start, end)
            messages, read = self._lake.write_batch(rows, batch)
            self._read += read
            if messages:
                self._job.say(f"batch {number}: {messages} messages")
                self.messages += messages
                self.batches += 1

        spark.dataSource.register(source_of_files(self._lake.place()))
        source = spark.readStream.format("tidemark_files").options(**options).load()
        writing = source.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        return writing.trigger(availableNow=True).start

    def _reached(self, heads: Mapping[str, Head]) -> dict[str, Position]:
        """Where the table ends in the streams that it has: there the first batch of a checkpoint begins."""
        reaches = self._lake.reach(self._spark, self._lake.load(), self._bucket)
        return {
            name: head.tail.at(reach.last)
            for name, head in heads.items()
            if (reach := reaches.get((name, head.tail.incarnation))) is not None
        }

    def _progress(self) -> Progress:
        """How far the archive has come; nothing before its first run."""
        try:
            return taken_progress(self._spark, self._given.checkpoint)
        except NoCheckpoint:
            return Progress({})

    def _tell_losses(self, lost: dict[str, int | None]) -> None:
        for name, size in sorted(lost.items()):
            again = "what was not read when it was deleted and created again"
            self._job.say(f"{name}: {again if size is None else f'{size} bytes'} could not be archived")
            before = self.lost.get(name, 0)
            self.lost[name] = None if size is None or before is None else before + size


def has_reached(reached: Progress, bucket: str, heads: Iterable[Head]) -> bool:
    places = [(head, reached.taken(bucket, head)) for head in heads]
    return all(place is not None and not is_past(head.tail.offset, place.offset) for head, place in places)


if __name__ == "__main__":
    run(NAME, parser(), archive)
