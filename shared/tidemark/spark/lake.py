"""The archive as an Iceberg table: executors write Parquet files, and the driver commits them by pyiceberg.

No jar is needed. A batch of the archive is one snapshot. The last batch of each query is a property of the
table that changes with the snapshot, in one commit: so a batch that is repeated, after a crash at whatever
place, is recognised, also when its snapshot has expired. Files that a crash left behind are in no snapshot;
`remove_orphans` deletes them.

The table is partitioned by bucket and day. The partition's values are in the files too, because Iceberg takes
them from the files' statistics.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from botocore.exceptions import ClientError
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_files_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

_ALL: Final = AlwaysTrue()

#: The columns of the table, by their expressions over the rows of the data source. New ones are added at the
#: end: a table of an older version gets them when the archive runs next, and its old rows have null there.
EXPRESSIONS: Final = {
    "bucket": "bucket",
    "stream": "stream",
    "incarnation": "incarnation",
    "offset": "offset",
    "end_offset": "end_offset",
    "position": "position",
    "time": "timestamp",
    "content_type": "content_type",
    "value": "value",
    "bytes": "CAST(length(value) AS BIGINT)",
    "key": "key",
}
_TYPES: Final[Mapping[str, Any]] = {
    "position": IntegerType(),
    "time": TimestamptzType(),
    "value": BinaryType(),
    "bytes": LongType(),
}
_SPARK_TYPES: Final = {"position": "INT", "time": "TIMESTAMP", "value": "BINARY", "bytes": "BIGINT"}
SCHEMA: Final = Schema(
    *(NestedField(number, name, _TYPES.get(name, StringType())) for number, name in enumerate(EXPRESSIONS, 1))
)
_PARTITIONS: Final = PartitionSpec(
    PartitionField(SCHEMA.find_field("bucket").field_id, 1000, IdentityTransform(), "bucket"),
    PartitionField(SCHEMA.find_field("time").field_id, 1001, DayTransform(), "day"),
)
#: Every commit of ours looks first whether it is still wanted, so pyiceberg must not repeat it by itself.
_PROPERTIES: Final = {"commit.retry.num-retries": "0"}
_TRIES: Final = 20
#: As Spark reads the files: by name, whatever columns a file has.
SPARK_SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'STRING')}" for name in EXPRESSIONS)

#: Streams that are closed, in a table of its own beside that of the messages: closing brings no message.
CLOSED_SCHEMA: Final = Schema(
    *(
        NestedField(number, name, StringType())
        for number, name in enumerate(("bucket", "stream", "incarnation", "offset", "content_type"), 1)
    )
)
#: The table of closed streams is written anew once it has more files.
_CLOSED_FILES: Final = 20


@dataclass(frozen=True)
class ClosedStream:
    """A stream that was closed at `offset`, its tail."""

    bucket: str
    stream: str
    incarnation: str
    offset: str
    content_type: str


class NoLakeTable(ValueError):
    """The catalog has no such table."""


class NoCatalog(ValueError):
    """The catalog cannot be opened with these properties."""


class LakeTable:
    """`identifier` is `namespace.table`; `properties` are the catalog's, as pyiceberg knows them, in addition
    to those of its own configuration. Raises NoCatalog."""

    def __init__(self, catalog: str, properties: Mapping[str, str], identifier: str) -> None:
        with _explained(catalog):
            self._catalog = load_catalog(catalog, **properties)
        self._name, self._identifier = catalog, identifier

    def load(self) -> Table:
        """The table as it is now. Raises NoLakeTable."""
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError as fault:
            raise NoLakeTable(f"tidemark: the catalog has no table {self._identifier}") from fault

    def ensure(self) -> None:
        """The table is there, with all columns of this version."""
        namespace = self._identifier.rpartition(".")[0]
        # Some roles may use a Glue database but not create one.
        if not self._catalog.namespace_exists(namespace):
            self._catalog.create_namespace_if_not_exists(namespace)
        with _explained(self._name):
            table = self._load_or_create(
                self._identifier, SCHEMA, partition_spec=_PARTITIONS, properties=_PROPERTIES
            )
        missing = [field for field in SCHEMA.fields if field.name not in table.schema().column_names]
        if missing:
            with table.update_schema() as update:
                for field in missing:
                    update.add_column(field.name, field.field_type)

    def write_batch(self, rows: Any, query: str, batch: int) -> list[str]:
        """The files of the batch, which are committed now or were before. `rows` are the data source's, in a
        session that writes timestamps as TIMESTAMP_MICROS."""
        table = self.load()
        if _is_committed(table, query, batch):
            return _files_of(table, query, batch)
        frame = rows.selectExpr(*(f"{expression} AS {name}" for name, expression in EXPRESSIONS.items()))
        files = write_files(frame, table, f"{query}-{batch}")
        if not files:
            if self.last_batch(query) < 0:
                self._commit(lambda table: _note(table, query, batch))
            return []

        def add(table: Table) -> bool:
            if _is_committed(table, query, batch):
                return False
            told = {"tidemark.query": query, "tidemark.batch": str(batch), "tidemark.files": str(len(files))}
            with table.transaction() as transaction:
                transaction.add_files(files, snapshot_properties=told, check_duplicate_files=False)
                transaction.set_properties({_property_of(query): str(batch)})
            return True

        return files if self._commit(add) else _files_of(self.load(), query, batch)

    def last_batch(self, query: str) -> int:
        """The newest that it has of this query; -1 if it has none."""
        return int(self.load().properties.get(_property_of(query), -1))

    def compact(self, spark: Any, target_bytes: int) -> tuple[int, int]:
        """Put small files of a partition together, up to about the target. How many files became how many."""
        table = self.load()
        old: list[Any] = []
        new: list[str] = []
        for group in small_files(table, target_bytes):
            old += group
            frame = spark.read.schema(SPARK_SCHEMA).parquet(*(file.file_path for file in group))
            ordered = frame.coalesce(1).sortWithinPartitions("stream", "incarnation", "offset", "position")
            new += write_files(ordered, table, "compacted")

        def replace(table: Table) -> bool:
            there = {task.file.file_path for task in table.scan().plan_files()}
            if not old or not there.issuperset(file.file_path for file in old):
                return False
            with table.transaction() as transaction:
                told = {"tidemark.compacted": str(len(old))}
                with transaction.update_snapshot(snapshot_properties=told).overwrite() as overwrite:
                    for data_file in old:
                        overwrite.delete_data_file(data_file)
                    for data_file in parquet_files_to_data_files(table.io, table.metadata, iter(new)):
                        overwrite.append_data_file(data_file)
            return True

        return (len(old), len(new)) if self._commit(replace) else (0, 0)

    def expire(self, before: datetime) -> tuple[int, int]:
        """Forget snapshots that are older, and delete the files that only they had. How many of each."""
        return _expire(self.load(), before)

    def remove_orphans(self, before: datetime) -> int:
        """Delete the data files that no snapshot has, if they are older: runs that were killed left them. One
        that is younger may be of a run that has not committed yet. How many."""
        table = self.load()
        scheme, authority, directory = PyArrowFileIO.parse_location(f"{table.location()}/data")
        files = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, authority)
        found = files.get_file_info(FileSelector(directory, allow_not_found=True, recursive=True))
        # The files were listed before this refresh, so a file committed meanwhile counts as used.
        used = {PyArrowFileIO.parse_location(path)[2] for path in _all_files(table.refresh())}
        old = (each.path for each in found if each.is_file and each.mtime < before)
        orphans = [path for path in old if path not in used]
        for path in orphans:
            files.delete_file(path)
        return len(orphans)

    def files(self, wanted: BooleanExpression = _ALL) -> list[str]:
        """The files that may have wanted rows."""
        return [task.file.file_path for task in self.load().scan(row_filter=wanted).plan_files()]

    def files_of(self, bucket: str, stream: str) -> list[str]:
        """The files that may have rows of the stream."""
        return self.files(And(EqualTo("bucket", bucket), EqualTo("stream", stream)))

    def files_of_bucket(self, bucket: str, since: datetime | None = None) -> list[str]:
        """The files that may have rows of the bucket; with `since`, rows as young as that."""
        wanted: BooleanExpression = EqualTo("bucket", bucket)
        if since is not None:
            wanted = And(wanted, GreaterThanOrEqual("time", since.isoformat()))
        return self.files(wanted)

    def add_closed(self, streams: Sequence[ClosedStream]) -> None:
        """Those that the table of closed streams does not have yet, all of one bucket. After two runs at once
        one may be there twice, which means nothing else."""
        if not streams:
            return
        import pyarrow as pa

        table = self._load_or_create(self._closed, CLOSED_SCHEMA)
        known = set(self.closed_streams(streams[0].bucket))
        new = [vars(each) for each in streams if each not in known]
        if new:
            table.append(pa.Table.from_pylist(new, CLOSED_SCHEMA.as_arrow()))

    def closed_streams(self, bucket: str, stream: str | None = None) -> list[ClosedStream]:
        """The closed streams of a bucket, or those that had this name in it."""
        wanted: BooleanExpression = EqualTo("bucket", bucket)
        if stream is not None:
            wanted = And(wanted, EqualTo("stream", stream))
        try:
            table = self._catalog.load_table(self._closed)
        except NoSuchTableError:
            return []
        return [ClosedStream(**row) for row in table.scan(row_filter=wanted).to_arrow().to_pylist()]

    def compact_closed(self, before: datetime) -> None:
        """Compact the small files of closed streams into one. If an archive adds some meanwhile, the next run
        does it."""
        try:
            table = self._catalog.load_table(self._closed)
        except NoSuchTableError:
            return
        if len(list(table.scan().plan_files())) > _CLOSED_FILES:
            rows = table.scan().to_arrow().group_by(CLOSED_SCHEMA.column_names).aggregate([])
            with suppress(CommitFailedException):
                table.overwrite(rows)
        _expire(self._catalog.load_table(self._closed), before)

    @property
    def _closed(self) -> str:
        return f"{self._identifier}_closed"

    def _load_or_create(self, identifier: str, schema: Schema, **how: Any) -> Table:
        """Loads first: creating a table that exists would leave a metadata file behind each time."""
        try:
            return self._catalog.load_table(identifier)
        except NoSuchTableError:
            return self._catalog.create_table_if_not_exists(identifier, schema, **how)

    def _commit(self, change: Callable[[Table], bool]) -> bool:
        """Make a change to the table as it is now, again where another writer was faster."""

        def commit() -> bool:
            table = self.load()
            # Somebody else made the table, or the catalog did not keep what it was made with.
            if not _PROPERTIES.items() <= table.properties.items():
                with table.transaction() as transaction:
                    transaction.set_properties(_PROPERTIES)
            return change(table)

        for _ in range(_TRIES - 1):
            try:
                return commit()
            except CommitFailedException:
                continue
        return commit()


def write_files(frame: Any, table: Table, name: str) -> list[str]:
    """Parquet files of the rows in a new directory of the table, in no snapshot yet; each has rows of one
    partition. Spark's committer leaves out what killed tasks wrote."""
    directory = f"{table.location()}/data/{name}-{uuid.uuid4().hex}"
    parted = frame.selectExpr("*", "bucket AS _bucket", "to_date(time) AS _day")
    parted.write.partitionBy("_bucket", "_day").parquet(directory)
    found = frame.sparkSession.read.schema(SPARK_SCHEMA).parquet(directory).inputFiles()
    return sorted(found)


@contextmanager
def _explained(catalog: str) -> Iterator[None]:
    """Raise NoCatalog for errors of a misconfigured catalog. Errors of AWS and of the network pass
    through."""
    try:
        yield
    except (ClientError, OSError):
        raise
    except Exception as fault:
        first = (str(fault) or type(fault).__name__).splitlines()[0]
        raise NoCatalog(
            f"tidemark: the catalog {catalog} cannot be used ({first}): give its properties in pyiceberg's "
            "configuration or by --catalog-property: type=glue, or type=rest and uri, or type=sql, uri and "
            "warehouse"
        ) from fault


def _property_of(query: str) -> str:
    return f"tidemark.last-batch.{query}"


def _is_committed(table: Table, query: str, batch: int) -> bool:
    return int(table.properties.get(_property_of(query), -1)) >= batch


def _note(table: Table, query: str, batch: int) -> bool:
    """A query's first batch has no rows: note it all the same, so that the table knows the query."""
    with table.transaction() as transaction:
        transaction.set_properties({_property_of(query): str(batch)})
    return True


def _files_of(table: Table, query: str, batch: int) -> list[str]:
    """The files of a committed batch; none if its snapshot has expired."""
    wanted = {"tidemark.query": query, "tidemark.batch": str(batch)}
    for snapshot in table.snapshots():
        told = snapshot.summary.additional_properties if snapshot.summary else {}
        if wanted.items() <= told.items():
            return _added_files(table, snapshot)
    return []


def _added_files(table: Table, snapshot: Snapshot) -> list[str]:
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id in {None, snapshot.snapshot_id}
    ]


def _expire(table: Table, before: datetime) -> tuple[int, int]:
    snapshots, files = len(table.snapshots()), _all_files(table)
    table.maintenance.expire_snapshots().older_than(before).commit()
    table.refresh()
    unused = files - _all_files(table)
    for path in unused:
        table.io.delete(path)
    return snapshots - len(table.snapshots()), len(unused)


def _all_files(table: Table) -> set[str]:
    return set(table.inspect.all_data_files().column("file_path").to_pylist())


def small_files(table: Table, target_bytes: int) -> Iterable[list[Any]]:
    """Groups of at least two files of one partition that are less than half the target each and about the
    target together."""
    by_partition: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < target_bytes // 2:
            by_partition.setdefault(str(task.file.partition), []).append(task.file)
    for files in by_partition.values():
        group: list[Any] = []
        for file in sorted(files, key=lambda file: file.file_size_in_bytes):
            group.append(file)
            if sum(each.file_size_in_bytes for each in group) >= target_bytes:
                yield group
                group = []
        if len(group) > 1:
            yield group
