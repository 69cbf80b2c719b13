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

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, BinaryIO, Final

import pyarrow as pa

from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.write import WriteOptions
from tidemark.spark.staging.files import connect_staging
from tidemark.spark.staging.hadoop import HadoopStaging, StagingFault, open_staging
from tidemark.spark.staging.manifest import AppendRun, ForeignBatch, Manifest, ReusedId
from tidemark.spark.writer.publish import (
    NotPublished,
    Publication,
    Publisher,
    connect_publisher,
    count_tasks,
    publish_here,
)
from tidemark.spark.writer.writers import (
    StagedPartition,
    StagedWrite,
    decode_staged,
    encode_staged,
    make_write,
    parse_write,
)

#: A piece of a run: the bytes from `start` in what the task of this partition staged. Or, with no stream, all
#: that the task says of it.
_PIECES: Final = "partition INT, stream STRING, start BIGINT, data BINARY, staged BINARY"
_PIECE_BYTES: Final = 64 * 1024
#: How many pieces a task hands over at once.
_PIECES_AT_ONCE: Final = 64
#: Spark holds a row group of the data set, in each task that writes or reads it. Compressed, or with repeated
#: pieces as references, it would be larger in memory than in the file.
_PARQUET: Final = {
    "parquet.block.size": 16 * 1024 * 1024,
    "parquet.enable.dictionary": "false",
    "compression": "none",
}


class SparkFiles:
    def __init__(self, spark: Any, options: WriteOptions, staging: HadoopStaging) -> None:
        self._spark = spark
        self._options = options
        self._staging = staging

    def stage(self, write: StagedWrite, rows: Any) -> list[StagedPartition]:
        """Raises StagingFault."""
        name = write.new_file()

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            local = LocalFile()
            staged = write.stage(write.pieces_of_batches(batches), local, name)
            yield from _cut(staged, local)

        path = self._staging.path(name)
        try:
            rows.mapInArrow(stage, _PIECES).write.options(**_PARQUET).parquet(path)
            found = self._load_staged(path)
        except Exception:
            self._staging.delete([name])
            raise
        if not found:
            self._staging.delete([name])
        return found

    def _load_staged(self, path: str) -> list[StagedPartition]:
        """The staged partition of each task, in their order."""
        notes = self._read(path).where("staged IS NOT NULL").select("staged").collect()
        found = sorted((decode_staged(row["staged"]) for row in notes), key=lambda each: each.partition)
        if [each.partition for each in found] != list(range(len(found))):
            raise StagingFault(
                f"tidemark: {path} does not have the output of every task once: Spark's committer for that"
                " file system does not keep what a failed task wrote apart"
            )
        return found

    def _read(self, *paths: str) -> Any:
        return self._spark.read.schema(_PIECES).parquet(*paths)

    def publish(self, _: Publisher, publications: Sequence[Publication]) -> None:
        connection = self._options.connection
        by_stream = {each.stream: each for each in publications}

        def publish(pieces: Iterator[Any]) -> Iterator[str]:
            local, mine = LocalFile(), []
            for stream, some in groupby(pieces, key=lambda piece: piece["stream"]):
                run = local.append(stream, (piece["data"] for piece in some))
                if run.length != by_stream[stream].length:
                    raise NotPublished(
                        f"tidemark: of {stream} {by_stream[stream].length} bytes were staged, and"
                        f" {run.length} are there: {', '.join(paths)}"
                    )
                mine.append(replace(by_stream[stream], runs=(run,)))
            publish_here(connect_publisher(connection), local, mine)
            yield from (each.stream for each in mine)

        paths = sorted({self._staging.path(run.file) for each in publications for run in each.runs})
        pieces = (
            self._read(*paths)
            .where("staged IS NULL")
            .repartition(count_tasks(self._spark, publications), "stream")
        )
        ordered = pieces.sortWithinPartitions("stream", "partition", "start")
        published = ordered.select("stream", "data").rdd.mapPartitions(publish).collect()
        if absent := by_stream.keys() - set(published):
            raise NotPublished(f"tidemark: of {min(absent)} nothing is in {', '.join(paths)}")


class LocalFile:
    """Bodies in a file of this process, which goes when the process does."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        self._length = 0

    @contextlib.contextmanager
    def create(self, _name: str) -> Iterator[BinaryIO]:
        yield self._file
        self._file.flush()

    def append(self, stream: str, pieces: Iterable[bytes]) -> AppendRun:
        """Write the pieces to the file. Returns their place, as one run."""
        start = self._length
        for piece in pieces:
            self._length += self._file.write(piece)
        self._file.flush()
        return AppendRun(stream, "", start, self._length - start, 0, 0)

    def read(self, _name: str, start: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, start)


def _cut(staged: StagedPartition, local: LocalFile) -> Iterator[pa.RecordBatch]:
    """The rows of what a task staged."""
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("stream", pa.string()),
            ("start", pa.int64()),
            ("data", pa.binary()),
            ("staged", pa.binary()),
        ]
    )
    places = (
        (run, start)
        for run in staged.runs
        for start in range(run.start, run.start + run.length, _PIECE_BYTES)
    )
    while some := list(islice(places, _PIECES_AT_ONCE)):
        pieces = [
            {
                "partition": staged.partition,
                "stream": run.stream,
                "start": start,
                "data": local.read(run.file, start, min(_PIECE_BYTES, run.start + run.length - start)),
            }
            for run, start in some
        ]
        yield pa.RecordBatch.from_pylist(pieces, schema)
    yield pa.RecordBatch.from_pylist(
        [{"partition": staged.partition, "staged": encode_staged(staged)}], schema
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
