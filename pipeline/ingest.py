"""Append files of any format that Spark reads to streams, exactly once under an id.

A row becomes a message: the text or binary in --value-column or, without this option, the whole row as JSON.
The message goes to --stream, or to the stream in --stream-column. After a failure run the job again with the
same --id: it appends only the missing messages.

    spark-submit pipeline/ingest.py --input s3a://lake/events --format parquet --stream events \\
        --content-type application/json --create --staging s3://lake-staging/ingest --id events-2030-01-15
"""

from __future__ import annotations

import argparse
from typing import Any

from tidemark.spark.job import Job, JobFailed, add_write, named_value, parser_for, run, write_once

NAME = "ingest"
#: Keep members that are NULL, which Spark leaves out by default.
NULLS = {"ignoreNullFields": "false"}


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    made.add_argument("--input", required=True, help="path of the files")
    made.add_argument("--format", default="parquet", help="parquet, json, csv, text, … (default: parquet)")
    made.add_argument(
        "--input-option",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="option of Spark's reader for the format: header=true, multiLine=true, …; may be repeated",
    )
    made.add_argument("--value-column", help="the column to append (default: the row as JSON)")
    target = made.add_mutually_exclusive_group(required=True)
    target.add_argument("--stream", help="the stream for all rows")
    target.add_argument("--stream-column", help="the column that names each row's stream")
    made.add_argument(
        "--content-type", default="application/json", help="of the streams (default: application/json)"
    )
    made.add_argument("--create", action="store_true", help="create streams that are missing")
    add_write(made)
    return made


def ingest(spark: Any, given: argparse.Namespace, job: Job) -> None:
    frame = spark.read.format(given.format).options(**dict(given.input_option)).load(given.input)
    if given.stream_column and given.stream_column not in frame.columns:
        raise JobFailed(f"there is no column {given.stream_column}; columns: {', '.join(frame.columns)}")
    rows = to_messages(frame, given.value_column, given.stream_column)
    target = {"stream": given.stream} if given.stream else {"streamColumn": "stream"}
    created = {"contentType": given.content_type, "createStreams": str(given.create).lower()}
    job.finish(**write_once(rows, given, job, **created, **target))


def to_messages(frame: Any, value_column: str | None, stream_column: str | None) -> Any:
    from pyspark.sql import functions

    def column(name: str) -> Any:
        """Return the column of this name. Quotes it, because dots in a name would mean members."""
        return functions.col("`" + name.replace("`", "``") + "`")

    streams = [column(stream_column).alias("stream")] if stream_column else []
    if value_column:
        return frame.select(*streams, column(value_column).alias("value"))
    fields = [column(name) for name in frame.columns if name != stream_column]
    return frame.select(*streams, functions.to_json(functions.struct(*fields), NULLS).alias("value"))


if __name__ == "__main__":
    run(NAME, parser(), ingest)
