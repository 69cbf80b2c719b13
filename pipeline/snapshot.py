"""Fold streams and publish the result as their snapshots.

Publishing a snapshot lets the server forget what lies below it. So it never goes beyond what
every consumer has taken: name the archive, and whoever else must see every message, with
--consumer, or say --no-consumer. A stream whose snapshot somebody else published meanwhile is
skipped and counted.

Folds: last-by-key (JSON objects, told apart by --key), merge-patch (RFC 7386), or module:Class.

    spark-submit pipeline/snapshot.py --url https://streams.example.com --bucket agents --pattern '.*' \\
        --fold last-by-key --key id --consumer archive=s3a://lake/_archive
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from tidemark.spark.job import (
    Job,
    JobFailed,
    add_consumers,
    add_subscription,
    add_tasks,
    consumers_progress,
    parser_for,
    read_options,
    run,
)
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.queries import load_heads, require_all
from tidemark.spark.readers import connect

NAME = "snapshot"


def parser() -> argparse.ArgumentParser:
    made = parser_for(NAME, __doc__ or "")
    add_subscription(made)
    made.add_argument("--fold", required=True, help="last-by-key, merge-patch or module:Class")
    made.add_argument(
        "--key",
        default="key",
        help="of last-by-key: the member that tells messages apart, or a JSON pointer to it",
    )
    made.add_argument(
        "--on-error", choices=("skip", "fail"), default="fail", help="for a message that does not fold"
    )
    limits = made.add_mutually_exclusive_group(required=True)
    add_consumers(limits)
    limits.add_argument("--no-consumer", action="store_true", help="nobody else needs the messages")
    add_tasks(made)
    made.add_argument("--dry-run", metavar="DIR", help="write the folds there as JSON instead of publishing")
    return made


def snapshot(spark: Any, given: argparse.Namespace, job: Job) -> None:
    from tidemark.spark.folds import SnapshotPlan, UnknownFold, find_fold, snapshot_streams

    options = parse_read_options(read_options(given), streaming=False)
    if not given.dry_run and options.connection.bucket == "v1":
        raise JobFailed("--bucket is missing: only streams in a bucket have snapshots")
    try:
        find_fold(given.fold, given.key)
    except UnknownFold as fault:
        raise JobFailed(str(fault)) from fault
    plan = SnapshotPlan(
        connection=options.connection,
        fold=given.fold,
        key=given.key,
        skip_bad=given.on_error == "skip",
        consumers=tuple(taken for _, taken in consumers_progress(spark, given)),
        dry_run=bool(given.dry_run),
    )
    reader = connect(options.connection)
    if options.pattern is not None:
        streams = list(reader.names(re.compile(options.pattern)))
    else:
        require_all(options, reader, load_heads(options, reader))
        streams = list(options.names)
    job.say(f"{len(streams)} streams")
    results = snapshot_streams(spark, plan, streams, given.tasks).persist()
    conclude(results, given, job)


def conclude(results: Any, given: argparse.Namespace, job: Job) -> None:
    rows = results.collect()
    if given.dry_run:
        results.coalesce(1).write.mode("overwrite").json(given.dry_run)
    for row in rows:
        if row.outcome in ("failed", "conflict"):
            job.say(f"{row.stream}: {row.outcome}: {row.detail}")
        if row.skipped:
            job.say(f"{row.stream}: {row.skipped} skipped, the first of them: {row.skipped_first}")
    messages, skipped = sum(row.messages for row in rows), sum(row.skipped for row in rows)
    counts = job.finish_streams(rows, messages=messages, skipped_messages=skipped)
    if counts["failed"]:
        raise RuntimeError(f"{counts['failed']} streams failed; see above")


if __name__ == "__main__":
    run(NAME, parser(), snapshot)
