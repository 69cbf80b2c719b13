"""Archive streams as Parquet, by bucket and date.

Incremental: a run takes what has come since the last one with the same --checkpoint, ends when
it has read what was there at its beginning, and may be repeated or killed at any time: no
message is missing from the archive or twice in it. Read the archive with Spark, which leaves
out the files of a run that did not end.

With --from-export the messages come from a point-in-time export of the table instead, all of
them, and --out is written anew.

    spark-submit pipeline/archive.py --pattern '.*' --out s3a://lake/streams --checkpoint s3a://lake/_archive
"""

from __future__ import annotations

import argparse
from typing import Any

from tidemark.spark.job import Job, JobFailed, connection_options, parser_for, read_options, run

NAME = "archive"
LOOK_SECONDS = 1


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("--subscribe", help="names with commas between, or a JSON array")
    which.add_argument("--pattern", help="a regular expression that whole names match")
    which.add_argument("--from-export", metavar="PATH", help="the data directory of a point-in-time export")
    made.add_argument("--out", required=True, help="directory of the archive")
    made.add_argument("--checkpoint", help="where the progress is kept; one for each archive")
    return made


def archive(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if given.from_export:
        return archive_export(spark, given, job)
    if not given.checkpoint:
        raise JobFailed("--checkpoint is missing: without it every run would begin at the beginning")
    source = spark.readStream.format("tidemark").options(**read_options(given)).load()
    query = (
        with_date(source)
        .writeStream.format("parquet")
        .partitionBy("bucket", "date")
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start(given.out)
    )
    batches = follow(query, job)
    job.finish(messages=sum(batches.values()), batches=len(batches), out=given.out)
    return None


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
    """A message's own day. Over HTTP nobody says when it was appended: then it is today's."""
    from pyspark.sql import functions

    when = functions.coalesce(functions.col("timestamp"), functions.current_timestamp())
    return rows.withColumn("date", functions.to_date(when))


if __name__ == "__main__":
    run(NAME, parser(), archive)
