"""Have streams let go of what the archive has, and of nothing else.

Takes from the Iceberg table's committed snapshot which stretches of each stream are whole in it, by the
sizes of the messages, and trims each stream to where they go on without a gap from its first retained
offset. Readers below get 410; the janitor removes the messages an hour later. Messages younger than
--keep-hours stay, and so does what a --consumer has not taken. A stream with a snapshot stays as it is.

    spark-submit pipeline/trim.py --archived --iceberg lake.messages --catalog-property type=glue \\
        --bucket agents --pattern '.*' --keep-hours 24
"""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    add_consumers,
    add_lake,
    add_subscription,
    add_tasks,
    consumers_progress,
    open_lake,
    parser_for,
    read_options,
    run,
    subscribed,
)
from tidemark.spark.options import Transport
from tidemark.spark.options.read import parse_read_options

NAME = "trim"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    add_lake(made, required=True)
    made.add_argument("--archived", action="store_true", help="let go of what the table has")
    made.add_argument(
        "--keep-hours", type=float, default=24, help="messages that are younger stay (24); 0 for none"
    )
    made.add_argument(
        "--days", type=float, help="look no further back in the table than so many days; less is read"
    )
    add_consumers(made)
    add_tasks(made)
    made.add_argument("--dry-run", action="store_true", help="say what would go, and change nothing")
    return made


def trim(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from tidemark.spark.lake_files import read_files
    from tidemark.spark.trim import TrimPlan, archived_stretches, trim_streams

    if not given.archived:
        raise JobFailed("give --archived: streams let go of what the table has")
    options = parse_read_options(read_options(given), streaming=False)
    if options.connection.transport is Transport.HTTP:
        raise JobFailed("trim works on the table of the streams: give --table in place of --url")
    if given.days is not None and given.days <= 0:
        raise JobFailed(f"--days must be above 0, got {given.days:g}")
    consumers = tuple(taken for _, taken in consumers_progress(spark, given))
    plan = TrimPlan(options.connection, consumers, dry_run=given.dry_run)
    now = datetime.now(UTC)
    since = now - timedelta(days=given.days) if given.days is not None else None
    files = open_lake(given).files_of_bucket(options.connection.bucket, since)
    if not files:
        raise JobFailed(f"{given.iceberg} has nothing of {options.connection.bucket}")
    rows = subscribed(read_files(spark, files), options)
    if given.keep_hours:
        rows = rows.where(rows["time"] < now - timedelta(hours=given.keep_hours))
    results = trim_streams(plan, archived_stretches(rows), given.tasks).collect()
    for row in results:
        if row.detail:
            job.say(f"{row.stream}: {row.outcome} {row.detail}")
    counts = Counter(row.outcome.replace(" ", "_") for row in results)
    size = sum(row.bytes for row in results)
    job.finish(streams=len(results), bytes=size, **dict(sorted(counts.items())))


if __name__ == "__main__":
    run(NAME, parser(), trim)
