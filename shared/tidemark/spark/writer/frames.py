"""A data frame written exactly once, with the appends made by tasks.

    write_frame(frame, {"stream": "events", "producerId": "load-1", …})

`format("tidemark")` has its appends made by one process, because Spark runs a data source's commit in one.
Here the commit is ours: tasks stage the rows, the driver settles the batch's manifest, and tasks publish what
it says, each some of the streams. A task that is repeated, or runs twice, appends nothing twice: an append's
sequence number is its place in the manifest. Each stream is written by one task, in its order.

In `foreachBatch` the producer id and the batch are what Delta calls `txnAppId` and `txnVersion`:

    stream.writeStream.foreachBatch(lambda frame, batch: write_frame(frame, options, batch=batch))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidemark.spark.options.given import InvalidOptions
from tidemark.spark.options.write import WriteOptions
from tidemark.spark.staging.files import connect_staging
from tidemark.spark.staging.hadoop import HadoopStaging, open_staging
from tidemark.spark.staging.manifest import ForeignBatch, Manifest, ReusedId
from tidemark.spark.writer.publish import Publication, Publisher, connect_publisher, count_tasks, publish_here
from tidemark.spark.writer.spark_files import SparkFiles
from tidemark.spark.writer.writers import (
    StagedPartition,
    StagedWrite,
    decode_staged,
    encode_staged,
    make_write,
    parse_write,
)


def write_frame(frame: Any, given: Mapping[str, str], *, batch: int = 0) -> Manifest:
    """Returns the batch as its first attempt staged it. `given` are a write's options, including
    `producerId`. Raises InvalidOptions, ForeignBatch, ReusedId, NotPublished, StagingFault, and Spark's
    exceptions for a task."""
    options = parse_write(given, frame.schema, overwrite=False, commits_in_driver=True)
    if options.producer_id is None:
        raise InvalidOptions(["producerId is missing: it names this write, so that it can be repeated"])
    rows, spark = (
        frame.select(*filter(None, (options.value_column, options.stream_column))),
        frame.sparkSession,
    )
    staging = open_staging(spark, options)
    write = make_write(options, rows.schema, staging)
    files: SparkFiles | TaskFiles = TaskFiles(spark, options)
    if isinstance(staging, HadoopStaging):
        files = SparkFiles(spark, options, staging)
    staged = files.stage(write, rows)
    try:
        return write.publish_by(files.publish, staging, staged, batch)
    except (ForeignBatch, ReusedId):
        write.discard_from(staging, staged, batch)
        raise


class TaskFiles:
    """Staged files that each task opens by itself."""

    def __init__(self, spark: Any, options: WriteOptions) -> None:
        self._spark = spark
        self._options = options

    def stage(self, write: StagedWrite, rows: Any) -> list[StagedPartition]:
        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            staged = write.stage(write.pieces_of_batches(batches))
            yield pa.RecordBatch.from_pydict({"staged": [encode_staged(staged)]})

        return [decode_staged(row["staged"]) for row in rows.mapInArrow(stage, "staged BINARY").collect()]

    def publish(self, _: Publisher, publications: Sequence[Publication]) -> None:
        options, tasks = self._options, count_tasks(self._spark, publications)
        largest_first = sorted(publications, key=lambda each: -each.length)

        def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            publisher, files = connect_publisher(options.connection), connect_staging(options)
            for shares in batches:
                for share in shares.column("id").to_pylist():
                    publish_here(publisher, files, largest_first[share::tasks])
            yield from ()

        self._spark.range(0, tasks, 1, tasks).mapInArrow(publish, "id BIGINT").collect()
