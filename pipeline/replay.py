"""Write an archived stream into a new one, byte for byte.

The messages go out in the order of their offsets. Run again with the same --id after a failure.

    spark-submit pipeline/replay.py --archive s3a://lake/streams --stream chat --to chat-restored \\
        --staging s3://lake-staging/replay --id chat-restored
"""

from __future__ import annotations

import argparse
from typing import Any

from tidemark.spark.job import Job, JobFailed, connection_options, parser_for, run

NAME = "replay"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    made.add_argument("--archive", required=True, help="directory that the archive job writes")
    made.add_argument("--from-bucket", default="v1", help="bucket of the archived stream (default: v1)")
    made.add_argument("--stream", required=True, help="the archived stream")
    made.add_argument("--to", required=True, help="the new stream; it is created")
    made.add_argument("--staging", required=True, help="a shared directory, or s3://bucket/prefix")
    made.add_argument("--id", required=True, help="names this replay; one that is complete is not repeated")
    return made


def replay(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from pyspark.sql import functions

    archived = spark.read.parquet(given.archive)
    rows = archived.where(
        (functions.col("bucket") == given.from_bucket) & (functions.col("stream") == given.stream)
    ).select("offset", "position", "end_offset", "content_type", "value")
    found = rows.agg(
        functions.count("*"),
        functions.collect_set("content_type"),
        functions.countDistinct("offset", "position"),
        functions.sum(functions.length("value")),
    ).first()
    messages, content_types, places, size = found
    if not messages:
        raise JobFailed(f"{given.archive} has nothing of {given.from_bucket}/{given.stream}")
    if len(content_types) > 1 or places != messages:
        raise JobFailed(f"{given.stream} was created again while it was archived: its offsets are ambiguous")
    job.say(f"{messages} messages, {size} bytes of {content_types[0]}")
    write(rows.orderBy("offset", "position").select("value"), content_types[0], given)
    job.finish(messages=messages, bytes=size, to=given.to)


def write(rows: Any, content_type: str, given: argparse.Namespace) -> None:
    options = connection_options(given) | {
        "stream": given.to,
        "contentType": content_type,
        "createStreams": "true",
        "stagingDir": given.staging,
        "producerId": given.id,
    }
    rows.write.format("tidemark").mode("append").options(**options).save()


if __name__ == "__main__":
    run(NAME, parser(), replay)
