"""Reads a streaming query's progress from its checkpoint."""

from __future__ import annotations

import json
from typing import Any

from tidemark.spark.progress import Progress, decode_offset


class NoCheckpoint(Exception):
    """The directory has no checkpoint of a query over this data source."""


def taken_progress(spark: Any, checkpoint: str) -> Progress:
    """Up to where every batch was committed. Raises NoCheckpoint."""
    committed = _batches(spark, f"{checkpoint}/commits")
    planned = _batches(spark, f"{checkpoint}/offsets")
    done = committed & planned
    if not planned:
        raise NoCheckpoint(f"no streaming query has a checkpoint at {checkpoint}")
    if not done:
        return Progress({})
    lines = spark.sparkContext.textFile(f"{checkpoint}/offsets/{max(done)}").collect()
    # A version, the query's own state, then a line for each source.
    return decode_offset(json.loads(lines[2]))


def pending_batch(spark: Any, checkpoint: str) -> int | None:
    """The batch that was planned last, if it is not known to be done."""
    left = _batches(spark, f"{checkpoint}/offsets") - _batches(spark, f"{checkpoint}/commits")
    return max(left, default=None)


def last_planned(spark: Any, checkpoint: str) -> int:
    """The newest batch that it knows of; -1 before the first."""
    return max(_batches(spark, f"{checkpoint}/offsets"), default=-1)


def is_new(spark: Any, checkpoint: str) -> bool:
    """Whether no batch of it was planned yet."""
    return not _batches(spark, f"{checkpoint}/offsets")


def query_id(spark: Any, checkpoint: str) -> str:
    """The query's own id, which stays the same as long as its checkpoint."""
    (line,) = spark.sparkContext.textFile(f"{checkpoint}/metadata").collect()
    found: str = json.loads(line)["id"]
    return found


def file_sink_fits(spark: Any, checkpoint: str, directory: str) -> bool:
    """Whether Spark's file sink has written just the batches to this directory that the checkpoint knows of;
    it is not known whether the last planned one was written. The sink skips any batch whose number it has
    seen, even another query's."""
    written = max(_batches(spark, f"{directory}/_spark_metadata"), default=None)
    done, planned = (_batches(spark, f"{checkpoint}/{kind}") for kind in ("commits", "offsets"))
    return written in {max(done, default=None), max(planned, default=None)}


def _batches(spark: Any, directory: str) -> set[int]:
    """The checkpoint's batches, listed by Hadoop's file systems, so that it may be wherever Spark can keep
    one."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark offers no other way to list a directory
    path = jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    if not files.exists(path):
        return set()
    # Spark's file sink puts ten of its batches into one file.
    names = [status.getPath().getName().removesuffix(".compact") for status in files.listStatus(path)]
    return {int(name) for name in names if name.isdigit()}
