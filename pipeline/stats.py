"""Rates, sizes and lag of streams, as a table and a plot.

A consumer is a streaming query, given as NAME=CHECKPOINT; its lag in a stream is the number of
bytes that it has not taken yet.

With --archive or --iceberg the messages are counted where the archive job wrote them: that reads no message
from the streams' table, and counts those too that were let go of. It reads sizes and times, and no values.
With --state it reads what is new since the last run alone.

    spark-submit pipeline/stats.py --pattern '.*' --consumer archive=s3a://lake/_archive --plot stats.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    add_lake,
    add_subscription,
    open_lake,
    parse_consumer,
    parser_for,
    read_options,
    run,
    subscribed,
    taken_by,
)

NAME = "stats"
#: Of the archive, as a directory or as a table.
ARCHIVE = "bucket STRING, stream STRING, timestamp TIMESTAMP, time TIMESTAMP, value BINARY, bytes BIGINT"
#: What was counted, by minute; or, with `taken`, in which file or snapshot.
STATE = (
    "bucket STRING, stream STRING, minute TIMESTAMP, messages BIGINT, bytes BIGINT, max_bytes BIGINT, "
    "first TIMESTAMP, last TIMESTAMP, taken STRING"
)
COLUMNS = ("stream", "messages", "bytes", "mean_bytes", "max_bytes", "per_second", "last_append")


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    made.add_argument(
        "--consumer", action="append", default=[], metavar="NAME=CHECKPOINT", help="may be repeated"
    )
    made.add_argument("--archive", help="directory that the archive job writes, to count there; or a table:")
    add_lake(made)
    made.add_argument(
        "--state",
        help="a directory for what was counted: the next run counts what is new in the archive alone",
    )
    made.add_argument("--plot", help="a PNG file to draw messages by stream and minute to")
    made.add_argument("--out", help="a directory for the table as JSON")
    return made


def stats(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from tidemark.spark.options.read import parse_read_options
    from tidemark.spark.queries.plan import load_heads
    from tidemark.spark.readers.connect import connect

    if given.archive and given.iceberg:
        raise JobFailed("give either --archive or --iceberg")
    if given.state and not (given.archive or given.iceberg):
        raise JobFailed("--state needs --archive or --iceberg: streams themselves are counted anew each time")
    consumers = [parse_consumer(text) for text in given.consumer]
    options = parse_read_options(read_options(given), streaming=False)
    heads = load_heads(options, connect(options.connection)) if consumers else {}
    if given.archive or given.iceberg:
        minutes = subscribed(archived(spark, given), options)
    else:
        minutes = by_minute(streamed(spark, given))
    minutes = minutes.persist()
    table = [row.asDict() for row in measure(minutes).collect()]
    add_lag(spark, table, consumers, heads, options.connection.bucket)
    sys.stdout.write(render(table, [*COLUMNS, *(f"lag_{name}" for name, _ in consumers)]))
    if given.out:
        spark.createDataFrame(table).coalesce(1).write.mode("overwrite").json(given.out)
    if given.plot:
        draw(
            minutes.where("minute IS NOT NULL")
            .groupBy("stream", "minute")
            .agg({"messages": "sum"})
            .collect(),
            Path(given.plot),
        )
    job.finish(streams=len(table), messages=sum(row["messages"] for row in table))


def streamed(spark: Any, given: argparse.Namespace) -> Any:
    return sized(spark.read.format("tidemark").options(**read_options(given)).load())


def archived(spark: Any, given: argparse.Namespace) -> Any:
    """By minute, what the archive has of every stream."""
    lake = open_lake(given) if given.iceberg else None
    if not given.state:
        return by_minute(archived_rows(spark, given, lake.files() if lake else [given.archive]))
    take_what_is_new(spark, given, lake)
    found = spark.read.schema(STATE).parquet(given.state).where("taken IS NULL")
    if lake is not None and total_of(found) != lake.rows:
        # Snapshots have expired that were never counted, or rows were deleted: count all of it once.
        write_state(spark, given, "overwrite", archived_rows(spark, given, lake.files()), lake.snapshots())
        found = spark.read.schema(STATE).parquet(given.state).where("taken IS NULL")
    return found


def take_what_is_new(spark: Any, given: argparse.Namespace, lake: Any) -> None:
    """Count what the archive has got since the last run with this --state, and keep it there: in one file,
    so that a run that is killed has counted all of it or nothing."""
    from pyspark.errors import AnalysisException

    try:
        kept = spark.read.schema(STATE).parquet(given.state).where("taken IS NOT NULL")
        taken = {row.taken for row in kept.select("taken").collect()}
    except AnalysisException:
        taken = set()
    if lake is not None:
        new = sorted(set(lake.snapshots()) - taken)
        files = lake.files_of_snapshots(new)
    else:
        new = files = sorted(set(spark.read.schema(ARCHIVE).parquet(given.archive).inputFiles()) - taken)
    if new:
        write_state(spark, given, "append", archived_rows(spark, given, files) if files else None, new)


def write_state(spark: Any, given: argparse.Namespace, mode: str, rows: Any, taken: list[str]) -> None:
    state = spark.createDataFrame([(each,) for each in taken], "taken STRING")
    if rows is not None:
        state = by_minute(rows).unionByName(state, allowMissingColumns=True)
    state.coalesce(1).write.mode(mode).parquet(given.state)


def total_of(counted: Any) -> int:
    return counted.agg({"messages": "sum"}).first()[0] or 0


def archived_rows(spark: Any, given: argparse.Namespace, files: list[str]) -> Any:
    """Of the directory, whose paths have the buckets, or the table. Values are read of those files alone that
    have no sizes, which an earlier version wrote."""
    from pyspark.sql import functions

    reader = spark.read.schema(ARCHIVE)
    rows = (reader.option("basePath", given.archive) if given.archive else reader).parquet(*files)
    rows = rows.withColumn("timestamp", functions.coalesce("timestamp", "time"))
    return rows.where("bytes IS NOT NULL").drop("value").unionByName(sized(rows.where("bytes IS NULL")))


def sized(rows: Any) -> Any:
    from pyspark.sql import functions

    return rows.withColumn("bytes", functions.length("value").cast("bigint")).drop("value")


def by_minute(rows: Any) -> Any:
    from pyspark.sql import functions

    return rows.groupBy("bucket", "stream", functions.date_trunc("minute", "timestamp").alias("minute")).agg(
        functions.count("*").alias("messages"),
        functions.sum("bytes").alias("bytes"),
        functions.max("bytes").alias("max_bytes"),
        functions.min("timestamp").alias("first"),
        functions.max("timestamp").alias("last"),
    )


def measure(minutes: Any) -> Any:
    from pyspark.sql import functions

    seconds = functions.expr("greatest(1, (max(unix_millis(last)) - min(unix_millis(first))) / 1000)")
    messages, size = functions.sum("messages"), functions.sum("bytes")
    return (
        minutes.groupBy("stream")
        .agg(
            messages.alias("messages"),
            size.alias("bytes"),
            functions.round(size / messages, 1).alias("mean_bytes"),
            functions.max("max_bytes").alias("max_bytes"),
            functions.round(messages / seconds, 2).alias("per_second"),
            functions.max("last").cast("string").alias("last_append"),
        )
        .orderBy("stream")
    )


def add_lag(
    spark: Any,
    table: list[dict[str, Any]],
    consumers: list[tuple[str, str]],
    heads: dict[str, Any],
    bucket: str,
) -> None:
    for name, checkpoint in consumers:
        taken = taken_by(spark, checkpoint)
        for row in table:
            head = heads.get(row["stream"])
            row[f"lag_{name}"] = lag(head, head and taken.taken(bucket, head))


def lag(head: Any, taken: Any) -> int | None:
    """In bytes, where offsets are byte positions. Of a stream that was created again nothing was
    taken, and nobody lags behind what is not retained any more."""
    if head is None or not head.tail.offset.isdigit():
        return None
    tail = int(head.tail.offset)
    places = [head.earliest.offset] if taken is None or taken.is_of_another(head.tail) else [taken.offset]
    places.append(head.earliest.offset)
    begun = max((int(place) for place in places if place.isdigit()), default=0)
    return max(0, tail - begun)


def render(table: list[dict[str, Any]], columns: list[str]) -> str:
    cells = [columns, *([str(row.get(column)) for column in columns] for row in table)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(lines) + "\n"


def draw(counts: list[Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for stream in sorted({row["stream"] for row in counts}):
        points = sorted((row["minute"], row["sum(messages)"]) for row in counts if row["stream"] == stream)
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=stream)
    axes.set_ylabel("messages a minute")
    axes.set_ylim(bottom=0)
    if counts:
        axes.legend(fontsize="small", ncols=3)
    figure.autofmt_xdate()
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    run(NAME, parser(), stats)
