"""A table of a catalog in SQLite, and what each engine reads there."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import orjson
from pyiceberg.catalog import load_catalog

from pipeline.duckdb_iceberg import connect_duckdb

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

    @property
    def files(self) -> list[str]:
        return [task.file.file_path for task in self.table.scan().plan_files()]

    def closed(self) -> list[tuple[str, str]]:
        """Streams and where they were closed."""
        found = (
            load_catalog("default", **self.properties).load_table("lake.messages_closed").scan().to_arrow()
        )
        return sorted((row["stream"], row["offset"]) for row in found.to_pylist())

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
        query = 'SELECT stream, "offset", value FROM iceberg_scan(?)'
        with connect_duckdb() as duckdb:
            return digest(duckdb.execute(query, [self.table.metadata_location]).fetchall())

    def by_spark(self, spark: Any) -> Content:
        found = spark.read.parquet(*self.files).select("stream", "offset", "value").collect()
        return digest([(row["stream"], row["offset"], bytes(row["value"])) for row in found])
