"""One task's work in a process of its own, and the most memory that it ever held, in megabytes.

Started by `test_memory.py`: `python -m tests.spark.memory_probe KIND ROWS PLACE`, where the place is the URL
of a server to read from or a directory to stage in.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from benchmarks.spark_standin import PAGE_ROWS, row
from tidemark.protocol.messages import ContentType
from tidemark.spark.options.connection import ConnectionOptions, Transport
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.options.write import parse_write_options
from tidemark.spark.readers.connect import connect
from tidemark.spark.snapshots.folds import SnapshotPlan, Snapshotter
from tidemark.spark.staging.files import connect_staging
from tidemark.spark.staging.manifest import Manifest
from tidemark.spark.writer.publish import Publication, TargetStream, publish_here
from tidemark.spark.writer.writers import Piece, make_write

SCHEMA = StructType([StructField("stream", StringType()), StructField("value", BinaryType())])
BATCH_ROWS = 5_000


def table(url: str) -> ConnectionOptions:
    given = {"transport": "dynamodb", "table": "t", "dynamodbEndpoint": url, "region": "us-east-1"}
    return parse_read_options(given | {"subscribe": "bench"}, streaming=False).connection


def server(url: str) -> ConnectionOptions:
    return parse_read_options({"url": url, "subscribe": "bench"}, streaming=False).connection


def read(origin: ConnectionOptions, rows: int) -> None:
    """The whole stream as one part, as one task has it."""
    reader = connect(origin)
    head = reader.head("bench")
    (part,) = reader.partitions("bench", head.earliest, head.tail, 1 << 40)
    found = sum(batch.num_rows for batch in reader.read(part))
    # Over HTTP there are whole pages alone.
    assert found in (rows, rows // PAGE_ROWS * PAGE_ROWS), found


def fold(origin: ConnectionOptions, rows: int) -> None:
    plan = SnapshotPlan(
        origin,
        ConnectionOptions(Transport.HTTP),
        "last-by-key",
        "key",
        skip_bad=False,
        dry_run=True,
    )
    assert Snapshotter(plan).run("bench").messages == rows


def stage(directory: str, rows: int, streams: int, **options: str) -> None:
    where = {"url": "http://127.0.0.1:1", "streamColumn": "stream", "stagingDir": directory}
    given = where | {"producerId": "p", "contentType": "application/json"} | options
    write = make_write(parse_write_options(given), SCHEMA)
    manifest = Manifest("", write.stage(batches(rows, streams)).runs)
    assert manifest.rows == rows
    staging, nobody = connect_staging(write.options), Nobody()
    publications = [
        Publication(stream, write.content_type, tuple(runs), "p", 0)
        for stream, runs in manifest.by_stream().items()
    ]
    publish_here(nobody, staging, publications)
    assert nobody.appends == sum(run.appends for run in manifest.runs)


class Nobody:
    """Takes appends and forgets them."""

    def __init__(self) -> None:
        self.appends = 0
        self.one_at_a_time = threading.Lock()

    def find(self, stream: str) -> TargetStream | None:
        raise NotImplementedError

    def create(self, stream: str, content_type: ContentType) -> None:
        raise NotImplementedError

    def find_use(self, stream: str, content_type: ContentType, producer_id: str, batch: int) -> str | None:
        raise NotImplementedError

    def append(
        self, stream: str, content_type: ContentType, bodies: Iterator[bytes], producer_id: str, batch: int
    ) -> None:
        for body in bodies:
            assert body
            with self.one_at_a_time:
                self.appends += 1

    def close(self, stream: str) -> None:
        raise NotImplementedError


def batches(rows: int, streams: int) -> Iterator[Piece]:
    names = pa.array([f"stream-{index % streams}" for index in range(BATCH_ROWS)])
    for start in range(0, rows, BATCH_ROWS):
        yield names, pa.array([padded(start + index) for index in range(BATCH_ROWS)])


def padded(index: int) -> bytes:
    """Of a size of its own: what is remembered of each would be seen."""
    return row(index) + b" " * (300 + index % 300)


KINDS: dict[str, Callable[[str, int], None]] = {
    "read over dynamodb": lambda place, rows: read(table(place), rows),
    "read over http": lambda place, rows: read(server(place), rows),
    "fold": lambda place, rows: fold(replace(table(place)), rows),
    "stage": lambda place, rows: stage(place, rows, 1),
    "stage to many streams": lambda place, rows: stage(place, rows, 500),
    "stage an append for each row": lambda place, rows: stage(
        place, rows, 1, contentType="application/octet-stream"
    ),
}

if __name__ == "__main__":
    kind, wanted, where_to = sys.argv[1:]
    KINDS[kind](where_to, int(wanted))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
