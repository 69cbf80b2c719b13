"""Small files of the archive become large ones.

Of an Iceberg table: in place, and old snapshots go. Runs beside the archive: where both commit at once, one
of them looks again. What readers of the table see does not change. A snapshot that a reader may still be at
must be younger than --keep-days. Data files that killed runs left behind, which are in no snapshot, are
deleted when they are older than --orphan-days: longer than any run takes from its first file to its commit.

Of an archive of plain files: into a copy, --to, in which the files of runs that did not end are left out.
Any reader of Parquet counts right there. A run replaces each day that it copies as a whole: one that is
killed may leave a day out, until it is run again, and leaves none twice. With --days it copies the last ones
alone.

    spark-submit pipeline/compact.py --iceberg lake.messages --catalog-property type=glue
    spark-submit pipeline/compact.py --archive s3a://lake/streams --to s3a://lake/streams-large --days 2
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    above_zero,
    add_lake,
    open_lake,
    parser_for,
    run,
)

NAME = "compact"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_lake(made)
    made.add_argument("--archive", metavar="DIR", help="or, of plain files: the directory")
    made.add_argument("--to", metavar="DIR", help="where their copy is")
    made.add_argument("--days", type=above_zero, help="copy so many days, today's among them (default: all)")
    made.add_argument(
        "--file-bytes", type=above_zero, default=128 * 1024 * 1024, help="of a file, about (134217728)"
    )
    made.add_argument("--keep-days", type=float, default=7, help="how long snapshots stay readable (7)")
    made.add_argument(
        "--orphan-days", type=float, default=3, help="how long a file may be in no snapshot (3)"
    )
    return made


def compact(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if bool(given.archive) == bool(given.iceberg) or bool(given.archive) != bool(given.to):
        raise JobFailed("give either --iceberg, or --archive and --to")
    for name in ("keep_days", "orphan_days"):
        if getattr(given, name) < 0:
            raise JobFailed(f"--{name.replace('_', '-')} must not be below 0, got {getattr(given, name):g}")
    if given.archive:
        return copy_files(spark, given, job)
    lake = open_lake(given)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    old, new = lake.compact(spark, given.file_bytes)
    now = datetime.now(UTC)
    before = now - timedelta(days=given.keep_days)
    snapshots, files = lake.expire(before)
    lake.compact_closed(before)
    orphans = lake.remove_orphans(now - timedelta(days=given.orphan_days))
    job.finish(
        files_before=old,
        files_after=new,
        snapshots_expired=snapshots,
        files_deleted=files,
        orphans_deleted=orphans,
    )
    return None


def copy_files(spark: Any, given: argparse.Namespace, job: Job) -> None:
    """Spark leaves out the files of runs that did not end. It writes beside the copy, and then puts each day
    in the place of the one that was there."""
    if is_archive(spark, given.to):
        raise JobFailed(f"--to must be a directory of its own: {given.to} is an archive")
    rows, place = spark.read.parquet(given.archive), ["bucket", "date"]
    if given.days is not None:
        first = datetime.now(UTC).date() - timedelta(days=given.days - 1)
        rows = rows.where(rows["date"] >= first.isoformat())
    messages, size = rows.selectExpr("count(*)", "sum(bytes)").first()
    order = [*place, "stream", "incarnation", "offset", "position"]
    parts = rows.repartitionByRange(1 + (size or 0) // given.file_bytes, *order).sortWithinPartitions(*order)
    writing = parts.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(*place)
    writing.parquet(given.to)
    before, after = (len(spark.read.parquet(path).inputFiles()) for path in (given.archive, given.to))
    job.finish(messages=messages, files_before=before, files_after=after)


def is_archive(spark: Any, directory: str) -> bool:
    """Whether the archive job writes to this directory."""
    from pyspark.errors import AnalysisException

    try:
        _ = spark.read.text(f"{directory}/_spark_metadata").schema
    except AnalysisException:
        return False
    return True


if __name__ == "__main__":
    run(NAME, parser(), compact)
