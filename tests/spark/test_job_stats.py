"""The stats job: counts, lag, and what is new in the archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from tests.infra.jobs import load_job
from tests.spark.lakes import Lake
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Start, filled, key
from tests.support import JSON, World
from tidemark.spark.failures import Exit


def test_stats(start: Start, world: World, name: str, where: list[str], tmp_path: Path) -> None:
    filled(world, f"{name}-a", b"[1,22,333]", content_type=JSON)
    filled(world, f"{name}-b", b"four")
    both = ["--pattern", f"{name}-."]
    archive = ["--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")]
    assert start("archive", *where, *both, *archive)[0] == 0
    world.process().append(key(f"{name}-b"), b"fivesix")
    plot = tmp_path / "plot.png"
    code, said, err = start(
        "stats", *where, *both, "--consumer", f"archive={tmp_path / 'c'}", "--plot", str(plot)
    )
    assert code == 0, err
    lines = [line.split() for line in said.splitlines()]
    assert lines[0][-1] == "lag_archive"
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:3]] == [
        (f"{name}-a", "3", "6", "0"),
        (f"{name}-b", "2", "11", "7"),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    # Counted in the archive there are those alone that it has; how far it is behind stays as it is.
    out = tmp_path / "table"
    code, said, err = start(
        "stats",
        *where,
        *both,
        "--consumer",
        f"archive={tmp_path / 'c'}",
        "--archive",
        str(tmp_path / "a"),
        "--out",
        str(out),
    )
    assert code == 0, err
    (written,) = out.glob("part-*.json")
    table = [orjson.loads(line) for line in written.read_text().splitlines()]
    assert [(row["stream"], row["messages"], row["bytes"], row["lag_archive"]) for row in table] == [
        (f"{name}-a", 3, 6, 0),
        (f"{name}-b", 1, 4, 7),
    ]


def test_stats_count_what_is_new_in_the_archive_alone(
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """In a directory and in a table, which is compacted and forgets snapshots between two runs."""
    filled(world, f"{name}-a", b"one", b"four")
    lake = Lake(tmp_path / "lake")
    places = {"--out": ["--archive", str(tmp_path / "a")], "--iceberg": lake.given}
    every = [*where, "--pattern", f"{name}-.*"]

    def archive(body: bytes = b"") -> None:
        if body:
            world.process().append(key(f"{name}-a"), body)
        for number, out in enumerate((["--out", str(tmp_path / "a")], lake.given)):
            assert start("archive", *every, *out, "--checkpoint", str(tmp_path / f"c{number}"))[0] == 0

    def counted(kind: str, *more: str) -> tuple[int, int]:
        state = str(tmp_path / f"state{kind}")
        code, said, err = start("stats", *every, *places[kind], "--state", state, *more)
        assert code == 0, err
        line = next(line.split() for line in said.splitlines() if f"{name}-a" in line)
        return int(line[1]), int(line[2])

    def new_files(kind: str) -> int:
        return len(list((tmp_path / f"state{kind}").glob("part-*.parquet")))

    archive()
    assert [counted(kind) for kind in places] == [(2, 7)] * 2
    archive(b"three")
    for kind in places:
        assert counted(kind) == (3, 12)
        assert new_files(kind) == 2
    assert counted("--out") == (3, 12)
    assert new_files("--out") == 2, "nothing new, and nothing is written"
    # A state that was of another archive counts this one.
    shutil.copytree(tmp_path / "state--out", tmp_path / "state--copy")
    places["--copy"] = ["--archive", str(tmp_path / "copy")]
    for days in ([], ["--days", "100000"]):
        assert (
            start("compact", "--archive", str(tmp_path / "a"), "--to", str(tmp_path / "copy"), *days)[0] == 0
        )
        assert counted("--copy") == (3, 12)
    del places["--copy"]
    assert start("compact", *lake.given, "--keep-days", "0")[0] == 0
    archive(b"more")
    assert start("compact", *lake.given, "--keep-days", "0")[0] == 0
    assert [counted(kind) for kind in places] == [(4, 16)] * 2
    assert new_files("--iceberg") == 1, "a snapshot has expired that was never counted: all is counted once"


def test_a_plot_tells_the_largest_streams_apart_and_adds_up_all_others() -> None:
    counts = [
        {"stream": f"s-{index:02}", "minute": minute, "sum(messages)": index}
        for index in range(1, 13)
        for minute in (1, 2)
    ]
    lines = load_job("stats").lines_of(counts)
    assert list(lines) == [*(f"s-{index:02}" for index in range(4, 13)), "3 other streams"]
    assert (lines["s-04"], lines["3 other streams"]) == ({1: 4, 2: 4}, {1: 6, 2: 6})
    assert load_job("stats").lines_of([]) == {}


def test_stats_read_no_values_of_an_archive_that_has_sizes(spark: Any, tmp_path: Path) -> None:
    """Of files that an earlier version wrote they do."""
    stats, rows = load_job("stats"), spark.range(3).selectExpr("'v1' bucket", "'s' stream", "now() timestamp")
    for place, columns in (
        ("new", ("3L bytes", "CAST('lie' AS BINARY) value")),
        ("old", ("CAST('four' AS BINARY) value",)),
    ):
        rows.selectExpr("*", *columns).write.parquet(str(tmp_path / place))
    files = [str(tmp_path / "new"), str(tmp_path / "old")]
    found = stats.archived_rows(spark, SimpleNamespace(archive=None), files)
    assert {row.bytes for row in found.collect()} == {3, 4}
    assert "value" not in found.columns


def test_what_no_stream_or_no_time_leaves_out_is_said(
    start: Start, server: ThreadedServer, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """Over HTTP no message has a time: there is no rate, and nothing to draw."""
    filled(world, name, b"four")
    plot = ["--plot", str(tmp_path / "plot.png")]
    code, said, err = start("stats", "--url", server.url, "--subscribe", name, *plot)
    assert (code, said.splitlines()[1].split()) == (0, [name, "1", "4", "4.0", "4", "-", "-"])
    assert "plot.png shows nothing: no message has a time" in err
    out = tmp_path / "out"
    code, said, err = start("stats", *where, "--pattern", f"{name}-none", "--out", str(out))
    assert (code, "streams=0 messages=0" in said, next(out.glob("part-*.json")).read_bytes()) == (
        0,
        True,
        b"",
    ), err
    code, _, err = start("stats", *where, "--subscribe", name, "--plot", str(tmp_path / "none" / "p.png"))
    assert (code, len(err.splitlines())) == (Exit.YOUR_INPUT, 1)
