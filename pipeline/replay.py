"""Write an archived stream into a new one, byte for byte.

Messages are written in the order of their offsets. Each must begin where the previous one ended: if the
archive has a gap, as in a stream that was compacted before it was archived, the job fails without
--allow-gaps. After a failure run the job again with the same --id.

If the stream was deleted and created again, --incarnation chooses one; without it the job lists them. With
--until the copy has the messages before that time, and stays open.

    spark-submit pipeline/replay.py --iceberg lake.messages --catalog-property type=glue \\
        --stream chat --to chat-restored --staging s3://lake-staging/replay --id chat-restored
"""

from __future__ import annotations

import argparse
from typing import Any, Final, NamedTuple

from tidemark.protocol.offset import parse_token
from tidemark.spark.job import (
    Job,
    JobFailed,
    add_lake,
    add_write,
    open_lake,
    parser_for,
    run,
    source_options,
    write_once,
)
from tidemark.spark.options.read import parse_time
from tidemark.spark.options.write import WriteOptions, parse_write_options
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import BEGINNING
from tidemark.spark.staging import connect_staging
from tidemark.spark.writer.manifest import StagedBatches
from tidemark.spark.writer.publish import Publisher

NAME = "replay"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_lake(made, required=True)
    made.add_argument("--from-bucket", default="v1", help="bucket of the archived stream (default: v1)")
    made.add_argument("--stream", required=True, help="the archived stream")
    made.add_argument("--incarnation", metavar="ID", help="which one, of a stream that was created again")
    made.add_argument("--until", metavar="TIME", help="only messages before: RFC 3339, or ms since 1970")
    made.add_argument("--to", required=True, help="the new stream; it is created, or has no messages yet")
    made.add_argument("--allow-gaps", action="store_true", help="write it even if messages are missing")
    add_write(made)
    return made


def replay(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from pyspark.sql import functions

    from tidemark.spark.lake_files import read_files
    from tidemark.spark.whole import files_of_streams

    files = files_of_streams(open_lake(given).load(), given.from_bucket, [given.stream])
    nothing = JobFailed(f"{given.iceberg} has nothing of {given.from_bucket}/{given.stream}")
    if not files:
        raise nothing
    rows = read_files(spark, files).where(
        (functions.col("bucket") == given.from_bucket) & (functions.col("stream") == given.stream)
    )
    incarnation, rows = of_one_incarnation(rows, given)
    rows = before(rows, given) if given.until else rows
    messages, content_types, places, size = rows.agg(
        functions.count("*"),
        functions.collect_set("content_type"),
        functions.countDistinct("offset", "position"),
        functions.sum(functions.length("value")),
    ).first()
    if not messages:
        raise nothing
    if len(content_types) > 1 or places != messages:
        raise JobFailed(f"{given.stream} was created again while it was archived: its offsets are ambiguous")
    gaps = find_gaps(rows)
    if gaps and not given.allow_gaps:
        raise JobFailed(
            f"{given.iceberg} has {given.stream} with {len(gaps)} gaps, the first {gaps[0]}; "
            "--allow-gaps writes what is there, as of a stream that was compacted before it was archived"
        )
    for gap in gaps:
        job.report(f"{given.stream} is written with a gap {gap}")
    job.report(f"{messages} messages, {size} bytes of {content_types[0]}")
    ordered = rows.orderBy("offset", "position").select("value")
    target = {"stream": given.to, "contentType": content_types[0], "createStreams": "true"}
    options = parse_write_options(source_options(given) | target | {"stagingDir": given.staging})
    require_new(given, options)
    summary = write_once(ordered, given, job, **target)
    if not given.until and is_closed(rows, incarnation, given):
        Publisher(options.connection).close(given.to)
        summary["closed"] = "true"
    job.finish(**summary, bytes=size, gaps=len(gaps), to=given.to)


def of_one_incarnation(rows: Any, given: argparse.Namespace) -> tuple[str, Any]:
    """Return the incarnation to replay, empty if the server had none, and its rows. Raises JobFailed if the
    table has several and the user named none, or another one."""
    from pyspark.sql import functions

    named = rows.withColumn("incarnation", functions.coalesce("incarnation", functions.lit("")))
    first, last = (each("time").cast("string") for each in (functions.min, functions.max))
    lives = named.groupBy("incarnation").agg(first.alias("first"), last.alias("last")).orderBy("first")
    known = {life["incarnation"]: f"{life['first']} to {life['last']}" for life in lives.collect()}
    chosen = given.incarnation
    if chosen is None and len(known) < 2:
        chosen = next(iter(known), "")
    elif chosen not in known:
        fault = "was deleted and created again" if chosen is None else f"has no incarnation {chosen}"
        choices = ", ".join(f"{name} (messages of {times})" for name, times in known.items())
        raise JobFailed(f"{given.stream} {fault}: set --incarnation to one of {choices}")
    return chosen, named.where(functions.col("incarnation") == chosen)


def before(rows: Any, given: argparse.Namespace) -> Any:
    """Return the rows of messages before `--until`. Raises JobFailed."""
    from pyspark.sql import functions

    try:
        until = functions.timestamp_millis(functions.lit(parse_time(given.until)))
    except ValueError as fault:
        raise JobFailed(f"--until {fault}") from fault
    if rows.where("time IS NULL").limit(1).count():
        raise JobFailed(f"{given.stream} has messages without a time, so --until cannot choose")
    return rows.where(functions.col("time") < until)


#: The first offset of a stream, on any server and on this one (§8).
_BEGINNINGS: Final = frozenset({BEGINNING, "0000000000000000"})


class Gap(NamedTuple):
    """Missing messages between two offsets; of a page over HTTP only some may be missing. `start` is empty if
    all messages up to `end` are missing."""

    start: str
    end: str

    def __str__(self) -> str:
        return f"from {self.start or 'the beginning'} to {self.end}"


def find_gaps(rows: Any) -> list[Gap]:
    """Return the gaps of one stream, in order. Without a gap each message, or page over HTTP, begins where
    the previous one ended. `rows` has the columns `offset`, `end_offset` and `position`, each pair of offset
    and position once. The rows of a page share its two offsets, and their positions count from 0."""
    from pyspark.sql import functions

    pages = rows.groupBy("offset", "end_offset").agg(
        functions.max("position").alias("last"), functions.count("*").alias("count")
    )
    torn = pages.where("count != last + 1").collect()
    gaps = [Gap(page["offset"], page["end_offset"]) for page in torn]
    ends = pages.select(functions.col("end_offset").alias("at"))
    orphans = pages.join(ends, pages["offset"] == ends["at"], "left_anti").select("offset").collect()
    for begin in {row["offset"] for row in orphans} - _BEGINNINGS:
        before = pages.where(functions.col("end_offset") <= begin).agg(functions.max("end_offset")).first()[0]
        gaps.append(Gap(before or "", begin))
    return sorted(gaps, key=lambda gap: (gap.end, gap.start))


def require_new(given: argparse.Namespace, options: WriteOptions) -> None:
    """Raise JobFailed if the new stream has messages already, unless an earlier run under this id wrote them:
    after other messages the copy would have other offsets."""
    if StagedBatches(connect_staging(options), given.id).load(0) is not None:
        return
    head = connect(options.connection).heads([given.to]).get(given.to)
    if head is not None and (parse_token(head.tail.offset) or 0) > 0:
        raise JobFailed(
            f"{given.to} has messages already: replay writes a new stream, so give --to another name"
        )


def is_closed(rows: Any, incarnation: str, given: argparse.Namespace) -> bool:
    """Whether the archived stream was closed at the end of its last row."""
    from tidemark.spark.lake import reaches_in

    reach = reaches_in(open_lake(given).load(), given.from_bucket).get((given.stream, incarnation))
    return reach is not None and reach.closed and reach.last == rows.agg({"end_offset": "max"}).first()[0]


if __name__ == "__main__":
    run(NAME, parser(), replay)
