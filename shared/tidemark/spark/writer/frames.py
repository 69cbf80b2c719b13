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
from dataclasses import asdict
from typing import Any, Final

import orjson
import pyarrow as pa

from tidemark.spark.options.given import InvalidOptions
from tidemark.spark.staging.files import Staging, connect_staging
from tidemark.spark.staging.manifest import AppendRun, Manifest
from tidemark.spark.writer.publish import Publication, Publisher, connect_publisher, publish_here
from tidemark.spark.writer.writers import StagedPartition, make_write, parse_write

#: Where the setting is no number: Databricks knows `auto`.
_TASKS: Final = 32


def write_frame(frame: Any, given: Mapping[str, str], *, batch: int = 0) -> Manifest:
    """What the batch is: what its first attempt staged. `given` are a write's options, `producerId` among
    them. Raises InvalidOptions, ForeignBatch, ReusedId, NotPublished, and what Spark raises for a task."""
    options = parse_write(given, frame.schema, overwrite=False)
    if options.producer_id is None:
        raise InvalidOptions(["producerId is missing: it names this write, so that it can be repeated"])
    rows = frame.select(*filter(None, (options.value_column, options.stream_column)))
    write, spark = make_write(options, rows.schema), frame.sparkSession

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = write.stage(write.pieces_of_batches(batches))
        yield pa.RecordBatch.from_pydict({"staged": [orjson.dumps(asdict(staged))]})

    def publish_by_tasks(_: Publisher, __: Staging, publications: Sequence[Publication]) -> None:
        # A session over Spark Connect cannot tell how many cores there are.
        setting = spark.conf.get("spark.sql.shuffle.partitions")
        tasks = min(len(publications), int(setting) if setting.isdigit() else _TASKS)
        largest_first = sorted(publications, key=lambda each: -sum(run.length for run in each.runs))

        def publish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            publisher, staging = connect_publisher(options.connection), connect_staging(options)
            for shares in batches:
                for share in shares.column("id").to_pylist():
                    publish_here(publisher, staging, largest_first[share::tasks])
            yield from ()

        spark.range(0, tasks, 1, tasks).mapInArrow(publish, "id BIGINT").collect()

    staged = [_decode_staged(row["staged"]) for row in rows.mapInArrow(stage, "staged BINARY").collect()]
    return write.publish(staged, batch, publish_by_tasks)


def _decode_staged(data: bytes) -> StagedPartition:
    value = orjson.loads(data)
    runs = tuple(AppendRun(**run) for run in value.pop("runs"))
    return StagedPartition(**value, runs=runs)
