"""Archive streams into an Iceberg table, which any engine reads.

Incremental: a run archives messages that the table lacks, and ends at the tails that it found at its
beginning. Runs may be repeated, killed or run in parallel: the table has each message exactly once. With
--option failOnDataLoss=false a run continues if messages are lost; it then reports the lost bytes of each
stream and exits with 5.

With --every 60 the job archives new messages every minute, until SIGTERM or Ctrl-C.

The catalog is any of pyiceberg's: Glue, REST, or SQL on a laptop. `tidemark archive` does the same in one
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
    require_driver("archive starts Spark tasks: it")
    run_archive(given, job, partial(map_by_tasks, spark))


def map_by_tasks(spark: Any, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Like `map`, with a Spark task for each item. If Spark runs a task twice, one result counts."""
    found: list[Any] = spark.sparkContext.parallelize(items, max(1, len(items))).map(call).collect()
    return found


if __name__ == "__main__":
    run(NAME, parser(), archive)
