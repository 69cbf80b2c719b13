"""Small files of the archive's Iceberg table become large ones, in place, and old snapshots go.

Runs beside the archive: where both commit at once, one of them looks again. What readers of the table see
does not change. A snapshot that a reader may still be at must be younger than --keep-days.

    spark-submit pipeline/compact.py --iceberg lake.messages --catalog-property type=glue
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
    made.add_argument(
        "--file-bytes", type=above_zero, default=128 * 1024 * 1024, help="of a file, about (134217728)"
    )
    made.add_argument("--keep-days", type=float, default=7, help="how long snapshots stay readable (7)")
    return made


def compact(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if not given.iceberg:
        raise JobFailed("--iceberg is missing: the table to compact")
    if given.keep_days < 0:
        raise JobFailed(f"--keep-days must not be below 0, got {given.keep_days:g}")
    lake = open_lake(given)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    old, new = lake.compact(spark, given.file_bytes)
    before = datetime.now(UTC) - timedelta(days=given.keep_days)
    snapshots, files = lake.expire(before)
    lake.compact_sides(before)
    job.finish(files_before=old, files_after=new, snapshots_expired=snapshots, files_deleted=files)


if __name__ == "__main__":
    run(NAME, parser(), compact)
