"""The stats job: counts, lag, and what is new in the archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from tests.infra.jobs import load_job
from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams
from tests.support import JSON
from tidemark.spark.failures import Exit


def test_stats(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    streams.fill(b"[1,22,333]", suffix="-a", content_type=JSON)
    streams.fill(b"four", suffix="-b")
    both, archive, checkpoint = ["--pattern", f"{streams.name}-."], str(tmp_path / "a"), str(tmp_path / "c")
    jobs.run("archive", *jobs.where, *both, "--out", archive, "--checkpoint", checkpoint)
    streams.append(b"fivesix", suffix="-b")
    stats, plot = [*jobs.where, *both, "--consumer", f"archive={checkpoint}"], tmp_path / "plot.png"
    lines = [line.split() for line in jobs.run("stats", *stats, "--plot", str(plot)).splitlines()]
    assert lines[0][-1] == "lag_archive"
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:3]] == [
        (f"{streams.name}-a", "3", "6", "0"),
        (f"{streams.name}-b", "2", "11", "7"),
    ]
    assert plot.read_bytes().startswith(b"\x89PNG")
    # Counted in the archive there are those alone that it has; how far it is behind stays as it is.
    out = tmp_path / "table"
    jobs.run("stats", *stats, "--archive", archive, "--out", str(out))
    (written,) = out.glob("part-*.json")
    table = [orjson.loads(line) for line in written.read_text().splitlines()]
    assert [(row["stream"], row["messages"], row["bytes"], row["lag_archive"]) for row in table] == [
        (f"{streams.name}-a", 3, 6, 0),
        (f"{streams.name}-b", 1, 4, 7),
    ]


def test_stats_count_what_is_new_in_the_archive_alone(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """In a directory and in a table, which is compacted and forgets snapshots between two runs."""
    streams.fill(b"one", b"four")
    lake, directory, copy = Lake(tmp_path / "lake"), str(tmp_path / "a"), str(tmp_path / "copy")
    places = {"out": ["--archive", directory], "iceberg": lake.given, "copy": ["--archive", copy]}
    every = [*jobs.where, "--subscribe", streams.name]

    def archive(*bodies: bytes) -> None:
        streams.append(*bodies)
        for number, out in enumerate((["--out", directory], lake.given)):
            jobs.run("archive", *every, *out, "--checkpoint", str(tmp_path / f"c{number}"))

    def counted(kind: str) -> tuple[int, int]:
        said = jobs.run("stats", *every, *places[kind], "--state", str(tmp_path / f"state-{kind}"))
        line = next(line.split() for line in said.splitlines() if streams.name in line)
        return int(line[1]), int(line[2])

    def new_files(kind: str) -> int:
        return len(list((tmp_path / f"state-{kind}").glob("part-*.parquet")))

    archive()
    assert (counted("out"), counted("iceberg")) == ((2, 7), (2, 7))
    archive(b"three")
    for kind in ("out", "iceberg"):
        assert (counted(kind), new_files(kind)) == ((3, 12), 2)
    assert (counted("out"), new_files("out")) == ((3, 12), 2), "nothing new, and nothing is written"
    # A state that was of another archive counts this one.
    shutil.copytree(tmp_path / "state-out", tmp_path / "state-copy")
    for days in ([], ["--days", "100000"]):
        jobs.run("compact", "--archive", directory, "--to", copy, *days)
        assert counted("copy") == (3, 12)
    archive(b"more")
    jobs.run("compact", *lake.given, "--keep-days", "0")
    assert (counted("out"), counted("iceberg")) == ((4, 16), (4, 16))
    assert new_files("iceberg") == 1, "a snapshot has expired that was never counted: all is counted once"


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


def test_what_no_stream_or_no_time_leaves_out_is_said(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """Over HTTP no message has a time: there is no rate, and nothing to draw."""
    streams.fill(b"four")
    given = ["--url", streams.server.url, "--subscribe", streams.name, "--plot", str(tmp_path / "plot.png")]
    code, said, err = jobs.start("stats", *given)
    assert (code, said.splitlines()[1].split()) == (0, [streams.name, "1", "4", "4.0", "4", "-", "-"])
    assert "plot.png shows nothing: no message has a time" in err
    none, out = ["--pattern", f"{streams.name}-none"], tmp_path / "out"
    assert "streams=0 messages=0" in jobs.run("stats", *jobs.where, *none, "--out", str(out))
    assert next(out.glob("part-*.json")).read_bytes() == b""
    nowhere = ["--subscribe", streams.name, "--plot", str(tmp_path / "none" / "p.png")]
    code, _, err = jobs.start("stats", *jobs.where, *nowhere)
    assert (code, len(err.splitlines())) == (Exit.YOUR_INPUT, 1)
