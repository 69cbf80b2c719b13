"""The stats job: counts, lag, and what is new in the archive."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

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
    lake = Lake(tmp_path / "lake")
    jobs.run("archive", *jobs.where, *both, *lake.given, "--checkpoint", str(tmp_path / "c-lake"))
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
    for number, place in enumerate((["--archive", archive], lake.given)):
        out = tmp_path / f"table-{number}"
        jobs.run("stats", *stats, *place, "--out", str(out))
        (written,) = out.glob("part-*.json")
        table = [orjson.loads(line) for line in written.read_text().splitlines()]
        assert [(row["stream"], row["messages"], row["bytes"], row["lag_archive"]) for row in table] == [
            (f"{streams.name}-a", 3, 6, 0),
            (f"{streams.name}-b", 1, 4, 7),
        ]


def test_stats_of_a_table_say_how_many_bytes_of_each_stream_it_does_not_have(
    jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    """Of one that was created again, and of one that is new, it has nothing."""
    lake, both = Lake(tmp_path / "lake"), [*jobs.where, "--pattern", f"{streams.name}-."]
    streams.fill(b"four", suffix="-a")
    streams.fill(b"other", suffix="-b")
    jobs.run("archive", *both, *lake.given, "--checkpoint", str(tmp_path / "c"))
    streams.append(b"later", suffix="-a")
    streams.delete("-b")
    streams.fill(b"another", suffix="-b")
    streams.fill(b"new", suffix="-c")
    said = [line.split() for line in jobs.run("stats", *both, *lake.given).splitlines()]
    assert [(line[0], line[1], line[-1]) for line in said[:4]] == [
        ("stream", "messages", "lag_lake"),
        (f"{streams.name}-a", "1", "5"),
        (f"{streams.name}-b", "1", "7"),
        (f"{streams.name}-c", "0", "3"),
    ]


def test_a_plot_tells_the_largest_streams_apart_and_adds_up_all_others() -> None:
    begin = datetime(2026, 1, 1)  # noqa: DTZ001 - as Spark hands them over
    counts = [
        {"stream": f"s-{index:02}", "minute": begin + timedelta(minutes=minute), "messages": index}
        for index in range(1, 13)
        for minute in (0, 2)
    ]
    rates = load_job("stats").rates_of(counts)
    assert list(rates) == [*(f"s-{index:02}" for index in range(4, 13)), "3 other streams"]
    assert (list(rates["s-04"]), list(rates["3 other streams"])) == ([4, 0, 4], [6, 0, 6])
    # Over a day a row is a quarter of an hour.
    far = [*counts, {"stream": "s-12", "minute": begin + timedelta(days=1), "messages": 30}]
    rates = load_job("stats").rates_of(far)
    assert (len(rates), rates["s-12"].iloc[-1]) == (97, 2)


def test_what_no_stream_or_no_time_leaves_out_is_said(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """Over HTTP no message has a time: there is no rate, and nothing to draw."""
    streams.fill(b"four")
    given = ["--url", streams.server.url, "--subscribe", streams.name, "--plot", str(tmp_path / "plot.png")]
    code, said, err = jobs.start("stats", *given)
    assert (code, said.splitlines()[1].split()) == (0, [streams.name, "1", "4", "4.0", "4", "-", "-"])
    assert "plot.png is not drawn: no message has a time" in err
    none, out = ["--pattern", f"{streams.name}-none"], tmp_path / "out"
    assert "streams=0 messages=0" in jobs.run("stats", *jobs.where, *none, "--out", str(out))
    assert next(out.glob("part-*.json")).read_bytes() == b""
    nowhere = ["--subscribe", streams.name, "--plot", str(tmp_path / "none" / "p.png")]
    code, _, err = jobs.start("stats", *jobs.where, *nowhere)
    assert (code, len(err.splitlines())) == (Exit.YOUR_INPUT, 1)
