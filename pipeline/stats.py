"""Print the lag of consumers and of the archive's table in each stream.

A consumer is a streaming query, given as NAME=CHECKPOINT. Its lag is the number of bytes in a stream that it
has not read yet; with --iceberg `lag_lake` is the lag of the archive, and the summary counts the data files
that no snapshot names, as of a killed or running archive. `bytes` is the size of the retained messages. The
job reads no messages; for rates and sizes of messages query the table.

    spark-submit pipeline/stats.py --pattern '.*' --consumer invoices=s3a://queries/invoices \\
        --iceberg lake.messages --catalog-property type=glue
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    add_lake,
    add_subscription,
    named_value,
    open_lake,
    parser_for,
    require_driver,
    run,
    source_options,
)
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Progress, batches_in, decode_offset
from tidemark.spark.queries import load_heads, require_all
from tidemark.spark.readers import connect
from tidemark.spark.readers.port import Head, Position, bytes_between, is_past

NAME = "stats"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    made.add_argument(
        "--consumer",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=CHECKPOINT",
        help="may be repeated",
    )
    add_lake(made, required=False)
    made.add_argument("--out", help="a directory for the table as JSON")
    return made


def stats(spark: Any, given: argparse.Namespace, job: Job) -> None:
    consumers: dict[str, Any] = dict(consumers_progress(spark, given))
    summary: dict[str, int] = {}
    options = parse_read_options(source_options(given), streaming=False)
    reader, bucket = connect(options.connection), options.connection.bucket
    if given.iceberg:
        from tidemark.spark.lake import reaches_in

        lake = open_lake(given)
        consumers["lake"] = LakeProgress(reaches_in(lake.load(), bucket))
        orphans = orphans_in(lake)
        summary = {"orphan_files": len(orphans), "orphan_bytes": sum(orphans.values())}
    heads = load_heads(options, reader)
    require_all(options, reader, heads)
    table = [
        {"stream": name, "bytes": lag(head, None)}
        | {f"lag_{consumer}": lag(head, taken.taken(bucket, head)) for consumer, taken in consumers.items()}
        for name, head in sorted(heads.items())
    ]
    columns = ["stream", "bytes", *(f"lag_{name}" for name in consumers)]
    sys.stdout.write(render(table, columns))
    if given.out:
        schema = ", ".join(["stream STRING", *(f"`{name}` BIGINT" for name in columns[1:])])
        spark.createDataFrame(table, schema).coalesce(1).write.mode("overwrite").json(given.out)
    job.finish(streams=len(table), **summary)


def consumers_progress(spark: Any, given: argparse.Namespace) -> list[tuple[str, Progress]]:
    """Return name and progress of each streaming query in `--consumer`. Raises JobFailed."""
    if given.consumer:
        require_driver("--consumer reads a checkpoint: it")
    return [(name, taken_progress(spark, checkpoint)) for name, checkpoint in given.consumer]


def taken_progress(spark: Any, checkpoint: str) -> Progress:
    """Return the progress of a query's last committed batch. Raises JobFailed."""
    planned = batches_in(spark, f"{checkpoint}/offsets")
    if not planned:
        raise JobFailed(f"no streaming query has a checkpoint at {checkpoint}")
    done = batches_in(spark, f"{checkpoint}/commits") & planned
    if not done:
        return Progress({})
    # The file has a version, the query's metadata, then a line for each source.
    lines = spark.sparkContext.textFile(f"{checkpoint}/offsets/{max(done)}").collect()
    return decode_offset(json.loads(lines[2]))


def orphans_in(lake: Any) -> dict[str, int]:
    """Return the size of each data file that no snapshot names, by URI."""
    from pyarrow.fs import FileSelector

    place, named = lake.place(), lake.load().inspect.all_files()["file_path"].to_pylist()
    directory, uri = (each.rpartition("/")[0] for each in (place.path, place.uri))
    found = place.system.get_file_info(FileSelector(directory, allow_not_found=True, recursive=True))
    sizes = {uri + file.path.removeprefix(directory): file.size for file in found if file.is_file}
    return {name: sizes[name] for name in sizes.keys() - set(named)}


class LakeProgress:
    """The table's progress in each incarnation of a stream, with the interface of a consumer's progress."""

    def __init__(self, reaches: Any) -> None:
        self._reaches = reaches

    def taken(self, _bucket: str, head: Head) -> Position | None:
        reach = self._reaches.get((head.name, head.tail.incarnation))
        return head.tail.at(reach.last) if reach else None


def lag(head: Head, taken: Position | None) -> int | None:
    """Return the lag in bytes; None unless offsets are byte positions. Only retained messages count. If the
    stream was created again, all its messages count."""
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


if __name__ == "__main__":
    run(NAME, parser(), stats)
