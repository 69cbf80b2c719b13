"""Data files of the Iceberg table that are in no snapshot, because a run was killed before its commit."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.lakes import Lake
from tidemark.spark.lake import LakeTable

DAY = timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    made = LakeTable("default", lake.properties, "lake.messages")
    made.ensure()
    return made


def add_file(lake: Lake, name: str, *values: bytes) -> None:
    """As a batch of the archive does it: the file is written first, then a snapshot has it."""
    table, now = lake.table, datetime.now(UTC)
    rows = [
        {"bucket": "v1", "stream": "s", "offset": f"{place:016}", "time": now, "value": value}
        for place, value in enumerate(values)
    ]
    path = f"{table.location()}/data/{name}.parquet"
    Path(path.removeprefix("file://")).parent.mkdir(parents=True, exist_ok=True)
    columns = pa.schema(list(table.schema().as_arrow()))
    pq.write_table(pa.Table.from_pylist(rows, columns.remove_metadata()), path.removeprefix("file://"))
    table.add_files([path])


def take_out(lake: Lake, name: str) -> None:
    """Of the table as it is now: older snapshots have the file still."""
    table = lake.table
    (file,) = (task.file for task in table.scan().plan_files() if name in task.file.file_path)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(file)


def data_files(lake: Lake) -> set[Path]:
    location = lake.table.location().removeprefix("file://")
    return {path for path in Path(location, "data").rglob("*") if path.is_file()}


def left_behind(lake: Lake, *names: str) -> list[Path]:
    """Files that no snapshot has, as Spark and its tasks name them."""
    location = lake.table.location().removeprefix("file://")
    paths = [Path(location, "data", name) for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    return paths


def make_older(path: Path, by: timedelta) -> None:
    then = (datetime.now(UTC) - by).timestamp()
    os.utime(path, (then, then))


def test_old_files_in_no_snapshot_are_deleted_and_no_others(lake: Lake, table: LakeTable) -> None:
    add_file(lake, "first/a", b"one", b"two")
    add_file(lake, "second/a", b"three")
    take_out(lake, "first/a")
    before, in_snapshots = lake.by_pyarrow(), data_files(lake)
    old = left_behind(
        lake,
        "query-7-abc/_bucket=v1/_day=2026-01-02/part-0.parquet",
        "query-7-abc/_temporary/0/task_1/_bucket=v1/_day=2026-01-02/part-1.parquet",
        "compacted-def/_SUCCESS",
    )
    (young,) = left_behind(lake, "query-8-abc/_bucket=v1/_day=2026-01-02/part-0.parquet")
    for path in [*in_snapshots, *old]:
        make_older(path, 4 * DAY)
    make_older(young, 2 * DAY)

    assert (len(in_snapshots), len(lake.files)) == (2, 1), "an older snapshot has one more"
    assert table.remove_orphans(datetime.now(UTC) - 3 * DAY) == 3
    assert data_files(lake) == in_snapshots | {young}
    assert lake.by_pyarrow() == before
    assert table.remove_orphans(datetime.now(UTC) - 3 * DAY) == 0


def test_a_table_without_any_file_has_no_orphans(table: LakeTable) -> None:
    assert table.remove_orphans(datetime.now(UTC)) == 0
