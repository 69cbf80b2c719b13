"""The archive as an Iceberg table: tasks write Parquet files, and the driver commits them by pyiceberg.

No jar is needed. A batch of the archive is one snapshot. Its summary says how far the table has each stream
(`reach.py`). Files that a crash left behind are in no snapshot.

The table is partitioned by bucket and day. The partition's values are in the files too, because Iceberg takes
them from the files' statistics. A file has the rows of neighbouring streams, each in order, so a stream's
rows are found by the statistics of files and row groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from botocore.exceptions import ClientError
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from tidemark.spark.lake_files import LAKE_COLUMNS, FilesPlace
from tidemark.spark.reach import ArchiveBatch, Reach, Reaches, measure_reach, read_reach, write_reach

_TYPES: Final[Mapping[str, Any]] = {
    "STRING": StringType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestamptzType(),
    "BINARY": BinaryType(),
}
SCHEMA: Final = Schema(
    *(NestedField(number, name, _TYPES[kind]) for number, (name, kind) in enumerate(LAKE_COLUMNS.items(), 1))
)
#: Iceberg's own property of a table.
KEPT_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
#: Of a snapshot's summary: the file that says how far the table has each stream (`reach.py`).
REACH: Final = "tidemark.reach"
#: How often a commit is tried where other writers are faster.
_TRIES: Final = 20
_PARTITIONS: Final = PartitionSpec(
    PartitionField(SCHEMA.find_field("bucket").field_id, 1000, IdentityTransform(), "bucket"),
    PartitionField(SCHEMA.find_field("time").field_id, 1001, DayTransform(), "day"),
)
_PROPERTIES: Final = {
    # Every commit of ours looks first whether it is still wanted, so pyiceberg must not repeat it by itself.
    "commit.retry.num-retries": "0",
    # By default all versions of the metadata stay, and each names each snapshot and manifest.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    # By default bounds are cut after 16 characters, and many names begin alike.
    "write.metadata.metrics.column.stream": "full",
    "write.metadata.metrics.column.value": "none",
}


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

    def place(self) -> FilesPlace:
        """Where tasks write files of the table."""
        table = self.load()
        uri = f"{table.location()}/data"
        scheme, host, path = PyArrowFileIO.parse_location(uri)
        if scheme != "file":
            return FilesPlace(PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, host), path, uri)
        # pyiceberg has a class of its own, which each task would have to import.
        local = LocalFileSystem()
        local.create_dir(path)
        return FilesPlace(local, path, uri)

    def add(self, files: Sequence[str], batch: ArchiveBatch, begins: Mapping[tuple[str, str], str]) -> bool:
        """Commit a batch, whose rows are in these files. Returns False, and deletes them, where the table
        does not end any more where the batch begins."""

        def add(table: Table) -> bool:
            now = reaches_of(table)
            if not batch.follows(now):
                return False
            place = write_reach(table, batch.added_to(now, begins))
            try:
                with table.transaction() as transaction:
                    transaction.add_files(list(files), {REACH: place}, check_duplicate_files=False)
            except CommitFailedException:
                # After any other error the snapshot may be there.
                table.io.delete(place)
                raise
            _expire(table)
            return True

        is_added = self._commit(add)
        if not is_added:
            io = self.load().io
            for path in files:
                io.delete(path)
        return is_added

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

        for _ in range(_TRIES - 1):
            with suppress(CommitFailedException):
                return commit()
        return commit()


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


def reaches_of(table: Table) -> Reaches:
    """How far the table, as it was loaded, has each stream. Reads rows only where no snapshot says it."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        # One of another engine's, as a compaction, changes no row.
        place = snapshot.summary.additional_properties.get(REACH) if snapshot.summary else None
        if place is not None:
            reaches = read_reach(table, place)
            if reaches is not None:
                return reaches
            break
    return measure_reach(table)


def reaches_in(table: Table, bucket: str) -> dict[tuple[str, str], Reach]:
    """Those of a bucket, by stream and incarnation."""
    return {key[1:]: reach for key, reach in reaches_of(table).items() if key[0] == bucket}


def files_in(table: Table) -> list[str]:
    """The files of the table, as it was loaded."""
    return [task.file.file_path for task in table.scan().plan_files()]


def _expire(table: Table) -> None:
    """Forget the oldest snapshots once there are twice as many as are kept, and delete the metadata that only
    they had. Data files stay: an engine that replaces them removes them too."""
    kept = int(table.properties.get(KEPT_SNAPSHOTS, 100))
    named = {ref.snapshot_id for ref in table.refs().values()}
    by_age = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    old = {each.snapshot_id for each in by_age[:-kept]} - named
    if len(old) < kept:
        return
    unused = _metadata_of(table, old) - _metadata_of(table, {each.snapshot_id for each in by_age} - old)
    table.maintenance.expire_snapshots().by_ids(list(old)).commit()
    # A catalog may pass over what it does not know.
    if old.isdisjoint(each.snapshot_id for each in table.snapshots()):
        for path in unused:
            table.io.delete(path)


def _metadata_of(table: Table, snapshots: Collection[int]) -> set[str]:
    """The files that they name, but for those of data."""
    paths = set()
    for snapshot in table.snapshots():
        if snapshot.snapshot_id in snapshots:
            reach = snapshot.summary.additional_properties.get(REACH) if snapshot.summary else None
            manifests = (manifest.manifest_path for manifest in snapshot.manifests(table.io))
            paths |= {snapshot.manifest_list, *manifests, *filter(None, [reach])}
    return paths
