"""Rates, sizes and lag of streams, as a table and a plot.

A consumer is a streaming query, given as NAME=CHECKPOINT; its lag in a stream is the number of
bytes that it has not taken yet.

With --archive the messages are counted where the archive job wrote them: that reads no message from
the table, and counts those too that a snapshot let go.

    spark-submit pipeline/stats.py --pattern '.*' --consumer archive=s3a://lake/_archive --plot stats.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidemark.spark.job import Job, add_subscription, parse_consumer, parser_for, read_options, run, taken_by

NAME = "stats"
COLUMNS = ("stream", "messages", "bytes", "mean_bytes", "max_bytes", "per_second", "last_append")


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    made.add_argument(
        "--consumer", action="append", default=[], metavar="NAME=CHECKPOINT", help="may be repeated"
    )
    made.add_argument("--archive", help="directory that the archive job writes, to count there")
    made.add_argument("--plot", help="a PNG file to draw messages by stream and minute to")
    made.add_argument("--out", help="a directory for the table as JSON")
    return made


def stats(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from tidemark.spark.options.read import parse_read_options
    from tidemark.spark.queries.plan import load_heads
    from tidemark.spark.readers.connect import connect

    consumers = [parse_consumer(text) for text in given.consumer]
    options = parse_read_options(read_options(given), streaming=False)
    heads = load_heads(options, connect(options.connection)) if consumers else {}
    rows = (archived(spark, given, options) if given.archive else streamed(spark, given)).select(
        "stream", "timestamp", "value"
    )
    table = [row.asDict() for row in measure(rows).collect()]
    add_lag(spark, table, consumers, heads, options.connection.bucket)
    sys.stdout.write(render(table, [*COLUMNS, *(f"lag_{name}" for name, _ in consumers)]))
    if given.out:
        spark.createDataFrame(table).coalesce(1).write.mode("overwrite").json(given.out)
    if given.plot:
        draw(by_minute(rows), Path(given.plot))
    job.finish(streams=len(table), messages=sum(row["messages"] for row in table))


def streamed(spark: Any, given: argparse.Namespace) -> Any:
    return spark.read.format("tidemark").options(**read_options(given)).load()


def archived(spark: Any, given: argparse.Namespace, options: Any) -> Any:
    from pyspark.sql import functions

    rows = spark.read.parquet(given.archive).where(functions.col("bucket") == options.connection.bucket)
    if options.pattern is None:
        return rows.where(functions.col("stream").isin(*options.names))
    return rows.where(functions.col("stream").rlike(f"^(?:{options.pattern})$"))


def measure(rows: Any) -> Any:
    from pyspark.sql import functions

    size = functions.length("value")
    seconds = functions.expr(
        "greatest(1, (max(unix_millis(timestamp)) - min(unix_millis(timestamp))) / 1000)"
    )
    return (
        rows.groupBy("stream")
        .agg(
            functions.count("*").alias("messages"),
            functions.sum(size).alias("bytes"),
            functions.round(functions.avg(size), 1).alias("mean_bytes"),
            functions.max(size).alias("max_bytes"),
            functions.round(functions.count("*") / seconds, 2).alias("per_second"),
            functions.max("timestamp").cast("string").alias("last_append"),
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


def by_minute(rows: Any) -> list[Any]:
    from pyspark.sql import functions

    minute = functions.date_trunc("minute", "timestamp").alias("minute")
    counted = rows.where("timestamp is not null").groupBy("stream", minute).count().orderBy("minute")
    found: list[Any] = counted.collect()
    return found


def draw(counts: list[Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for stream in sorted({row["stream"] for row in counts}):
        points = [(row["minute"], row["count"]) for row in counts if row["stream"] == stream]
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
