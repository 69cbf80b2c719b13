"""The files of an Iceberg table: which are small, which no snapshot has, which only old snapshots have."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table


def expire(table: Table, before: datetime) -> tuple[int, int]:
    """Forget snapshots that are older, and delete the files that only they had. How many of each."""
    snapshots, files = len(table.snapshots()), _all_files(table)
    table.maintenance.expire_snapshots().older_than(before).commit()
    table.refresh()
    unused = files - _all_files(table)
    for path in unused:
        table.io.delete(path)
    return snapshots - len(table.snapshots()), len(unused)


def remove_orphans(table: Table, before: datetime) -> int:
    """Delete the data files that no snapshot has, if they are older: runs that were killed left them. One
    that is younger may be of a run that has not committed yet. How many."""
    scheme, authority, directory = PyArrowFileIO.parse_location(f"{table.location()}/data")
    files = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, authority)
    found = files.get_file_info(FileSelector(directory, allow_not_found=True, recursive=True))
    # The files were listed before this refresh, so a file committed meanwhile counts as used.
    used = {PyArrowFileIO.parse_location(path)[2] for path in _all_files(table.refresh())}
    orphans = [each.path for each in found if each.is_file and each.mtime < before and each.path not in used]
    for path in orphans:
        files.delete_file(path)
    return len(orphans)


def _all_files(table: Table) -> set[str]:
    return set(table.inspect.all_data_files().column("file_path").to_pylist())


def small_files(table: Table, target_bytes: int) -> Iterable[list[Any]]:
    """Groups of at least two files of one partition that are less than half the target each and about the
    target together."""
    by_partition: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < target_bytes // 2:
            by_partition.setdefault(str(task.file.partition), []).append(task.file)
    for files in by_partition.values():
        group: list[Any] = []
        for file in sorted(files, key=lambda file: file.file_size_in_bytes):
            group.append(file)
            if sum(each.file_size_in_bytes for each in group) >= target_bytes:
                yield group
                group = []
        if len(group) > 1:
            yield group
