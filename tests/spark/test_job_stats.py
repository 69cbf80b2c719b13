"""The stats job: how far consumers and the archive's table are behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams, started


def test_stats_say_how_many_bytes_of_each_stream_a_consumer_and_the_table_do_not_have(
    spark: Any, jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    """Of one that was created again, and of one that is new, they have nothing."""
    lake, both = Lake(tmp_path / "lake"), [*jobs.where, "--pattern", f"{streams.name}-."]
    streams.fill(b"four", suffix="-a")
    streams.fill(b"other", suffix="-b")
    jobs.run("archive", *both, *lake.given)
    options = streams.by_table(subscribePattern=f"{streams.name}-.")
    query = spark.readStream.format("tidemark").options(**options).load().writeStream.format("noop")
    query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    started(lambda: query.start().awaitTermination())
    streams.append(b"later", suffix="-a")
    streams.delete("-b")
    streams.fill(b"another", suffix="-b")
    streams.fill(b"new", suffix="-c")
    consumer = ["--consumer", f"query={tmp_path / 'c'}", "--out", str(tmp_path / "out")]
    said = [line.split() for line in jobs.run("stats", *both, *lake.given, *consumer).splitlines()]
    assert said[:4] == [
        ["stream", "bytes", "lag_query", "lag_lake"],
        [f"{streams.name}-a", "9", "5", "5"],
        [f"{streams.name}-b", "7", "7", "7"],
        [f"{streams.name}-c", "3", "3", "3"],
    ]
    (written,) = (tmp_path / "out").glob("part-*.json")
    first = orjson.loads(written.read_text().splitlines()[0])
    assert first == {"stream": f"{streams.name}-a", "bytes": 9, "lag_query": 5, "lag_lake": 5}
    assert "streams=0" in jobs.run("stats", *jobs.where, "--pattern", f"{streams.name}-none")
