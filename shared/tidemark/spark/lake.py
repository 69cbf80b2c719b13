"""The archive as an Iceberg table: tasks write Parquet files, and the driver commits them with pyiceberg.

A batch of the archive is one snapshot, without a jar. Files left by a crash are in no snapshot. The table is
partitioned by bucket and day. Files have the table's field ids; files of older releases, which
have none, are read by the table's name mapping. The driver opens no file: tasks return the statistics. A file
has the rows of adjacent streams, each in order, so statistics of files and row groups find a stream's rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from botocore.exceptions import ClientError
from pyarrow.fs import LocalFileSystem
from pyiceberg import transforms, types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.io import pyarrow as iceberg
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.typedef import Record

from tidemark.spark.lake_files import LAKE_COLUMNS, FilesPlace, FilesWritten, WrittenFile, schema_with
from tidemark.spark.reach import REACH, TAG, ArchiveBatch, Reach, reach_of, reaches_of, write_reach

SCHEMA: Final = iceberg.pyarrow_to_schema(
    schema_with({name: number for number, name in enumerate(LAKE_COLUMNS, 1)})
)
#: Iceberg's table property for the number of snapshots to keep.
KEPT_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
#: Attempts of a commit that conflicts with other writers.
_TRIES: Final = 20
_PARTITIONS: Final = PartitionSpec(
    PartitionField(SCHEMA.find_field("bucket").field_id, 1000, transforms.IdentityTransform(), "bucket"),
    PartitionField(SCHEMA.find_field("time").field_id, 1001, transforms.DayTransform(), "day"),
)
_PROPERTIES: Final = {
    # A commit checks first whether the batch still follows the table, so pyiceberg must not retry.
    "commit.retry.num-retries": "0",
    # By default all versions of the metadata stay, each with all snapshots.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    # By default bounds are cut after 16 characters, but many stream names share a longer prefix.
    "write.metadata.metrics.column.stream": "full",
    "write.metadata.metrics.column.value": "none",
}


class NoLakeTable(ValueError):
    """The catalog has no such table, or the archive cannot write to it."""


class NoCatalog(ValueError):
    """The catalog cannot be opened with these properties."""


class LakeTable:
    """The archive's table `namespace.table`. `properties` of the catalog are added to pyiceberg's own
    configuration. Raises NoCatalog."""

    def __init__(self, catalog: str, properties: Mapping[str, str], identifier: str) -> None:
        with _explained(catalog):
            self._catalog = _open(catalog, properties)
        self._name, self._identifier = catalog, identifier

    def load(self) -> Table:
        """Load the current table. Raises NoLakeTable."""
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError as fault:
            what = (
                f"tidemark: the catalog {self._name} has no table {self._identifier} (a catalog of type=sql"
            )
            raise NoLakeTable(f"{what} has only the tables that were made under its own name)") from fault

    def ensure(self) -> None:
        """Create the table if it is missing, and add columns that it lacks. Raises NoLakeTable if the archive
        cannot write to it."""
        namespace = self._identifier.rpartition(".")[0]
        # Some roles may use a Glue database but not create one.
        if not self._catalog.namespace_exists(namespace):
            self._catalog.create_namespace_if_not_exists(namespace)
        with _explained(self._name):
            try:
                # A failed creation leaves a metadata file behind.
                table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                table = self._catalog.create_table_if_not_exists(
                    self._identifier, SCHEMA, partition_spec=_PARTITIONS, properties=_PROPERTIES
                )
        partition_of(table, "", None)
        try:
            with table.transaction() as transaction, transaction.update_schema() as update:
                update.union_by_name(SCHEMA)
                for field in table.schema().fields:
                    if field.required and field.name not in LAKE_COLUMNS:
                        raise ValidationError(f"Column {field.name} is required, and must be optional")
                # Another program created the table, or the catalog did not store its properties.
                if not _PROPERTIES.items() <= table.properties.items():
                    transaction.set_properties(_PROPERTIES)
        except ValidationError as fault:
            why = f"tidemark: {self._identifier} cannot take the archive's rows: {fault}"
            raise NoLakeTable(why) from fault

    def place(self) -> FilesPlace:
        """Return a place for the files of a batch."""
        table, batch = self.load(), uuid.uuid4()
        uri = f"{table.location()}/data/{batch}"
        scheme, host, path = iceberg.PyArrowFileIO.parse_location(uri)
        if scheme == "file":
            # pyiceberg has its own class of local file systems, which each task would have to import.
            system = LocalFileSystem()
            system.create_dir(path.rpartition("/")[0])
        else:
            system = iceberg.PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, host)
        return FilesPlace(system, path, uri, {field.name: field.field_id for field in table.schema().fields})

    def add(self, place: FilesPlace, written: Sequence[FilesWritten], batch: ArchiveBatch) -> bool:
        """Commit a batch, which tasks have written. Returns False if the table's end is no longer the batch's
        start. Deletes the files if they are certainly not in the table."""
        try:
            for _ in range(_TRIES - 1):
                with suppress(CommitFailedException):
                    return self._add(place, written, batch)
            return self._add(place, written, batch)
        except (CommitFailedException, NoLakeTable):
            place.remove()
            raise

    def _add(self, place: FilesPlace, written: Sequence[FilesWritten], batch: ArchiveBatch) -> bool:
        table = self.load()
        now = reaches_of(table)
        if not batch.follows(now):
            place.remove()
            return False
        files = [data_file_of(table, file, batch.bucket) for each in written for file in each.files]
        reach = f"{table.location()}/metadata/reach-{uuid.uuid4()}.puffin"
        try:
            with table.transaction() as transaction:
                append = transaction.update_snapshot({REACH: reach}).merge_append()
                for file in files:
                    append.append_data_file(file)
                append.commit()
                statistics = write_reach(table, reach, append.snapshot_id, batch.added_to(now))
                transaction.update_statistics().set_statistics(statistics).commit()
                ManageSnapshots(transaction).create_tag(append.snapshot_id, TAG).commit()
        except CommitFailedException:
            # Only here: after any other error the commit may have succeeded.
            table.io.delete(reach)
            raise
        with suppress(CommitFailedException):  # The batch is committed. The next one expires snapshots.
            _expire(table)
        return True


def _open(catalog: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog. Retries once, because an SQL catalog creates its own tables when it is first opened,
    and a concurrent job may create them in between.

    A commit fails only if the table lacks its snapshot. A client that repeats a commit after a lost answer is
    refused for its own first one, and pyiceberg would delete files of the committed snapshot."""
    try:
        opened = load_catalog(catalog, **properties)
    except Exception as fault:
        if "already exists" not in str(fault):
            raise
        opened = load_catalog(catalog, **properties)
    commit = opened.commit_table

    def commit_table(table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        try:
            return commit(table, requirements, updates)
        except CommitFailedException:
            latest = opened.load_table(table.name())
            added = (each.snapshot.snapshot_id for each in updates if isinstance(each, AddSnapshotUpdate))
            if not any(map(latest.snapshot_by_id, added)):
                raise
            found = {"metadata": latest.metadata, "metadata-location": latest.metadata_location}
            return CommitTableResponse.model_validate(found)

    vars(opened)["commit_table"] = commit_table
    return opened


@contextmanager
def _explained(catalog: str) -> Iterator[None]:
    """Raise NoCatalog for errors of a misconfigured catalog. AWS and network errors pass through."""
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


def reaches_in(table: Table, bucket: str) -> dict[tuple[str, str], Reach]:
    """Return the reach in a bucket, by stream and incarnation."""
    return {key[1:]: reach for key, reach in reaches_of(table).items() if key[0] == bucket}


def partition_of(table: Table, bucket: str, day: int | None) -> Record:
    """Return the partition of a file whose rows have one bucket and one day. Raises NoLakeTable if the table
    is partitioned by anything else."""
    values: list[Any] = []
    for field in table.spec().fields:
        source, transform = table.schema().find_column_name(field.source_id), field.transform
        if str(transform) == "void":
            values.append(None)
        elif source == "bucket":
            values.append(transform.transform(types.StringType())(bucket))
        elif source == "time" and str(transform) in ("year", "month", "day"):
            values.append(transform.transform(types.DateType())(day))
        else:
            what = (
                f"tidemark: {'.'.join(table.name())} is partitioned by {field.name}, {transform} of {source}"
            )
            right = "one bucket and one day: partition by bucket, and by year, month or day of time"
            raise NoLakeTable(f"{what}, but a file of the archive has {right}")
    return Record(*values)


def data_file_of(table: Table, file: WrittenFile, bucket: str) -> DataFile:
    """Return a file's entry in the table's metadata. Raises NoLakeTable."""
    fields = file.footer.schema.to_arrow_schema()
    statistics = iceberg.data_file_statistics_from_parquet_metadata(
        file.footer,
        iceberg.compute_statistics_plan(table.schema(), table.properties),
        {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in fields},
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.uri,
        file_format=FileFormat.PARQUET,
        partition=partition_of(table, bucket, file.day),
        file_size_in_bytes=file.size,
        spec_id=table.spec().spec_id,
        **statistics.to_serialized_dict(),
    )


def _expire(table: Table) -> None:
    """Expire the oldest snapshots once there are twice as many as KEPT_SNAPSHOTS, and delete metadata files
    that only these had. Data files stay: an engine that replaces data files also removes them."""
    kept = int(table.properties.get(KEPT_SNAPSHOTS, 100))
    named = {ref.snapshot_id for ref in table.refs().values()}
    by_age = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    old = {each.snapshot_id for each in by_age[:-kept]} - named
    if len(old) < kept:
        return
    before = _metadata_of(table)
    table.maintenance.expire_snapshots().by_ids(list(old)).commit()
    for path in before - _metadata_of(table):
        table.io.delete(path)


def _metadata_of(table: Table) -> set[str]:
    """Return the paths of the files that the table's snapshots have, except data files."""
    paths = {each.statistics_path for each in table.metadata.statistics}
    for snapshot in table.snapshots():
        manifests = (manifest.manifest_path for manifest in snapshot.manifests(table.io))
        paths |= {snapshot.manifest_list, *manifests, *filter(None, [reach_of(snapshot)])}
    return paths
