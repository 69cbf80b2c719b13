"""Keep an Iceberg table of the archive fit: small files become large ones, and old snapshots go.

Runs beside the archive: where both commit at once, one of them looks again. What readers of the table see
does not change. A snapshot that a reader may still be at must be younger than --keep-days.

    spark-submit pipeline/compact.py --iceberg lake.messages --catalog-property type=glue
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.spark.job import Job, JobFailed, add_lake, open_lake, parser_for, run

NAME = "compact"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_lake(made)
    made.add_argument(
        "--file-bytes", type=int, default=128 * 1024 * 1024, help="of a file, about (134217728)"
    )
    made.add_argument("--keep-days", type=float, default=7, help="how long snapshots stay readable (7)")
    return made


def compact(spark: Any, given: argparse.Namespace, job: Job) -> None:
    if not given.iceberg:
        raise JobFailed("--iceberg is missing: only a table is compacted")
    lake = open_lake(given)
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    old, new = lake.compact(spark, given.file_bytes)
    before = datetime.now(UTC) - timedelta(days=given.keep_days)
    snapshots, files = lake.expire(before)
    lake.compact_closed(before)
    job.finish(files_before=old, files_after=new, snapshots_expired=snapshots, files_deleted=files)


if __name__ == "__main__":
    run(NAME, parser(), compact)
