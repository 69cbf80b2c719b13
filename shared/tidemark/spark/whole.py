"""History and tail in one frame: the lake's table up to its last offset in each stream, and the data source
from that offset on.

The table is loaded first, then the tails of the streams. A tail is therefore never before the table's last
offset, and messages archived in between are read from the stream. Both are pinned: the table by its snapshot,
each stream by its incarnation and two offsets. `stream_whole` does the same for a streaming query.

    from tidemark.spark.whole import read_whole

    read_whole(spark, "lake.messages", catalog_properties={"type": "glue"}, subscribe="chat")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from tidemark.spark import progress
from tidemark.spark.lake import LakeTable, reaches_in
from tidemark.spark.lake_files import read_files
from tidemark.spark.options import MEGABYTE, InvalidOptions
from tidemark.spark.options.read import JSON_COLUMNS, ReadOptions, parse_read_options
from tidemark.spark.progress import Positions, Progress, encode_offset
from tidemark.spark.queries import STREAM_BYTES, load_heads, plan_partitions, require_all
from tidemark.spark.reach import Reach
from tidemark.spark.readers import connect
from tidemark.spark.readers.columns import ARROW_SCHEMA
from tidemark.spark.readers.port import Head, Position, place_of

_Key = tuple[str, str]
"""A stream's name and incarnation."""

#: Most stream names in a filter. Beyond it, a range from the first to the last name is used.
_NAMED: Final = 100
#: Largest part that the driver reads, in bytes. Each stream counts as STREAM_BYTES at least.
SMALL_BYTES = 16 * MEGABYTE
_ORDER: Final = ("stream", "incarnation", "offset", "position")


class RowsDeleted(ValueError):
    """Another engine has deleted rows with delete files, which Spark's Parquet reader does not apply."""


Stretch = dict[str, tuple[Position, Position]]
"""First and last position of a read, in each stream with messages to read."""


@dataclass(frozen=True)
class WholePlan:
    """The parts of a read. The table's rows are read for the streams in `kept`, and not for its other
    streams, `left`. `before` has the messages before the table's first offset, `tail` the messages after its
    last offset. `reached` has the table's last positions in streams that exist."""

    kept: frozenset[_Key]
    left: frozenset[_Key]
    before: Stretch
    reached: Positions
    tail: Stretch


class WholeRead:
    """A read of the loaded table and of the streams. Raises InvalidOptions."""

    def __init__(self, spark: Any, table: Table, options: Mapping[str, Any], *, streaming: bool) -> None:
        self.spark, self.table, self.asked = spark, table, options
        own = {"startingoffsets", "startingtimestamp", "endingoffsets", "endingtimestamp", "between"}
        what = "is not for a whole read, which begins with the lake and ends at the tail"
        faults = [f"{name} {what}" for name in options if name.lower() in own]
        self.options = parse_read_options(options, streaming=streaming, faults=faults)
        members = [name for name in self.options.columns if name in JSON_COLUMNS]
        if members:
            what = f"columns: a whole read has no {', '.join(members)}: use get_json_object on value"
            raise InvalidOptions([what])
        self.reader = connect(self.options.connection)

    def plan(self, *, deleted: bool) -> WholePlan:
        """Plan the read. Each named stream must exist or, with `deleted`, be in the table. Raises
        InvalidOptions."""
        reaches = reaches_in(self.table, self.options.connection.bucket)
        known = {name for name, _ in reaches if deleted}
        heads = load_heads(self.options, self.reader)
        if heads or not known:
            require_all(self.options, self.reader, heads, known)
        return plan_whole(self.options, heads, reaches, deleted=deleted)

    def lake_part(self, plan: WholePlan, columns: tuple[str, ...]) -> list[Any]:
        """Return the frames with the messages before the table's first offset and with the table's rows. The
        list is empty if there are no rows."""
        parts = [self.source_part(plan.before, columns)] if plan.before else []
        names = sorted({name for name, _ in plan.kept})
        bucket = self.options.connection.bucket
        # An archived stream without messages has a reach but no file.
        files = files_of_streams(self.table, bucket, names) if names else []
        if files:
            named = ("time AS timestamp" if name == "timestamp" else name for name in columns)
            parts.append(self._lake_rows(plan, files, names).selectExpr(*named))
        return parts

    def source_part(self, stretch: Stretch, columns: tuple[str, ...]) -> Any:
        """Return the frame with the messages of the stretch. The driver reads a small stretch, because Spark
        starts Python processes to plan and to run a scan of the data source."""
        starts = {name: start for name, (start, _) in stretch.items()}
        ends = {name: end for name, (_, end) in stretch.items()}
        rows = self.read_small(starts, ends, columns)
        if rows is not None:
            return self.spark.createDataFrame(rows)
        between = json.dumps([encode_offset(Progress(starts)), encode_offset(Progress(ends))])
        own = {"columns": ",".join(columns), "between": between}
        return self.spark.read.format("tidemark").options(**self.asked).options(**own).load()

    def read_small(self, starts: Positions, ends: Positions, columns: tuple[str, ...]) -> pa.Table | None:
        """Read the messages between the positions into memory if they are few. Returns None if not, or if
        messages are so short that their rows take much more memory than their bytes. Raises DataLoss."""
        backlogs = (self.reader.backlog(starts[name], end) for name, end in ends.items())
        if sum(max(STREAM_BYTES, backlog) for backlog in backlogs) > SMALL_BYTES:
            return None
        parts = plan_partitions(replace(self.options, columns=columns), self.reader, starts, ends)
        batches, left = [], 4 * SMALL_BYTES
        for batch in self.reader.read_all(parts, columns):
            left -= batch.nbytes
            if left < 0:
                return None
            batches.append(batch)
        return pa.Table.from_batches(batches, pa.schema([ARROW_SCHEMA.field(name) for name in columns]))

    def _lake_rows(self, plan: WholePlan, files: list[DataFile], names: list[str]) -> Any:
        """Return the rows of the streams in `kept`, with Spark's Parquet reader."""
        from pyspark.sql import functions

        rows, left = read_files(self.spark, files), plan.left
        bucket, field = self.options.connection.bucket, self.table.schema().find_field("bucket").field_id
        # Skip a filter that every row passes: Spark would read the column and compare it.
        if not all(_is_all(bucket.encode(), field, file) for file in files):
            rows = rows.where(functions.col("bucket") == bucket)
        # A read of the whole bucket needs no filter by stream.
        if left and len(names) <= _NAMED:
            rows = rows.where(functions.col("stream").isin(names))
            left = frozenset(key for key in left if key[0] in names)
        if not left:
            return rows
        how, keys = ("left_anti", left) if len(left) <= len(plan.kept) else ("left_semi", plan.kept)
        listed = functions.broadcast(self.spark.createDataFrame(sorted(keys), "s STRING, i STRING"))
        incarnation = functions.coalesce(rows["incarnation"], functions.lit(""))
        return rows.join(listed, (rows["stream"] == listed["s"]) & (incarnation == listed["i"]), how)


def read_whole(
    spark: Any,
    lake: str,
    *,
    catalog: str = "default",
    catalog_properties: Mapping[str, str] | None = None,
    snapshot: int | None = None,
    deleted: bool = False,
    ordered: bool = False,
    **options: Any,
) -> Any:
    """Return one frame with all messages of the streams, in the columns of the data source. `lake` is the
    archive job's table, `namespace.name`; `options` are options of the data source.

    With `snapshot` the frame has the table's rows as of that snapshot, and later messages from the streams.
    With `deleted` it includes streams that no longer exist, even if a new stream has their name. With
    `ordered` it is sorted by stream, incarnation and offset.

    Raises InvalidOptions, NoCatalog, NoLakeTable and RowsDeleted.
    """
    table = LakeTable(catalog, catalog_properties or {}, lake).load()
    table = table if snapshot is None else as_of(table, snapshot, "snapshot")
    read = WholeRead(spark, table, options, streaming=False)
    plan = read.plan(deleted=deleted)
    columns = read.options.columns
    wanted = tuple(dict.fromkeys(columns + (_ORDER if ordered else ())))
    parts = read.lake_part(plan, wanted)
    if plan.tail or not parts:
        parts.append(read.source_part(plan.tail, wanted))
    whole = reduce(lambda one, other: one.unionByName(other), parts)
    return whole.orderBy(*_ORDER).select(*columns) if ordered else whole


def plan_whole(
    options: ReadOptions, heads: Mapping[str, Head], reaches: Mapping[_Key, Reach], *, deleted: bool
) -> WholePlan:
    """Plan the parts of a read. Raises InvalidOptions if offsets are not numbers."""
    mine = {key: reach for key, reach in reaches.items() if options.subscribes(key[0])}
    before, tail, reached = Stretch(), Stretch(), dict[str, Position]()
    living: set[_Key] = set()
    for name, head in heads.items():
        key, begin, end = (name, head.tail.incarnation), head.earliest, _place(name, head.tail.offset)
        reach = mine.get(key)
        # If the server has no incarnations: a stream that is shorter than its archive was created again.
        if reach is not None and (key[1] or end >= _place(name, reach.last)):
            living.add(key)
            if _place(name, begin.offset) < _place(name, reach.first):
                before[name] = begin, head.tail.at(reach.first)
            begin = reached[name] = head.tail.at(reach.last)
        if _place(name, begin.offset) < end:
            tail[name] = begin, head.tail
    kept = frozenset(mine) if deleted else frozenset(living)
    return WholePlan(kept, frozenset(reaches) - kept, before, reached, tail)


def as_of(table: Table, snapshot_id: int, asked: str) -> Table:
    """Return the loaded table as it was with the snapshot. `asked` begins the error text, and says who names
    the snapshot. Raises InvalidOptions."""
    if table.snapshot_by_id(snapshot_id) is None:
        newest = ", ".join(str(each.snapshot_id) for each in table.snapshots()[:-6:-1]) or "none"
        what = f"{'.'.join(table.name())} has no snapshot {snapshot_id}; its newest: {newest}"
        raise InvalidOptions([f"{asked}: {what}"])
    pinned = copy(table)
    pinned.metadata = table.metadata.model_copy(update={"current_snapshot_id": snapshot_id})
    return pinned


def _place(name: str, offset: str) -> int:
    place = place_of(offset)
    if place is None:
        what = f"{name}: its offsets are not numbers, and only those of Tidemark's servers can be compared"
        raise InvalidOptions([what])
    return place


def files_of_streams(table: Table, bucket: str, names: list[str]) -> list[DataFile]:
    """Return the files that may have rows of the streams. Raises RowsDeleted."""
    wanted: BooleanExpression = EqualTo("bucket", bucket)
    if len(names) <= _NAMED:
        wanted = And(wanted, In("stream", names))
    else:
        wanted = And(wanted, GreaterThanOrEqual("stream", names[0]), LessThanOrEqual("stream", names[-1]))
    tasks = list(table.scan(row_filter=wanted).plan_files())
    if any(task.delete_files for task in tasks):
        name = ".".join(table.name())
        raise RowsDeleted(f"tidemark: {name} has delete files of another engine: rewrite data files there")
    return [task.file for task in tasks]


def _is_all(value: bytes, field: int, file: DataFile) -> bool:
    """Whether the file's statistics show this value in every row."""
    lower, upper = (bounds or {} for bounds in (file.lower_bounds, file.upper_bounds))
    has_null = (file.null_value_counts or {}).get(field) != 0
    return not has_null and lower.get(field) == upper.get(field) == value


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
        if progress.batches_in(spark, f"{checkpoint}/offsets"):
            raise InvalidOptions([f"{checkpoint} is of a query that did not begin with the lake"])
        begin = msgspec.json.encode((table.metadata.current_snapshot_id, read.plan(deleted=deleted)))
        note.save(begin)
    snapshot_id, plan = msgspec.json.decode(begin, type=tuple[int | None, WholePlan])
    columns = read.options.columns
    if written.load() is None:
        if snapshot_id is not None:
            read.table = as_of(table, snapshot_id, f"{checkpoint} cannot go on: begin a new checkpoint")
        parts = read.lake_part(plan, columns)
        if parts:
            write(reduce(lambda one, other: one.unionByName(other), parts), 0)
        written.save(b"{}")
    reached = encode_offset(Progress(plan.reached))
    own = {"columns": ",".join(columns), "between": json.dumps([reached, {}])}
    source = spark.readStream.format("tidemark").options(**options).options(**own).load()
    following = source.writeStream.option("checkpointLocation", checkpoint)
    return following.foreachBatch(lambda rows, batch: write(rows, batch + 1))


class _Note:
    """A JSON file in the checkpoint's directory, on any Hadoop file system. Written atomically by a
    rename."""

    def __init__(self, spark: Any, directory: str, name: str) -> None:
        self._path, self._files = progress.hadoop_path(spark, f"{directory}/{name}.json")

    def load(self) -> bytes | None:
        if not self._files.exists(self._path):
            return None
        stream = self._files.open(self._path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def save(self, data: bytes) -> None:
        beside = self._path.suffix(".part")
        stream = self._files.create(beside, True)
        try:
            stream.write(data)
        finally:
            stream.close()
        self._files.rename(beside, self._path)
