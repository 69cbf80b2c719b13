"""Staged files that Spark itself writes and reads, on any file system that Hadoop opens.

Tasks in Python reach none of Hadoop's file systems. So a task stages to a local file, and hands it to Spark
in pieces: rows of a Parquet data set, one for each attempt to write the batch. Spark's own commit of that
data set decides which attempt of a task counts. To publish, Spark brings all pieces of a stream to one task,
in order, which puts them into a local file again and publishes from there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, BinaryIO, Final

import pyarrow as pa

from tidemark.spark.options.write import WriteOptions
from tidemark.spark.staging.hadoop import HadoopStaging, StagingFault
from tidemark.spark.staging.manifest import AppendRun
from tidemark.spark.writer.publish import (
    NotPublished,
    Publication,
    Publisher,
    connect_publisher,
    count_tasks,
    publish_here,
)
from tidemark.spark.writer.writers import StagedPartition, StagedWrite, decode_staged, encode_staged

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
