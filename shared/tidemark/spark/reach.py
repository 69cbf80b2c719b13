"""The reach of the archive's table: its first and last offset in each stream, the only record of progress.

Each commit of the archive writes the reach to a Puffin file. The snapshot's summary names the file, and so do
the table's statistics, so that no engine removes it as an orphan. A table that is rolled back has its earlier
reach. If no snapshot names a file, the reach is measured from the rows.

A batch is committed only if, in each of its streams, the table's last offset is still the batch's start. The
table therefore has every message exactly once, despite kills, rollbacks and other writers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyiceberg.table import Table, snapshots, statistics

from tidemark.spark.progress import Positions
from tidemark.spark.readers.port import BEGINNING, Head, Position, is_past

#: Key in a snapshot's summary: the file with the table's reach.
REACH: Final = "tidemark.reach"
#: The tag of the archive's newest snapshot, which keeps it when another engine expires snapshots.
TAG: Final = "tidemark"
#: Type of the blob in that file. Its content is a list in JSON, compressed with zlib.
_BLOB: Final = "tidemark-reach-v1"
_MAGIC: Final = b"PFA1"
#: The columns of the table from which the reach is measured.
_COLUMNS: Final = ("bucket", "stream", "incarnation", "offset", "end_offset")


class Reach(msgspec.Struct, frozen=True, omit_defaults=True):
    """First and last offset of a stream in the table, which has all readable messages between the two. No
    message follows if the stream was `closed` at the last offset, or is `gone`."""

    first: str
    last: str
    closed: bool = False
    gone: bool = False


#: By bucket, stream and incarnation; the incarnation is empty if the server has none.
Reaches = Mapping[tuple[str, str, str], Reach]


@dataclass(frozen=True)
class ArchiveBatch:
    """All messages between two positions in each stream of a bucket, and the streams that are gone. `known`
    is the table's reach when the batch was planned."""

    bucket: str
    start: Positions
    end: Positions
    gone: Reaches
    known: Reaches

    def follows(self, now: Reaches) -> bool:
        """Whether the table's end is still the batch's start."""
        keys = [(self.bucket, name, end.incarnation) for name, end in self.end.items()]
        return all(now.get(key) == self.known.get(key) for key in (*keys, *self.gone))

    def added_to(self, now: Reaches) -> Reaches:
        """Return the reach with this batch."""
        reaches = {**now, **self.gone}
        for name, end in self.end.items():
            key = self.bucket, name, end.incarnation
            start = self.start.get(name, end)
            is_new = start.is_of_another(end) or is_past(start.offset, end.offset)
            first = BEGINNING if is_new else start.offset
            before = now.get(key, Reach(first, first))
            # A stream whose server has no incarnations may have been created again.
            is_another = is_past(before.last, end.offset) or (before.closed and before.last != end.offset)
            reaches[key] = Reach(first if is_another else before.first, end.offset, end.closed)
        return reaches


def table_ends(
    bucket: str, known: Reaches, heads: Mapping[str, Head], subscribes: Callable[[str], bool]
) -> tuple[dict[str, Position], Reaches]:
    """Return the table's end in each stream that may go on, and the reach of streams that are gone: deleted,
    or created again, without having been closed."""
    living = {(bucket, name, head.tail.incarnation) for name, head in heads.items()}
    left = {
        key: reach
        for key, reach in known.items()
        if key[0] == bucket and subscribes(key[1]) and not (reach.closed or reach.gone)
    }
    # Living streams come last, so that they replace earlier streams of the same name.
    following = left | {key: known[key] for key in living if key in known}
    ends = {key[1]: Position(reach.last, key[2], closed=reach.closed) for key, reach in following.items()}
    return ends, {key: msgspec.structs.replace(left[key], gone=True) for key in left.keys() - living}


def write_reach(table: Table, place: str, snapshot_id: int, reaches: Reaches) -> statistics.StatisticsFile:
    """Write the reach to a Puffin file at `place`, for the table's next snapshot. The table's metadata does
    not name the blob, because pyiceberg loads no table with a type of blob that it does not know."""
    rows = [(*key, reach) for key, reach in sorted(reaches.items())]
    blob = zlib.compress(msgspec.json.encode(rows))
    described = {"type": _BLOB, "fields": [], "offset": len(_MAGIC), "length": len(blob)}
    described |= {"snapshot-id": snapshot_id, "sequence-number": table.metadata.next_sequence_number()}
    payload = msgspec.json.encode({"blobs": [described]})
    footer = _MAGIC + payload + len(payload).to_bytes(4, "little") + bytes(4) + _MAGIC
    with table.io.new_output(place).create() as file:
        file.write(_MAGIC + blob + footer)
    sizes = {"file-size-in-bytes": len(_MAGIC + blob + footer), "file-footer-size-in-bytes": len(footer)}
    named = {"snapshot-id": snapshot_id, "statistics-path": place, "blob-metadata": []}
    return statistics.StatisticsFile.model_validate(named | sizes)


def read_reach(table: Table, snapshot: snapshots.Snapshot | None) -> Reaches | None:
    """Read the file that a snapshot names. Returns None if there is none. An older release did not register
    its file, which has the blob's content alone, so another engine may have removed it."""
    place = reach_of(snapshot)
    if place is None:
        return None
    try:
        with table.io.new_input(place).open() as file:
            content = zlib.decompressobj().decompress(file.read().removeprefix(_MAGIC))
    except FileNotFoundError:
        return None
    rows = msgspec.json.decode(content, type=list[tuple[str, str, str, Reach]])
    return {(bucket, name, incarnation): reach for bucket, name, incarnation, reach in rows}


def reach_of(snapshot: snapshots.Snapshot | None) -> str | None:
    """Return the place of the snapshot's reach; None unless the archive made the snapshot."""
    return snapshot.summary.additional_properties.get(REACH) if snapshot and snapshot.summary else None


def reaches_of(table: Table) -> Reaches:
    """Return the reach of the loaded table. Reads rows only if no ancestor of the current snapshot has it."""
    # Skip snapshots of another engine: a compaction changes no row, and deleted rows must not come back.
    ours = (
        each for each in snapshots.ancestors_of(table.current_snapshot(), table.metadata) if reach_of(each)
    )
    reaches = read_reach(table, next(ours, None))
    if reaches is not None:
        return reaches
    # The tagged snapshot may be one that the table was rolled back from, and its last offset too late.
    tagged, measured = read_reach(table, table.snapshot_by_name(TAG)) or {}, measure_reach(table)
    ends = {key: tagged.get(key, reach) for key, reach in measured.items()}
    return {key: ends[key] if ends[key].last == reach.last else reach for key, reach in measured.items()}


def measure_reach(table: Table) -> Reaches:
    """Measure the reach from the rows of the table, without reading values. Skips rows of an older version,
    which lack these columns."""
    if not set(_COLUMNS) <= set(table.schema().column_names):
        return {}
    filled = "bucket is not null and end_offset is not null"
    found: dict[tuple[str, str, str], Reach] = {}
    for batch in table.scan(row_filter=filled, selected_fields=_COLUMNS).to_arrow_batch_reader():
        streams = pa.Table.from_batches([batch]).group_by(list(_COLUMNS[:3]))
        for row in streams.aggregate([("offset", "min"), ("end_offset", "max")]).to_pylist():
            key = row["bucket"], row["stream"], row["incarnation"] or ""
            first, last = row["offset_min"], row["end_offset_max"]
            before = found.get(key, Reach(first, last))
            found[key] = Reach(min(first, before.first), max(last, before.last))
    return found
