"""Rates, sizes and lag of streams, as a table and a plot.

A consumer is a streaming query, given as NAME=CHECKPOINT; its lag in a stream is the number of
bytes that it has not taken yet.

With --archive or --iceberg the messages are counted where the archive job wrote them: that reads no message
from the streams' table, and counts those too that were let go of. It reads sizes and times, and no values.
With --iceberg `lag_lake` is how many bytes of each stream the table does not have yet.

    spark-submit pipeline/stats.py --pattern '.*' --consumer archive=s3a://lake/_archive --plot stats.png
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from tidemark.protocol.offset import render_offset
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
    run,
    subscribed,
)
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.queries import load_heads
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import bytes_between, is_past

NAME = "stats"
#: Of a plot, which can tell no more streams apart.
LINES = 9
BARS = 100
#: Of the archive, as a directory or as a table.
ARCHIVE = "bucket STRING, stream STRING, timestamp TIMESTAMP, time TIMESTAMP, bytes BIGINT"
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
    made.add_argument("--plot", help="a PNG file to draw messages by stream and minute to")
    made.add_argument("--out", help="a directory for the table as JSON")
    return made


def stats(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if given.archive and given.iceberg:
        raise JobFailed("give either --archive or --iceberg")
    consumers: dict[str, Any] = dict(consumers_progress(spark, given))
    options = parse_read_options(read_options(given), streaming=False)
    if given.iceberg:
        lake = open_lake(given)
        consumers["lake"] = LakeProgress(lake.reach(spark, lake.load(), options.connection.bucket))
    heads = load_heads(options, connect(options.connection)) if consumers else {}
    if given.archive or given.iceberg:
        rows = subscribed(archived_rows(spark, given, options.connection.bucket), options)
    else:
        rows = spark.read.format("tidemark").options(**read_options(given)).load()
        rows = rows.selectExpr("*", "CAST(length(value) AS BIGINT) AS bytes").drop("value")
    minutes = by_minute(rows).persist()
    table = [row.asDict() for row in measure(minutes).collect()]
    if given.iceberg:
        # The table lacks all of them.
        new = sorted(heads.keys() - {row["stream"] for row in table})
        none = dict.fromkeys(COLUMNS) | {"messages": 0, "bytes": 0}
        table += [none | {"stream": name} for name in new]
    add_lag(table, consumers, heads, options.connection.bucket)
    lags = [f"lag_{name}" for name in consumers]
    sys.stdout.write(render(table, [*COLUMNS, *lags]))
    if given.out:
        columns = ", ".join([TABLE, *(f"`{name}` BIGINT" for name in lags)])
        spark.createDataFrame(table, columns).coalesce(1).write.mode("overwrite").json(given.out)
    if given.plot:
        plot(minutes, given, job)
    job.finish(streams=len(table), messages=sum(row["messages"] for row in table))


class LakeProgress:
    """How far the table reaches in each incarnation of a stream, asked like a consumer's progress."""

    def __init__(self, reaches: Any) -> None:
        self._reaches = reaches

    def taken(self, _bucket: str, head: Any) -> Any:
        reach = self._reaches.get((head.name, head.tail.incarnation))
        return head.tail.at(render_offset(reach.last)) if reach and reach.last is not None else None


def archived_rows(spark: Any, given: argparse.Namespace, bucket: str) -> Any:
    """Of the directory, or the table."""
    from pyspark.sql import functions

    files = open_lake(given).files_of_bucket(bucket) if given.iceberg else [given.archive]
    rows = spark.read.schema(ARCHIVE).parquet(*files) if files else spark.createDataFrame([], ARCHIVE)
    return rows.withColumn("timestamp", functions.coalesce("timestamp", "time"))


def by_minute(rows: Any) -> Any:
    from pyspark.sql import functions

    if "timestamp" not in rows.columns:  # Over HTTP, where no message has a time unless it is asked for.
        rows = rows.withColumn("timestamp", functions.lit(None).cast("timestamp"))
    return rows.groupBy("stream", functions.date_trunc("minute", "timestamp").alias("minute")).agg(
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
    if head is None:
        return None
    begun = head.earliest.offset
    if taken is not None and not taken.is_of_another(head.tail) and is_past(taken.offset, begun):
        begun = taken.offset
    size = bytes_between(begun, head.tail.offset)
    return None if size is None else max(0, size)


def render(table: list[dict[str, Any]], columns: list[str]) -> str:
    cells = [columns, *(["-" if row[name] is None else str(row[name]) for name in columns] for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.rjust, line, widths)) for line in cells)
    return "".join(f"{line}\n" for line in lines)


def plot(minutes: Any, given: argparse.Namespace, job: Job) -> None:
    timed = minutes.where("minute IS NOT NULL").select("stream", "minute", "messages").collect()
    if timed:
        draw(rates_of([row.asDict() for row in timed]), Path(given.plot))
    else:
        job.say(f"{given.plot} is not drawn: no message has a time, as those that were read over HTTP")


def rates_of(counts: list[dict[str, Any]]) -> Any:
    """Messages a minute of the largest streams, and of all others together, as columns of a pandas frame. A
    row is a minute, or more of them where there are many."""
    import pandas as pd

    table = pd.DataFrame(counts).pivot_table("messages", "minute", "stream", "sum", fill_value=0)
    largest = sorted(table.sum().nlargest(LINES).index)
    others = table.drop(columns=largest)
    if len(others.columns):
        table[f"{len(others.columns)} other streams"] = others.sum(axis=1)
    spanned = (table.index[-1] - table.index[0]) // timedelta(minutes=1)
    each = 1 + spanned // BARS
    return table.drop(columns=others.columns).resample(f"{each}min").sum() / each


def draw(rates: Any, path: Path) -> None:
    """The streams' rates upon each other."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import dates
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    width, below = timedelta(minutes=rates.index.freq.n), 0
    for stream in rates:
        axes.bar(rates.index, rates[stream], width, below, align="edge", label=stream)
        below = below + rates[stream]
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(axes.xaxis.get_major_locator()))
    figure.legend(fontsize="small", loc="outside right upper")
    axes.set_ylabel("messages a minute")
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    run(NAME, parser(), stats)
