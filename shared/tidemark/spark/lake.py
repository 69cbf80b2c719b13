"""The archive as an Iceberg table: executors write Parquet files, and the driver commits them by pyiceberg.

No jar is needed. A batch of the archive is one snapshot. The last batch of each query is a property of the
table that changes with the snapshot, in one commit: so a batch that is repeated, after a crash at whatever
place, is recognised, also when its snapshot has expired. Files that a crash left behind are in no snapshot.

The table is partitioned by bucket and day. The partition's values are in the files too, because Iceberg takes
them from the files' statistics. Each file is sorted by stream and offset, so a stream's rows are found by the
statistics of files and row groups.

How far the table reaches in each stream is recorded beside it, before the commit that adds the rows: what
belongs to a snapshot are the rows of its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from botocore.exceptions import ClientError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from tidemark.spark.lake_files import (
    ALL,
    EXPRESSIONS,
    FILE_ORDER,
    SCHEMA,
    added_files,
    expire,
    files_in,
    read_files,
    small_files,
    write_files,
)
from tidemark.spark.side_tables import (
    CLOSED_SCHEMA,
    NO_RETRIES,
    OLDER,
    REACH_SCHEMA,
    Reaches,
    SideTable,
    committed_reach,
    join_reaches,
    measure_reach,
    merge_reach,
    until_written,
)

_PARTITIONS: Final = PartitionSpec(
    PartitionField(SCHEMA.find_field("bucket").field_id, 1000, IdentityTransform(), "bucket"),
    PartitionField(SCHEMA.find_field("time").field_id, 1001, DayTransform(), "day"),
)
_PROPERTIES: Final = {
    # Every commit of ours looks first whether it is still wanted, so pyiceberg must not repeat it by itself.
    **NO_RETRIES,
    # By default bounds are cut after 16 characters, and many names begin alike.
    "write.metadata.metrics.column.stream": "full",
    "write.metadata.metrics.column.value": "none",
}


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
            self._catalog = _open(catalog, properties)
        self._name, self._identifier = catalog, identifier
        self._closed = SideTable(self._catalog, f"{identifier}_closed", CLOSED_SCHEMA)
        self._reach = SideTable(self._catalog, f"{identifier}_reach", REACH_SCHEMA)

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
            table = self._load_or_create()
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
        spark = rows.sparkSession
        self._record_older(spark, table)
        frame = rows.selectExpr(*(f"{expression} AS {name}" for name, expression in EXPRESSIONS.items()))
        files = write_files(frame, table, f"{query}-{batch}")
        if not files:
            if self.last_batch(query) < 0:
                self._commit(lambda table: _note(table, query, batch))
            return []
        self._record(measure_reach(read_files(spark, files)), query, batch)

        def add(table: Table) -> bool:
            if _is_committed(table, query, batch):
                return False
            told = {"tidemark.query": query, "tidemark.batch": str(batch), "tidemark.files": str(len(files))}
            with table.transaction() as transaction:
                transaction.add_files(files, snapshot_properties=told, check_duplicate_files=False)
                transaction.set_properties(_noted(query, batch))
            return True

        return files if self._commit(add) else _files_of(self.load(), query, batch)

    def last_batch(self, query: str) -> int:
        """The newest that it has of this query; -1 if it has none."""
        return _last_batches(self.load()).get(query, -1)

    def compact(self, spark: Any, target_bytes: int) -> tuple[int, int]:
        """Put small files of a partition together, in files of about the target, no two of which have the
        same stretch of a stream. How many files became how many."""
        table = self.load()
        old: list[Any] = []
        new: list[str] = []
        for group in small_files(table, target_bytes):
            old += group
            size = sum(file.file_size_in_bytes for file in group)
            frame = read_files(spark, [file.file_path for file in group])
            count = max(1, round(size / target_bytes))
            frame = frame.coalesce(1) if count == 1 else frame.repartitionByRange(count, *FILE_ORDER)
            new += write_files(frame, table, "compacted")

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
        return expire(self.load(), before)

    def files(self, wanted: BooleanExpression = ALL) -> list[str]:
        """The files that may have wanted rows."""
        return files_in(self.load(), wanted)

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
        if streams:
            known = set(self.closed_streams(streams[0].bucket))
            self._closed.append([vars(each) for each in streams if each not in known])

    def closed_streams(self, bucket: str, stream: str | None = None) -> list[ClosedStream]:
        """The closed streams of a bucket, or those that had this name in it."""
        wanted: BooleanExpression = EqualTo("bucket", bucket)
        if stream is not None:
            wanted = And(wanted, EqualTo("stream", stream))
        return [ClosedStream(**row) for row in self._closed.rows(wanted)]

    def compact_sides(self, before: datetime) -> None:
        """Compact the tables beside this one."""
        self._closed.compact(lambda rows: rows.group_by(rows.column_names).aggregate([]), before)
        last_batches = _last_batches(self.load())
        self._reach.compact(lambda rows: merge_reach(rows, last_batches), before)

    def reach(self, spark: Any, table: Table, bucket: str) -> Reaches:
        """How far the table, as it was loaded, reaches in each stream of the bucket. Reads rows only where
        that was not recorded."""
        wanted = EqualTo("bucket", bucket)
        rows: Sequence[Mapping[str, Any]] | None = None
        if _is_recorded(table):
            rows = committed_reach(self._reach.rows(wanted), _last_batches(table))
        if rows is None:
            files = files_in(table, wanted)
            rows = measure_reach(read_files(spark, files)) if files else []
        return join_reaches([row for row in rows if row["bucket"] == bucket])

    def _record(self, rows: Sequence[Mapping[str, Any]], query: str, batch: int) -> None:
        told = {"query": query, "first_batch": batch, "last_batch": batch}
        self._reach.append([{**row, **told} for row in rows])

    def _record_older(self, spark: Any, table: Table) -> None:
        """Of a table whose batches were not recorded, measure once how far it reaches."""
        files = [] if _is_recorded(table) else files_in(table)
        if not files:
            return
        self._record(measure_reach(read_files(spark, files)), OLDER, 0)
        known = {f"{_RECORDED}{query}": str(batch) for query, batch in _last_batches(table).items()}

        def note(table: Table) -> bool:
            with table.transaction() as transaction:
                transaction.set_properties(known)
            return True

        if known:
            self._commit(note)

    def _load_or_create(self) -> Table:
        """Loads first: creating a table that exists would leave a metadata file behind each time."""
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return self._catalog.create_table_if_not_exists(
                self._identifier, SCHEMA, partition_spec=_PARTITIONS, properties=_PROPERTIES
            )

    def _commit(self, change: Callable[[Table], bool]) -> bool:
        """Make a change to the table; whether it was made."""

        def commit() -> bool:
            table = self.load()
            # Somebody else made the table, or the catalog did not keep what it was made with.
            if not _PROPERTIES.items() <= table.properties.items():
                with table.transaction() as transaction:
                    transaction.set_properties(_PROPERTIES)
            return change(table)

        return until_written(commit)


def _open(catalog: str, properties: Mapping[str, str]) -> Catalog:
    """A catalog of SQL makes its tables when it is opened first: of two jobs that do that at once, one finds
    the other's."""
    try:
        return load_catalog(catalog, **properties)
    except Exception as fault:
        if "already exists" not in str(fault):
            raise
        return load_catalog(catalog, **properties)


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


#: Properties of the table, with the query's id behind them.
_LAST_BATCH: Final = "tidemark.last-batch."
#: The last batch whose reach is recorded. Versions without that record do not set it.
_RECORDED: Final = "tidemark.reach."


def _noted(query: str, batch: int) -> dict[str, str]:
    return {f"{_LAST_BATCH}{query}": str(batch), f"{_RECORDED}{query}": str(batch)}


def _last_batches(table: Table, prefix: str = _LAST_BATCH) -> dict[str, int]:
    """The last batch of each query."""
    told = table.properties.items()
    return {name.removeprefix(prefix): int(value) for name, value in told if name.startswith(prefix)}


def _is_recorded(table: Table) -> bool:
    """Whether how far it reaches is known of each of its batches. Of rows that no query brought it is not."""
    known = _last_batches(table)
    return bool(known) and known == _last_batches(table, _RECORDED)


def _is_committed(table: Table, query: str, batch: int) -> bool:
    return _last_batches(table).get(query, -1) >= batch


def _note(table: Table, query: str, batch: int) -> bool:
    """A query's first batch has no rows: note it all the same, so that the table knows the query."""
    with table.transaction() as transaction:
        transaction.set_properties(_noted(query, batch))
    return True


def _files_of(table: Table, query: str, batch: int) -> list[str]:
    """The files of a committed batch; none if its snapshot has expired."""
    wanted = {"tidemark.query": query, "tidemark.batch": str(batch)}
    for snapshot in table.snapshots():
        told = snapshot.summary.additional_properties if snapshot.summary else {}
        if wanted.items() <= told.items():
            return added_files(table, snapshot)
    return []
