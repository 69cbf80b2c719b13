"""How far the archive's table has each stream.

Each commit of the archive writes it down for all streams, in a file beside the table's metadata that the
snapshot's summary names. So a table that is rolled back has the reach that it had then. Where no snapshot
names such a file any more, the rows say it.

A batch is taken if it begins in each stream where the table ends. So no message is in the table twice, and
none is left out, whatever happened to table and checkpoint and whoever else writes.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pyiceberg.table import Table

from tidemark.spark.progress import Positions
from tidemark.spark.readers.port import is_past, place_of


class Reach(msgspec.Struct, frozen=True):
    """The offsets in a stream between which the table has all messages that were there to read, and whether
    the stream was closed at the last one."""

    first: str
    last: str
    closed: bool = False


#: By bucket, stream and incarnation, which is empty where a server tells none.
Reaches = Mapping[tuple[str, str, str], Reach]


class ReachMismatch(ValueError):
    """The table lacks what comes before a batch, or has a part of it."""

    def __init__(self, name: str, start: str | None, last: str | None) -> None:
        super().__init__(
            f"tidemark: the table has {name} up to {last or 'its beginning'}, and the checkpoint goes on from"
            f" {start or 'its beginning'}: the table was rolled back, the checkpoint is an older one, or"
            " another archive writes the stream. Nothing was written. With a new --checkpoint the archive"
            " goes on where the table ends"
        )


@dataclass(frozen=True)
class ArchiveBatch:
    """All messages between two positions in each stream. One that has no start is read from its beginning."""

    query: str
    number: int
    bucket: str
    start: Positions
    end: Positions

    def summary(self) -> dict[str, str]:
        return {"tidemark.query": self.query, "tidemark.batch": str(self.number)}

    def is_in(self, known: Reaches) -> bool:
        """Whether the table has it already. Raises ReachMismatch if it is not there and not the next."""
        is_there: list[bool] = []
        faults: list[ReachMismatch] = []
        for name, end in self.end.items():
            before, reach = self.start.get(name), known.get((self.bucket, name, end.incarnation))
            start = None if before is None or before.is_of_another(end) else before.offset
            last = reach.last if reach else None
            if start == end.offset:
                continue
            # A batch that ends before it begins is of a stream that was created again, on a server that
            # does not tell incarnations.
            is_again = start is not None and is_past(start, end.offset)
            is_beyond = last is not None and not is_again and is_past(last, end.offset)
            is_there.append(is_beyond or last == end.offset)
            is_first = last is None and start is not None and place_of(start) == 0
            if start != last and not is_first:
                faults.append(ReachMismatch(name, start, last))
        if faults and not all(is_there):
            raise faults[0]
        return bool(is_there) and all(is_there)

    def added_to(self, known: Reaches, begins: Reaches) -> Reaches:
        """The reach with this batch. `begins` has its streams, by their rows."""
        reaches = dict(known)
        for name, end in self.end.items():
            key = self.bucket, name, end.incarnation
            before = known.get(key) or begins.get(key) or Reach(end.offset, end.offset)
            start = self.start.get(name, end).offset
            if not is_past(before.last, end.offset) or is_past(start, end.offset):
                reaches[key] = Reach(before.first, end.offset, end.closed)
        return reaches


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


def measure_reach(rows: Any) -> Reaches:
    """The reach by the rows of the table, without their values. A row that an older version wrote may say
    nothing."""
    from pyspark.sql import functions

    incarnation = functions.coalesce("incarnation", functions.lit("")).alias("incarnation")
    bounds = functions.min("offset"), functions.max("end_offset")
    known = rows.where("bucket IS NOT NULL AND end_offset IS NOT NULL")
    found = known.groupBy("bucket", "stream", incarnation).agg(*bounds)
    return {(bucket, name, i): Reach(first, last) for bucket, name, i, first, last in found.collect()}
