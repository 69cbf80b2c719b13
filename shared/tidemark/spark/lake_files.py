"""The rows of the lake as Parquet files. Spark's tasks, or one process, write the Arrow batches of a read;
Spark reads the files.

Every task imports this module, so it must not import pyiceberg, which takes 1.4 s of CPU.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSelector

from tidemark.spark.options.read import ReadOptions
from tidemark.spark.readers import connect
from tidemark.spark.readers.columns import ARROW_TYPES
from tidemark.spark.readers.port import StreamPartition

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

Parts = Sequence[StreamPartition]
#: The columns of the table with their Spark types. Add new columns at the end: the next archive run adds them
#: to an older table, whose old rows have null there.
LAKE_COLUMNS: Final = {
    "bucket": "STRING",
    "stream": "STRING",
    "incarnation": "STRING",
    "offset": "STRING",
    "end_offset": "STRING",
    "position": "INT",
    "time": "TIMESTAMP",
    "content_type": "STRING",
    "value": "BINARY",
    "bytes": "BIGINT",
    "key": "STRING",
    "producer_id": "STRING",
    "producer_epoch": "BIGINT",
    "producer_seq": "BIGINT",
}
#: The schema for Spark's reader, which finds columns by name and fills missing columns with null.
SPARK_SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in LAKE_COLUMNS.items())
#: Bytes of a row group in memory. Readers without page indexes can only skip whole row groups.
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: Limit of all open row groups of a task, in bytes. A task has a file for each day of its streams.
HELD_BYTES: Final = 128 * 1024 * 1024
#: Approximate memory of an empty Arrow batch, in bytes.
_BATCH_BYTES: Final = 4096
#: Columns with few distinct values, for dictionary encoding. For other columns a dictionary only costs time.
_ALIKE: Final = sorted(LAKE_COLUMNS.keys() - {"offset", "end_offset", "value", "key", "producer_seq"})
_ARROW_SCHEMA: Final = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in LAKE_COLUMNS.items()])


def schema_with(ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of the files, with these field ids by column."""
    return pa.schema(
        field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) for field in _ARROW_SCHEMA
    )


@dataclass(frozen=True)
class FilesPlace:
    """A place for the files of one batch: the prefix of their paths in a file system of pyarrow, and of their
    URIs. `ids` has the table's field ids by column."""

    system: Any
    path: str
    uri: str
    ids: Mapping[str, int]

    def remove(self) -> None:
        """Delete the batch's files, also those of tasks that failed. The files must not be in the table."""
        directory, _, prefix = self.path.rpartition("/")
        for file in self.system.get_file_info(FileSelector(directory, allow_not_found=True)):
            if file.base_name.startswith(prefix):
                self.system.delete_file(file.path)


@dataclass(frozen=True)
class WrittenFile:
    """A file in no snapshot yet, with its size in bytes and the statistics in its footer. Its rows have one
    day, in days since 1970, or no time."""

    uri: str
    day: int | None
    size: int
    footer: parquet.FileMetaData


@dataclass(frozen=True)
class FilesWritten:
    """The files that a task wrote, and the bytes that it did not find, by stream."""

    files: list[WrittenFile]
    lost: dict[str, int]


class _File:
    """An open file. It collects rows in memory until they fill a row group."""

    def __init__(self, place: FilesPlace, day: int | None) -> None:
        name = f"{uuid.uuid4()}.parquet"
        self.held_bytes, self._day = 0, day
        self._uri, self._held = f"{place.uri}-{name}", list[pa.RecordBatch]()
        self._stream = place.system.open_output_stream(f"{place.path}-{name}")
        self._footers: list[parquet.FileMetaData] = []
        self._writer = parquet.ParquetWriter(
            self._stream,
            schema_with(place.ids),
            metadata_collector=self._footers,
            compression="zstd",
            use_dictionary=_ALIKE,
            write_statistics=[name for name in LAKE_COLUMNS if name != "value"],
            write_page_index=True,
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self.held_bytes += rows.nbytes + _BATCH_BYTES
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows as a row group."""
        if self._held:
            rows = pa.Table.from_batches(self._held)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._held, self.held_bytes = [], 0

    def close(self) -> WrittenFile:
        self.flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return WrittenFile(self._uri, self._day, size, self._footers[0])


def write_partitions(options: ReadOptions, place: FilesPlace, parts: Parts) -> FilesWritten:
    """Read the partitions and write their rows. Raises DataLoss."""
    reader = connect(options.connection)
    files = write_files(reader.read_all(parts, options.columns), place)
    return FilesWritten(files, {name: size for (name, _), size in reader.lost.items()})


def write_files(batches: Iterable[pa.RecordBatch], place: FilesPlace) -> list[WrittenFile]:
    """Write the rows of a read in order, one file for each day. The files are in no snapshot yet; a killed
    process leaves orphan files."""
    files: dict[int | None, _File] = {}
    for batch in batches:
        for day, rows in _by_day(_as_in_lake(batch)):
            if day not in files:
                files[day] = _File(place, day)
            files[day].add(rows)
        if sum(each.held_bytes for each in files.values()) > HELD_BYTES:
            max(files.values(), key=lambda each: each.held_bytes).flush()
    return [file.close() for file in files.values()]


def _as_in_lake(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert to the columns of the table; null where the batch lacks a column."""
    names = ["time" if name == "timestamp" else name for name in batch.schema.names]
    found = dict(zip(names, batch.columns, strict=True))
    found["bytes"] = pc.binary_length(found["value"]).cast(pa.int64())
    for field in _ARROW_SCHEMA:
        found.setdefault(field.name, pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays([found[name] for name in LAKE_COLUMNS], schema=_ARROW_SCHEMA)


def _by_day(rows: pa.RecordBatch) -> Iterable[tuple[int | None, pa.RecordBatch]]:
    """Split the rows by day, in days since 1970; None for rows without a time."""
    days = rows["time"].cast(pa.date32()).cast(pa.int32())
    found = pc.unique(days).to_pylist()
    if len(found) == 1:
        return [(found[0], rows)]
    return [(day, rows.filter(pc.is_null(days) if day is None else pc.equal(days, day))) for day in found]


def read_files(spark: Any, files: Sequence[DataFile]) -> Any:
    """Return the rows of the files, with Spark's reader; null where a file lacks a column."""
    return spark.read.schema(SPARK_SCHEMA).parquet(*(file.file_path for file in files))
