"""Finds missing messages in an archive: each message, or page over HTTP, begins where the one before it
ended.

Rows over DynamoDB are messages with offsets of their own. Over HTTP the rows of a page share its two offsets,
and their positions count from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemark.spark.readers.port import BEGINNING, Head, Position, bytes_between, place_of

#: Offsets at which a stream begins, on this server and on any (§8).
_BEGINNINGS: Final = frozenset({BEGINNING, "0000000000000000"})


@dataclass(frozen=True)
class Gap:
    """Messages between two offsets are missing, all of them or, where the two are a page, some. `start` is
    empty if everything up to `end` is missing."""

    start: str
    end: str

    def __str__(self) -> str:
        return f"from {self.start or 'the beginning'} to {self.end}"


def find_gaps(rows: Any) -> list[Gap]:
    """The gaps of one stream, in order. `rows` has its `offset`, `end_offset` and `position`, and each pair
    of offset and position once."""
    from pyspark.sql import functions

    pages = rows.groupBy("offset", "end_offset").agg(
        functions.max("position").alias("last"), functions.count("*").alias("count")
    )
    torn = pages.where("count != last + 1").collect()
    gaps = [Gap(page["offset"], page["end_offset"]) for page in torn]
    ends = pages.select(functions.col("end_offset").alias("at"))
    orphans = pages.join(ends, pages["offset"] == ends["at"], "left_anti").select("offset").collect()
    for begin in {row["offset"] for row in orphans} - _BEGINNINGS:
        before = pages.where(functions.col("end_offset") <= begin).agg(functions.max("end_offset")).first()[0]
        gaps.append(Gap(before or "", begin))
    return sorted(gaps, key=lambda gap: (gap.end, gap.start))


def find_losses(
    rows: Iterable[Mapping[str, Any]], before: Mapping[str, Position], after: Mapping[str, Position]
) -> dict[str, int | None]:
    """The bytes of each stream that a query has skipped between its positions before and after it; a stream
    of which it has read everything is left out. None is a stream that was deleted and created again: nobody
    knows what the old one still held. `rows` say what was read of each stream, in order (WRITTEN).

    Offsets that are not numbers give no amount, and count as read.
    """
    read: dict[tuple[str, str], tuple[int | None, int | None]] = {}
    for row in rows:
        key, more = (row["stream"], row["incarnation"] or ""), row["bytes"]
        first, size = read.get(key, (place_of(row["first"]), 0))
        read[key] = first, None if size is None or more is None else size + more
    lost: dict[str, int | None] = {}
    for name, end in after.items():
        start = before.get(name)
        first, size = read.get((name, end.incarnation), (place_of(end.offset), 0))
        if start is not None and start.is_of_another(end):
            if not start.closed:
                lost[name] = None
                continue
            start = None
        first, last = place_of(start.offset) if start else first, place_of(end.offset)
        if first is not None and last is not None and size is not None and last - first > size:
            lost[name] = last - first - size
    return lost


def losses_beside_compaction(
    lost: Mapping[str, int | None],
    before: Mapping[str, Position],
    then: Mapping[str, Head],
    now: Mapping[str, Head],
) -> dict[str, int | None]:
    """The losses, by heads from before the query and from after it. Of a compacted stream the rows do not
    tell what is lost from what is superseded: there it is what was not retained any more when the query
    began."""
    told = dict(lost)
    for name in lost.keys() & then.keys() & now.keys():
        start, head = before.get(name, then[name].earliest), then[name]
        if lost[name] is not None and now[name].compacted > (place_of(start.offset) or 0):
            told[name] = bytes_between(start.offset, head.earliest.offset)
    return {name: size for name, size in told.items() if size is None or size > 0}
