"""How far the archive's table has each stream, which is all that the archive knows of its progress.

Each commit of the archive writes it down for all streams, in a file beside the table's metadata that the
snapshot's summary names. So a table that is rolled back has the reach that it had then. Where no snapshot
names such a file any more, the rows say it.

A batch is committed only if the table still ends where the batch begins, in each of its streams. So no
message is in the table twice, and none is left out, whatever was killed or rolled back and whoever else
writes.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyiceberg.expressions import And, NotNull
from pyiceberg.table import Table

from tidemark.spark.progress import Positions
from tidemark.spark.readers.port import Head, Position, is_past

#: The columns of the table that say it.
_COLUMNS: Final = ("bucket", "stream", "incarnation", "offset", "end_offset")


class Reach(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offsets in a stream between which the table has all messages that were there to read. Nothing
    follows if the stream was `closed` at the last one, or was found `gone`."""

    first: str
    last: str
    closed: bool = False
    gone: bool = False


#: By bucket, stream and incarnation, which is empty where a server tells none.
Reaches = Mapping[tuple[str, str, str], Reach]


@dataclass(frozen=True)
class ArchiveBatch:
    """All messages between two positions in each stream of a bucket, and the streams that are gone, as they
    were planned by a table that reached as `known` says."""

    bucket: str
    start: Positions
    end: Positions
    gone: Reaches
    known: Reaches

    def follows(self, now: Reaches) -> bool:
        """Whether the table still ends where the batch begins."""
        keys = [(self.bucket, name, end.incarnation) for name, end in self.end.items()]
        return all(now.get(key) == self.known.get(key) for key in (*keys, *self.gone))

    def added_to(self, now: Reaches, begins: Mapping[tuple[str, str], str]) -> Reaches:
        """The reach with this batch. `begins` has the offset of the first message that was read, by stream
        and incarnation."""
        reaches = {**now, **self.gone}
        for name, end in self.end.items():
            key = self.bucket, name, end.incarnation
            before, first = now.get(key), begins.get(key[1:], end.offset)
            if before is not None and not _is_another(before, end):
                first = before.first
            reaches[key] = Reach(first, end.offset, end.closed)
        return reaches


def _is_another(before: Reach, end: Position) -> bool:
    """Whether the stream was created again on a server that tells no incarnations."""
    return is_past(before.last, end.offset) or (before.closed and before.last != end.offset)


def table_ends(
    bucket: str, known: Reaches, heads: Mapping[str, Head], subscribes: Callable[[str], bool]
) -> tuple[dict[str, Position], Reaches]:
    """Where the table ends in the streams that it knows, and those of them that are gone, in their place
    another one or none, though they were never closed."""
    living = {(bucket, name, head.tail.incarnation) for name, head in heads.items()}
    left = {
        key: reach
        for key, reach in known.items()
        if key[0] == bucket and subscribes(key[1]) and not (reach.closed or reach.gone)
    }
    # What lives comes last: a name may have been that of many streams.
    following = left | {key: known[key] for key in living if key in known}
    ends = {key[1]: Position(reach.last, key[2], closed=reach.closed) for key, reach in following.items()}
    gone = {
        key: msgspec.structs.replace(reach, gone=True) for key, reach in left.items() if key not in living
    }
    return ends, gone


def write_reach(table: Table, reaches: Reaches) -> str:
    """In a new file of the table. Returns its place."""
    place = f"{table.location()}/metadata/reach-{uuid.uuid4()}.json.z"
    rows = [(*key, reach) for key, reach in sorted(reaches.items())]
    with table.io.new_output(place).create() as file:
        file.write(zlib.compress(msgspec.json.encode(rows)))
    return place


def read_reach(table: Table, place: str) -> Reaches | None:
    """None if the file is gone, because another engine took it for an orphan."""
    try:
        with table.io.new_input(place).open() as file:
            data = zlib.decompress(file.read())
    except FileNotFoundError:
        return None
    rows = msgspec.json.decode(data, type=list[tuple[str, str, str, Reach]])
    return {(bucket, name, incarnation): reach for bucket, name, incarnation, reach in rows}


def measure_reach(table: Table) -> Reaches:
    """By the rows of the table, without their values. A row that an older version wrote may say nothing."""
    if not set(_COLUMNS) <= set(table.schema().column_names):
        return {}
    told = And(NotNull("bucket"), NotNull("end_offset"))
    batches = table.scan(row_filter=told, selected_fields=_COLUMNS).to_arrow_batch_reader()
    found = _bounds(_bounds([pa.Table.from_batches([batch])]) for batch in batches)
    return {
        (row["bucket"], row["stream"], row["incarnation"] or ""): Reach(row["offset"], row["end_offset"])
        for row in found.to_pylist()
    }


def _bounds(tables: Iterable[pa.Table]) -> pa.Table:
    """The first and last offset of each stream."""
    found = list(tables)
    if not found:
        return pa.table({name: pa.array([], pa.string()) for name in _COLUMNS})
    keys = list(_COLUMNS[:3])
    rows = pa.concat_tables(found).group_by(keys).aggregate([("offset", "min"), ("end_offset", "max")])
    return rows.rename_columns({"offset_min": "offset", "end_offset_max": "end_offset"})
