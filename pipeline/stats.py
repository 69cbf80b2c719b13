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
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    add_consumers,
    add_lake,
    add_subscription,
    consumers_progress,
    open_lake,
    parser_for,
    read_options,
    require_no_archive,
    run,
    subscribed,
)

NAME = "stats"
#: Of a plot, which can tell no more streams apart.
LINES = 9
BARS = 100
#: Of the archive, as a directory or as a table.
ARCHIVE = "bucket STRING, stream STRING, timestamp TIMESTAMP, time TIMESTAMP, value BINARY, bytes BIGINT"
#: What was counted, by minute; or, with `taken`, in which file or snapshot.
STATE = (
    "bucket STRING, stream STRING, minute TIMESTAMP, messages BIGINT, bytes BIGINT, max_bytes BIGINT, "
    "first TIMESTAMP, last TIMESTAMP, taken STRING"
)
COLUMNS = ("stream", "messages", "bytes", "mean_bytes", "max_bytes", "per_second", "last_append")
TABLE = (
    "stream STRING, messages BIGINT, bytes BIGINT, mean_bytes DOUBLE, max_bytes BIGINT, per_second DOUBLE, "
    "last_append STRING"
)


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    add_consumers(made)
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
    from tidemark.spark.queries import load_heads
    from tidemark.spark.readers import connect

    if given.archive and given.iceberg:
        raise JobFailed("give either --archive or --iceberg")
    if given.state:
        require_no_archive(spark, given.state, "--state")
    if given.state and not (given.archive or given.iceberg):
        raise JobFailed("--state needs --archive or --iceberg: streams themselves are counted anew each time")
    consumers = dict(consumers_progress(spark, given))
    options = parse_read_options(read_options(given), streaming=False)
    heads = load_heads(options, connect(options.connection)) if consumers else {}
    if given.archive or given.iceberg:
        minutes = subscribed(archived(spark, given), options)
    else:
        minutes = by_minute(streamed(spark, given))
    minutes = minutes.persist()
    table = [row.asDict() for row in measure(minutes).collect()]
    add_lag(table, consumers, heads, options.connection.bucket)
    lags = [f"lag_{name}" for name in consumers]
    sys.stdout.write(render(table, [*COLUMNS, *lags]))
    if given.out:
        columns = ", ".join([TABLE, *(f"`{name}` BIGINT" for name in lags)])
        spark.createDataFrame(table, columns).coalesce(1).write.mode("overwrite").json(given.out)
    if given.plot:
        plot(minutes, given, job)
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
    so that a run that is killed has counted all of it or nothing. Where files are gone that were counted, as
    those of a copy that was made anew, all of it is counted."""
    from pyspark.errors import AnalysisException

    try:
        kept = spark.read.schema(STATE).parquet(given.state).where("taken IS NOT NULL")
        taken = {row.taken for row in kept.select("taken").collect()}
    except AnalysisException:
        taken = set()
    is_another = False
    if lake is not None:
        new = sorted(set(lake.snapshots()) - taken)
        files = lake.files_of_snapshots(new)
    else:
        there = set(spark.read.schema(ARCHIVE).parquet(given.archive).inputFiles())
        is_another = not taken <= there
        new = files = sorted(there if is_another else there - taken)
    if new:
        write_state(
            spark,
            given,
            "overwrite" if is_another else "append",
            archived_rows(spark, given, files) if files else None,
            new,
        )


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

    if "timestamp" not in rows.columns:  # Over HTTP, where no message has a time unless it is asked for.
        rows = rows.withColumn("timestamp", functions.lit(None).cast("timestamp"))
    return rows.groupBy("bucket", "stream", functions.date_trunc("minute", "timestamp").alias("minute")).agg(
        functions.count("*").alias("messages"),
        functions.sum("bytes").alias("bytes"),
        functions.max("bytes").alias("max_bytes"),
        functions.min("timestamp").alias("first"),
        functions.max("timestamp").alias("last"),
    )


def measure(minutes: Any) -> Any:
    from pyspark.sql import functions

    # Over HTTP nobody says when a message was appended, and then there is no rate.
    seconds = functions.expr(
        "IF(max(last) IS NULL, NULL, greatest(1, (max(unix_millis(last)) - min(unix_millis(first))) / 1000))"
    )
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
    table: list[dict[str, Any]], consumers: dict[str, Any], heads: dict[str, Any], bucket: str
) -> None:
    for name, taken in consumers.items():
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


def told(value: Any) -> str:
    return "-" if value is None else str(value)


def render(table: list[dict[str, Any]], columns: list[str]) -> str:
    cells = [columns, *([told(row.get(column)) for column in columns] for row in table)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(lines) + "\n"


def plot(minutes: Any, given: argparse.Namespace, job: Job) -> None:
    timed = minutes.where("minute IS NOT NULL").groupBy("stream", "minute").agg({"messages": "sum"})
    counts = timed.collect()
    if not counts:
        job.say(f"{given.plot} shows nothing: no message has a time, as those that were read over HTTP")
    draw(counts, Path(given.plot))


def lines_of(counts: list[Any]) -> dict[str, dict[Any, int]]:
    """By stream, of each minute the messages: the largest streams, and the sum of all others."""
    totals: Counter[str] = Counter()
    for row in counts:
        totals[row["stream"]] += row["sum(messages)"]
    largest = {stream for stream, _ in totals.most_common(LINES)}
    rest = f"{len(totals) - len(largest)} other streams"
    lines: dict[str, dict[Any, int]] = {stream: {} for stream in sorted(largest)}
    for row in counts:
        minutes = lines.setdefault(row["stream"] if row["stream"] in largest else rest, {})
        minutes[row["minute"]] = minutes.get(row["minute"], 0) + row["sum(messages)"]
    return lines


def draw(counts: list[Any], path: Path) -> None:
    """The streams' rates upon each other, in bars of a minute, or of more where there are many minutes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import dates
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    times = sorted(row["minute"] for row in counts)
    if times:
        first, width = times[0], max(timedelta(minutes=1), (times[-1] - times[0]) / BARS)
        starts = [first + width * number for number in range((times[-1] - first) // width + 1)]
        tops = [0.0] * len(starts)
        for label, minutes in lines_of(counts).items():
            rates = [0.0] * len(starts)
            for minute, messages in minutes.items():
                rates[(minute - first) // width] += messages * (timedelta(minutes=1) / width)
            axes.bar(starts, rates, width, tops, align="edge", label=label)
            tops = [top + rate for top, rate in zip(tops, rates, strict=True)]
        axes.set_xlim(first - 2 * width, times[-1] + 3 * width)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
        figure.legend(fontsize="small", loc="outside right upper")
    axes.set_ylabel("messages a minute")
    axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    run(NAME, parser(), stats)
