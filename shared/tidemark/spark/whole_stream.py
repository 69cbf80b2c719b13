"""A streaming query that reads its backlog from the lake's table, with Spark's Parquet reader, and continues
with the data source at the offsets where the table ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from tidemark.spark.lake import LakeTable
from tidemark.spark.options import InvalidOptions
from tidemark.spark.progress import Progress, decode_offset, encode_offset, hadoop_path, last_planned
from tidemark.spark.whole import Stretch, WholePlan, WholeRead, snapshot_of


def stream_whole(
    spark: Any,
    lake: str,
    write: Callable[[Any, int], None],
    checkpoint: str,
    *,
    catalog: str = "default",
    catalog_properties: Mapping[str, str] | None = None,
    deleted: bool = False,
    **options: Any,
) -> Any:
    """Return the writer of a streaming query, for the caller to start. `write(rows, batch)` is the function
    for `foreachBatch`. Batch 0 has the lake's rows and is written by this call; the query's own batches begin
    at 1.

    The first call stores the table's snapshot and offsets in the checkpoint's directory. After a crash every
    batch therefore repeats with the same number and the same rows, batch 0 included.

    Raises InvalidOptions, NoCatalog, NoLakeTable and RowsDeleted.
    """
    table = LakeTable(catalog, catalog_properties or {}, lake).load()
    read = WholeRead(spark, table, options, streaming=True)
    note, written = (_Note(spark, f"{checkpoint}/tidemark-lake", name) for name in ("begin", "written"))
    begin = note.load()
    if begin is None:
        if last_planned(spark, checkpoint) >= 0:
            raise InvalidOptions([f"{checkpoint} is of a query that did not begin with the lake"])
        begin = _encode(read.plan(deleted=deleted), snapshot_of(read.table))
        note.save(begin)
    columns = read.options.columns
    if written.load() is None:
        snapshot_id = begin["snapshot"]
        if snapshot_id is not None and read.table.snapshot_by_id(snapshot_id) is None:
            what = f"the table no longer has snapshot {snapshot_id}, with which {checkpoint} begins"
            raise InvalidOptions([f"{what}: begin a new checkpoint"])
        parts = read.lake_part(_decode(begin), columns, snapshot_id)
        if parts:
            write(reduce(lambda one, other: one.unionByName(other), parts), 0)
        written.save({})
    own = {"columns": ",".join(columns), "between": json.dumps([begin["reached"], {}])}
    source = spark.readStream.format("tidemark").options(**read.asked, **own).load()
    following = source.writeStream.option("checkpointLocation", checkpoint)
    return following.foreachBatch(lambda rows, batch: write(rows, batch + 1))


def _encode(plan: WholePlan, snapshot_id: int | None) -> dict[str, Any]:
    return {
        "snapshot": snapshot_id,
        "kept": sorted(plan.kept),
        "left": sorted(plan.left),
        "before": plan.before.encode(),
        "reached": encode_offset(Progress(plan.reached)),
    }


def _decode(begin: Mapping[str, Any]) -> WholePlan:
    """Decode the plan of the query's beginning. The plan has no tail, because a streaming query has no
    end."""
    kept, left = (frozenset((name, each) for name, each in begin[how]) for how in ("kept", "left"))
    before = Stretch(*(dict(decode_offset(offset).positions) for offset in begin["before"]))
    return WholePlan(kept, left, before, decode_offset(begin["reached"]).positions, Stretch())


class _Note:
    """A JSON file in the checkpoint's directory, on any Hadoop file system. Written atomically by a
    rename."""

    def __init__(self, spark: Any, directory: str, name: str) -> None:
        self._jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark offers no other way to Hadoop
        self._path, self._files = hadoop_path(spark, f"{directory}/{name}.json")

    def load(self) -> Any:
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            return json.loads(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def save(self, value: Any) -> None:
        beside = self._path.suffix(".part")
        stream = self._files.create(beside, True)
        try:
            stream.write(json.dumps(value).encode())
        finally:
            stream.close()
        self._files.rename(beside, self._path)
