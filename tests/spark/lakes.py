"""A table of a catalog in SQLite, and what each engine reads there."""

import hashlib
import os
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from tests.spark.duckdb_iceberg import connect_duckdb
from tidemark.spark.lake import LakeTable
from tidemark.spark.lake_files import FilesWritten, write_files
from tidemark.spark.options.read import COLUMNS
from tidemark.spark.reach import ArchiveBatch, Reach
from tidemark.spark.readers.columns import ARROW_SCHEMA, make_batch
from tidemark.spark.readers.port import Position

#: How many rows there are, and a digest of all of them.
Content = tuple[int, str]


def digest(rows: list[tuple[str, str, bytes]]) -> Content:
    whole = hashlib.sha256()
    for stream, offset, value in sorted(rows):
        whole.update(orjson.dumps([stream, offset, bytes(value).hex()]))
    return len(rows), whole.hexdigest()


class Lake:
    """A table of a catalog in SQLite, and what each engine reads there."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        self.given = ["--iceberg", "lake.messages"]
        for name, value in self.properties.items():
            self.given += ["--catalog-property", f"{name}={value}"]

    @property
    def directory(self) -> Path:
        """Of the table's own files."""
        return Path(self.table.location().removeprefix("file://"))

    @property
    def table(self) -> Any:
        return load_catalog("default", **self.properties).load_table("lake.messages")

    def ensured(self) -> LakeTable:
        table = LakeTable("default", self.properties, "lake.messages")
        table.ensure()
        return table

    @property
    def files(self) -> list[str]:
        return [task.file.file_path for task in self.table.scan().plan_files()]

    def rewrite(self) -> None:
        """As another engine compacts it: the rows of a partition in one new file, and a snapshot without our
        summary."""
        table = self.table
        old: dict[str, list[Any]] = {}
        for task in table.scan().plan_files():
            old.setdefault(str(task.file.partition), []).append(task.file)
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for files in old.values():
                place = self.directory / "data" / f"rewritten-{os.urandom(4).hex()}.parquet"
                rows = (pq.read_table(file.file_path.removeprefix("file:")) for file in files)
                pq.write_table(pa.concat_tables(rows), place)
                for file in files:
                    overwrite.delete_data_file(file)
                for file in parquet_files_to_data_files(table.io, table.metadata, iter([f"file://{place}"])):
                    overwrite.append_data_file(file)

    def maintain(self) -> None:
        """As another engine maintains it: expire every snapshot that no branch or tag names, then delete the
        files that nothing names."""
        self.table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
        table = self.table
        kept = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
        kept |= {each.statistics_path for each in table.metadata.statistics}
        for snapshot in table.snapshots():
            kept.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                entries = manifest.fetch_manifest_entry(table.io)
                kept |= {manifest.manifest_path, *(entry.data_file.file_path for entry in entries)}
        for path in self.directory.rglob("*.*"):
            if path.is_file() and f"file://{path}" not in kept:
                path.unlink()

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.scan().to_arrow().to_pylist()
        return found

    def by_pyarrow(self) -> Content:
        found = self.table.scan(selected_fields=("stream", "offset", "value")).to_arrow().to_pylist()
        return digest([(row["stream"], row["offset"], row["value"]) for row in found])

    def by_polars(self) -> Content:
        import polars as pl

        with warnings.catch_warnings():
            # It can plan by a package of its own, which is not needed for correctness.
            warnings.simplefilter("ignore")
            found = pl.scan_iceberg(self.table).select("stream", "offset", "value").collect()
        return digest(found.rows())

    def by_duckdb(self) -> Content:
        """By its own Iceberg extension, which is told the table's metadata file alone."""
        return digest(self.ask_duckdb('SELECT stream, "offset", value FROM {}'))

    def ask_duckdb(self, query: str) -> list[Any]:
        scan = f"iceberg_scan('{self.table.metadata_location}')"
        with connect_duckdb() as duckdb:
            found: list[Any] = duckdb.execute(query.format(scan)).fetchall()
        return found

    def by_spark(self, spark: Any) -> Content:
        found = spark.read.parquet(*self.files).select("stream", "offset", "value").collect()
        return digest([(row["stream"], row["offset"], bytes(row["value"])) for row in found])


def batch(number: int, stream: str = "s") -> ArchiveBatch:
    """Of one stream, a message long."""
    start = {stream: Position(f"{number:016}")}
    known = {("v1", stream, ""): Reach(f"{0:016}", f"{number:016}")} if number else {}
    return ArchiveBatch("v1", start, {stream: Position(f"{number + 1:016}")}, {}, known)


def add(table: LakeTable, planned: ArchiveBatch, *columns: Mapping[str, Any]) -> bool:
    """Add rows that a batch has read, by their columns, each of one stream."""
    place = table.place()
    return table.add(place, [FilesWritten(write_files(map(made, columns), place), {})], planned)


def add_message(table: LakeTable, number: int, value: bytes = b"x") -> bool:
    return add(table, batch(number), {"value": [value]})


def made(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """What is not given is the same in every row."""
    names = [name for name in COLUMNS if name not in {"type", "headers"}]
    alike = {"bucket": "v1", "stream": columns.get("stream", "s"), "offset": "0", "end_offset": "1"}
    alike |= {"position": 0, "timestamp": datetime(2026, 11, 1, tzinfo=UTC)}
    given = {
        each: pa.array(columns[each], ARROW_SCHEMA.field(each).type) for each in columns.keys() - {"stream"}
    }
    return make_batch(names, len(columns["value"]), alike, given)
