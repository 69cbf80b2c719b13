"""Iceberg tables beside that of the messages: which streams are closed, and how far the lake reaches in each
stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from tidemark.spark.lake_files import expire

_T = TypeVar("_T")

#: A side table is written anew once it has more files.
MOST_FILES: Final = 20
#: pyiceberg must not repeat a commit that replaces all rows: it would take out those that came meanwhile.
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_TRIES: Final = 20

CLOSED_SCHEMA: Final = Schema(
    *(
        NestedField(number, name, StringType())
        for number, name in enumerate(("bucket", "stream", "incarnation", "offset", "content_type"), 1)
    )
)
_REACH: Final = (
    *((name, StringType()) for name in ("bucket", "stream", "incarnation")),
    *((name, LongType()) for name in ("first", "last")),
    ("query", StringType()),
    *((name, LongType()) for name in ("first_batch", "last_batch")),
)
REACH_SCHEMA: Final = Schema(*(NestedField(number, *field) for number, field in enumerate(_REACH, 1)))
#: The query of rows that stand for all that the table had before its batches were recorded.
OLDER: Final = ""


def until_written(change: Callable[[], _T]) -> _T:
    """Make a change to a table as it is then, again where another writer was faster. Raises
    CommitFailedException where that is so time and again."""
    for _ in range(_TRIES - 1):
        with suppress(CommitFailedException):
            return change()
    return change()


class SideTable:
    """It is created by the first `append`."""

    def __init__(self, catalog: Any, identifier: str, schema: Schema) -> None:
        self._catalog, self._identifier, self._schema = catalog, identifier, schema

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            return
        new = pa.Table.from_pylist(list(rows), self._schema.as_arrow())
        make = partial(self._catalog.create_table_if_not_exists, self._identifier, self._schema)
        until_written(lambda: (self._load() or make()).append(new))

    def rows(self, wanted: BooleanExpression) -> list[dict[str, Any]]:
        table = self._load()
        return table.scan(row_filter=wanted).to_arrow().to_pylist() if table else []

    def compact(self, merge: Callable[[pa.Table], pa.Table], before: datetime) -> None:
        """Make one file of many, of merged rows, and forget snapshots that are older. If rows are added
        meanwhile, the next run does it."""
        table = self._load()
        if table is None:
            return
        if len(list(table.scan().plan_files())) > MOST_FILES:
            with suppress(CommitFailedException):
                if not NO_RETRIES.items() <= table.properties.items():
                    with table.transaction() as transaction:
                        transaction.set_properties(NO_RETRIES)
                table.overwrite(merge(table.scan().to_arrow()).cast(self._schema.as_arrow()))
        expire(self._catalog.load_table(self._identifier), before)

    def _load(self) -> Table | None:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None


@dataclass(frozen=True)
class Reach:
    """The places in a stream between which the lake has its messages; both None where the server's offsets
    are not numbers."""

    first: int | None
    last: int | None


#: By stream and incarnation, which is empty where a server tells none.
Reaches = Mapping[tuple[str, str], Reach]


def measure_reach(rows: Any) -> list[dict[str, Any]]:
    """What rows of the lake say, without `query` and batches. Reads no value."""
    from pyspark.sql import functions

    places = rows.selectExpr(
        "bucket",
        "stream",
        "coalesce(incarnation, '') AS incarnation",
        # Over HTTP a stream begins at -1.
        "greatest(try_cast(offset AS BIGINT), 0) AS begin",
        "try_cast(end_offset AS BIGINT) AS end",
    )
    known = functions.count("begin") + functions.count("end") == 2 * functions.count("*")
    found = places.groupBy("bucket", "stream", "incarnation").agg(
        functions.when(known, functions.min("begin")).alias("first"),
        functions.when(known, functions.max("end")).alias("last"),
    )
    return [row.asDict() for row in found.collect()]


def join_reaches(rows: Sequence[Mapping[str, Any]]) -> Reaches:
    """Rows of one bucket, those of a stream put together."""
    joined: dict[tuple[str, str], Reach] = {}
    for row in rows:
        key = row["stream"], row["incarnation"]
        first, last = row["first"], row["last"]
        before = joined.get(key)
        if before is not None:
            is_known = None not in (first, before.first)
            first = min(first, before.first) if is_known else None
            last = max(last, before.last) if is_known else None
        joined[key] = Reach(first, last)
    return joined


def committed_reach(
    rows: Sequence[Mapping[str, Any]], last_batches: Mapping[str, int]
) -> list[Mapping[str, Any]] | None:
    """The rows whose batches the messages' table has; None where some stand for batches of which it has only
    the first: the table is older than these rows, for example restored."""
    found = []
    for row in rows:
        last = row["last_batch"] if row["query"] == OLDER else last_batches.get(row["query"], -1)
        if row["last_batch"] <= last:
            found.append(row)
        elif row["first_batch"] <= last:
            return None
    return found


def merge_reach(rows: pa.Table, last_batches: Mapping[str, int]) -> pa.Table:
    """One row for each stream and query. Rows of batches that are not committed stay as they are."""
    import pyarrow.compute as pc

    committed = pa.array(
        [
            query == OLDER or batch <= last_batches.get(query, -1)
            for query, batch in zip(rows["query"].to_pylist(), rows["last_batch"].to_pylist(), strict=True)
        ],
        pa.bool_(),
    )
    keys = ["bucket", "stream", "incarnation", "query"]
    bounds = [("first", "min"), ("last", "max"), ("first_batch", "min"), ("last_batch", "max")]
    done = rows.filter(committed)
    # A stream whose offsets are not numbers has none in any of its rows.
    merged = done.group_by(keys).aggregate(bounds)
    renamed = merged.rename_columns({f"{name}_{how}": name for name, how in bounds})
    return pa.concat_tables([renamed.select(rows.column_names), rows.filter(pc.invert(committed))])
