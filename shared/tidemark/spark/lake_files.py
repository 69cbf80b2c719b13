"""The rows of the lake as Parquet files: their columns, and the files of an Iceberg table.

Executors write and read the files by Spark; which files belong to the table is pyiceberg's.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

#: The condition that every row meets.
ALL: Final = AlwaysTrue()
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
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "producer_seq": "producer_seq",
}
_TYPES: Final[Mapping[str, Any]] = {
    "position": IntegerType(),
    "time": TimestamptzType(),
    "value": BinaryType(),
    "bytes": LongType(),
    "producer_epoch": LongType(),
    "producer_seq": LongType(),
}
_SPARK_TYPES: Final = {
    "position": "INT",
    "time": "TIMESTAMP",
    "value": "BINARY",
    **dict.fromkeys(("bytes", "producer_epoch", "producer_seq"), "BIGINT"),
}
SCHEMA: Final = Schema(
    *(NestedField(number, name, _TYPES.get(name, StringType())) for number, name in enumerate(EXPRESSIONS, 1))
)
#: The order of rows in a file, behind that of the partitions.
FILE_ORDER: Final = ("stream", "incarnation", "offset", "position")
#: Iceberg's own property of a table.
KEPT_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
#: Of a snapshot's summary: the file that says how far the table has each stream (`reach.py`).
REACH: Final = "tidemark.reach"
#: Readers without page indexes pass over whole row groups alone.
ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
#: As Spark reads the files: by name, whatever columns a file has.
SPARK_SCHEMA: Final = ", ".join(f"{name} {_SPARK_TYPES.get(name, 'STRING')}" for name in EXPRESSIONS)


def write_files(frame: Any, table: Table, name: str) -> list[str]:
    """Parquet files of the rows in a new directory of the table, in no snapshot yet; each has rows of one
    partition. Spark's committer leaves out what killed tasks wrote."""
    directory = f"{table.location()}/data/{name}-{uuid.uuid4().hex}"
    parts = ["_bucket", "_day"]
    parted = frame.selectExpr("*", "bucket AS _bucket", "to_date(time) AS _day")
    # Spark would sort by the partitions alone.
    ordered = parted.sortWithinPartitions(*parts, *FILE_ORDER)
    writing = ordered.write.option("parquet.block.size", ROW_GROUP_BYTES)
    writing.partitionBy(*parts).parquet(directory)
    return sorted(read_files(frame.sparkSession, [directory]).inputFiles())


def read_files(spark: Any, files: Sequence[str]) -> Any:
    """Their rows, by Spark's own reader; null where a file lacks a column."""
    return spark.read.schema(SPARK_SCHEMA).parquet(*files)


def files_in(table: Table, wanted: BooleanExpression = ALL) -> list[str]:
    """The files of the table, as it was loaded, that may have wanted rows."""
    return [task.file.file_path for task in table.scan(row_filter=wanted).plan_files()]


def added_files(table: Table, snapshot: Snapshot) -> list[str]:
    return [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id in {None, snapshot.snapshot_id}
    ]


def expire(table: Table) -> None:
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
