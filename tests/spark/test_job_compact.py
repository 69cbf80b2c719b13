"""The compact job over plain files; over an Iceberg table see `test_lake.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.spark.streams import Start, filled, key
from tests.support import World
from tidemark.spark.failures import Exit


def test_a_compacted_copy_of_the_archive_is_counted_right_by_any_reader(
    start: Start, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """Also where a killed run left a file in the archive, and one of this job files beside the copy."""
    from pyarrow import dataset

    filled(world, f"{name}-a", b"one", b"two")
    archived, copied = tmp_path / "archive", tmp_path / "copy"
    archive = ["archive", *where, "--pattern", f"{name}-.*", "--out", str(archived)]
    compact = ["compact", "--archive", str(archived), "--to", str(copied)]

    def counted(directory: Path) -> int:
        return dataset.dataset(str(directory), format="parquet", partitioning="hive").count_rows()

    for number, body in enumerate((b"three", b"four", b"")):
        assert start(*archive, "--checkpoint", str(tmp_path / "checkpoint"))[0] == 0
        if number == 1:
            (some,) = sorted(archived.rglob("part-*.parquet"))[:1]
            shutil.copy(some, some.with_name("part-of-a-killed-run.parquet"))
            left = copied / ".spark-staging-killed" / "bucket=v1" / "date=2027-01-15"
            left.mkdir(parents=True)
            shutil.copy(some, left)
        if body:
            world.process().append(key(f"{name}-a"), body)
        code, said, err = start(*compact)
        assert (code, said[: said.index(" seconds")].split()[1::2]) == (
            0,
            [f"messages={number + 2}", "files_after=1"],
        ), err
        assert counted(copied) == number + 2
    assert counted(archived) > 4
    # An archive is not written over.
    for job in (["compact", "--to"], ["stats", "--subscribe", f"{name}-a", "--state"]):
        code, _, err = start(*job, f"{copied}/../archive", "--archive", str(archived))
        assert (code, "archive is an archive" in err) == (Exit.YOUR_INPUT, True), err
    replay = ["replay", *where, "--archive", str(copied), "--stream", f"{name}-a", "--to", f"{name}-again"]
    assert start(*replay, "--staging", str(tmp_path / "staging"), "--id", name)[0] == 0
    assert world.process().read_all(key(f"{name}-again")) == b"onetwothreefour"
