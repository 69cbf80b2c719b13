"""Archive streams into an Iceberg table, which any engine reads.

Incremental: a run takes what the streams have and the table does not, and ends when it has what was there at
its beginning. It may be repeated or killed at any time, and others may run beside it: no message is missing
from the table or twice in it. With --option failOnDataLoss=false a run goes on where messages are gone: then
it says how much of which stream it could not archive, and exits with 5.

With --every 60 it goes on: it takes what has come every minute, until SIGTERM or Ctrl-C stops it.

The table's catalog is pyiceberg's: Glue, REST, or SQL on a laptop. `tidemark archive` does the same in one
process, without Spark.

    spark-submit pipeline/archive.py --pattern '.*' --iceberg lake.messages --catalog-property type=glue
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tidemark.spark.job import Job, archive_parser, require_driver, run, run_archive

NAME = "archive"


def parser() -> argparse.ArgumentParser:
    return archive_parser(__doc__ or "")


def archive(spark: Any, given: argparse.Namespace, job: Job) -> None:
    require_driver("archive gives Spark tasks of its own: it")
    run_archive(given, job, partial(map_by_tasks, spark))


def map_by_tasks(spark: Any, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """As `map`, with a task for each item. Of one that ran twice one result counts."""
    found: list[Any] = spark.sparkContext.parallelize(items, max(1, len(items))).map(call).collect()
    return found


if __name__ == "__main__":
    run(NAME, parser(), archive)
