"""The writers that Spark calls: tasks stage rows, and the driver's commit publishes them.

Appends from the tasks would not be exactly once: if Spark repeats a batch, the rows may have another order,
other partitions and other appends. The first attempt to commit therefore writes a manifest with the batch's
appends, and every later attempt follows the manifest (`spark/writer/manifest.py`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from tidemark.cold_start import forget_archives
from tidemark.protocol.messages import ContentType
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.write import STAGED, WriteOptions, parse_write_options
from tidemark.spark.staging import connect_staging
from tidemark.spark.writer.chunks import Chunker
from tidemark.spark.writer.manifest import AppendRun, Fingerprint, Manifest, StagedBatches
from tidemark.spark.writer.publish import NotPublished, Publication, Publisher, find_use, publish

#: Rows in a group, if Spark hands over single rows.
_ROWS_AT_ONCE: Final = 5_000
#: Spark's property, in every task, with the id of the streaming query from its checkpoint.
_QUERY_ID: Final = "sql.streaming.queryId"

#: A streaming sink gets Arrow batches from Spark 4.1 on, and single rows from 4.0.
_GETS_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamWriterBase: Any = datasource.DataSourceStreamArrowWriter if _GETS_ARROW else DataSourceStreamWriter

_Piece = tuple[pa.Array | str, pa.Array]
"""Values, and the stream of each value or of all values."""


@dataclass(frozen=True)
class StagedPartition(WriterCommitMessage):
    """The output of one task. `file` is set even if the file is empty, so that it is removed."""

    query: str
    partition: int
    file: str
    runs: tuple[AppendRun, ...]
    rows_by_stream: Mapping[str, int]
    checksum: int


def write_faults(schema: StructType, options: WriteOptions, *, overwrite: bool, streaming: bool) -> list[str]:
    """Return the faults of a write in its schema and mode. Checked before a task starts."""
    faults = []
    if streaming and options.batch is not None:
        faults.append("batch is for writes in foreachBatch: the sink of a streaming query numbers its own")
    if overwrite:
        faults.append("overwrite is refused: a stream is only ever appended to; use mode append")
    kinds = {field.name: field.dataType for field in schema.fields}
    wanted: list[Any] = [(options.value_column, (StringType, BinaryType), "text or binary")]
    if options.stream_column:
        wanted.append((options.stream_column, (StringType,), "text"))
    for column, types, words in wanted:
        if column not in kinds:
            faults.append(f"there is no column {column}; columns: {', '.join(kinds)}")
        elif not isinstance(kinds[column], types):
            faults.append(f"column {column} must be {words}, got {kinds[column].simpleString()}")
    return faults


def resolve_content_type(options: WriteOptions) -> ContentType:
    """Return the content type of the rows: the type of a single stream, or the option for many streams.
    Raises InvalidOptions."""
    target = Publisher(options.connection).find(options.stream) if options.stream else None
    if options.stream is None or (target is None and options.create_streams):
        assert options.content_type is not None, "checked with the options"
        return options.content_type
    if target is None:
        missing = options.connection.missing_text(options.stream)
        raise InvalidOptions([f"{missing}; createStreams=true creates it"])
    # If an earlier run completed this write, the stream may be closed: nothing is left to write.
    is_written = options.producer_id is not None and StagedBatches(
        connect_staging(options), options.producer_id
    ).is_done(options.batch or 0)
    closed = target.closed and not is_written
    faults = _target_faults(options.stream, target.content_type, options.content_type, closed=closed)
    if faults:
        raise InvalidOptions(faults)
    return target.content_type


def _target_faults(stream: str, found: ContentType, wanted: ContentType | None, *, closed: bool) -> list[str]:
    faults = [f"stream {stream} is closed"] if closed else []
    if wanted is not None and wanted.essence != found.essence:
        faults.append(f"stream {stream} is {found.essence}, not {wanted.essence}")
    return faults


class StagedWrite:
    """A write. Spark sends it to every task and commit, so it has options but no connection."""

    def __init__(self, options: WriteOptions, schema: StructType, content_type: ContentType) -> None:
        self.options = options
        self.content_type = content_type
        columns = schema.fieldNames()
        self.value_index = columns.index(options.value_column)
        self.value_is_text = isinstance(schema[options.value_column].dataType, StringType)
        self.stream_index = columns.index(options.stream_column) if options.stream_column else None

    # --- in a task ---

    def stage(self, pieces: Iterable[_Piece]) -> StagedPartition:
        forget_archives()
        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        query = (context.getLocalProperty(_QUERY_ID) if context else None) or ""
        file = f"{STAGED}/{self.producer_id(query)}/{uuid.uuid4().hex}"
        with connect_staging(self.options).create(file) as opened:
            chunker = Chunker(
                opened,
                file,
                is_json=self.content_type.is_json,
                bytes_per_append=self.options.bytes_per_append,
                where=f"partition {partition}",
                check_name=self.options.connection.check_name,
            )
            for streams, values in pieces:
                chunker.add(streams, values)
            chunker.finish()
        return StagedPartition(
            query, partition, file, tuple(chunker.runs), dict(chunker.rows_by_stream), chunker.checksum
        )

    def pieces_of_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Piece]:
        for batch in batches:
            streams: pa.Array | str = self.options.stream or ""
            if self.stream_index is not None:
                streams = batch.column(self.stream_index)
            yield streams, batch.column(self.value_index)

    def pieces_of_rows(self, rows: Iterator[Any]) -> Iterator[_Piece]:
        kind = pa.string() if self.value_is_text else pa.binary()
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            streams: pa.Array | str = self.options.stream or ""
            if self.stream_index is not None:
                streams = pa.array([row[self.stream_index] for row in some], pa.string())
            yield streams, pa.array([row[self.value_index] for row in some], kind)

    def producer_id(self, query: str) -> str:
        return self.options.producer_id or query

    # --- in the driver ---

    def publish(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> Manifest:
        """Publish the staged rows. Raises ForeignBatch and ReusedId before the first append, and
        NotPublished, after which the same call, or a repetition of the batch, continues."""
        forget_archives()
        staging = connect_staging(self.options)
        staged = sorted(_staged(messages), key=lambda each: each.partition)
        query = staged[0].query if staged else ""
        producer_id = self.producer_id(query)
        batches = StagedBatches(staging, producer_id)
        rows = sum((Counter(each.rows_by_stream) for each in staged), Counter[str]())
        checksum = sum(each.checksum for each in staged) % 2**64
        fingerprint = Fingerprint(self.options.connection.place(), dict(rows), checksum)
        ours = Manifest(query, tuple(run for each in staged for run in each.runs), fingerprint)
        publisher = Publisher(self.options.connection)
        asked = [
            Publication(stream, self.content_type, runs, producer_id, batch)
            for stream, runs in ours.by_stream().items()
        ]
        used = partial(find_use, publisher, asked)
        settled = batches.settle(batch, ours, used, resume=self.options.resume)
        if settled.runs and not batches.is_done(batch):
            content_types = self._prepare(publisher, settled.by_stream())
            publications = [
                Publication(stream, content_types[stream], runs, producer_id, batch)
                for stream, runs in settled.by_stream().items()
            ]
            publish(publisher, staging, publications)
        elif self.options.stream and self.options.create_streams and not settled.runs:
            self._prepare(publisher, [self.options.stream])
        batches.finish(batch, settled, [each.file for each in staged])
        return settled

    def _prepare(self, publisher: Publisher, streams: Iterable[str]) -> dict[str, ContentType]:
        """Check, or create, all streams before the first append. Returns their content types. Raises
        NotPublished."""
        content_types, faults = {}, []
        for stream in streams:
            target = publisher.find(stream)
            if target is None and self.options.create_streams:
                publisher.create(stream, self.content_type)
                content_types[stream] = self.content_type
            elif target is None:
                faults.append(self.options.connection.missing_text(stream))
            else:
                # A closed stream may have the batch already; only the append itself shows that.
                content_types[stream] = target.content_type
                faults += _target_faults(stream, target.content_type, self.content_type, closed=False)
        if faults:
            raise NotPublished("tidemark: " + "; ".join(faults))
        return content_types

    def discard(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        staged = _staged(messages)
        if staged:
            batches = StagedBatches(connect_staging(self.options), self.producer_id(staged[0].query))
            batches.drop(batch, [each.file for each in staged])

    def forget(self, batch: int) -> None:
        """Remove the notes of a batch under a random id, which no user can repeat."""
        StagedBatches(connect_staging(self.options), self.producer_id("")).forget(batch)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPartition]:
    return [message for message in messages if isinstance(message, StagedPartition)]


class BatchWriter(DataSourceArrowWriter):
    """One write is one batch. Without the option producerId its producer id is random. A repeated write with
    the same producerId, and in `foreachBatch` the same batch number, publishes the missing appends of the
    first one."""

    def __init__(self, write: StagedWrite) -> None:
        self._write = write
        self._batch = write.options.batch or 0
        self._repeatable = write.options.producer_id is not None
        if not self._repeatable:
            write.options = replace(write.options, producer_id=f"write-{uuid.uuid4().hex}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.stage(self._write.pieces_of_batches(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            self._write.publish(messages, self._batch)
        except Exception as fault:
            producer_id = self._write.options.producer_id
            fault.add_note(
                f"Some rows may be in the streams. Write again with producerId={producer_id}"
                " to append the missing rows only."
            )
            raise
        if not self._repeatable:
            self._write.forget(self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._write.discard(messages, self._batch)


class StreamWriter(_StreamWriterBase):
    def __init__(self, write: StagedWrite) -> None:
        self._write = write

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        pieces_of = self._write.pieces_of_batches if _GETS_ARROW else self._write.pieces_of_rows
        return self._write.stage(pieces_of(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._write.publish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._write.discard(messages, batchId)


def plan_write(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool = False, streaming: bool = False
) -> StagedWrite:
    """Plan a write. Raises InvalidOptions with all faults."""
    faults_of = partial(write_faults, schema, overwrite=overwrite, streaming=streaming)
    options = parse_write_options(given, faults_of=faults_of)
    return StagedWrite(options, schema, resolve_content_type(options))
