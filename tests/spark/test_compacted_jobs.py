"""The jobs over compacted streams: what is gone is not lost, and what is lost is not taken for gone."""

from pathlib import Path
from typing import Any

import pytest

from tests.spark.changes import Rows, compacted_rows
from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams
from tidemark.spark.whole import read_whole


@pytest.fixture
def rows(streams: Streams) -> Rows:
    return compacted_rows(streams)


def test_jobs_skip_what_compaction_removed(jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path) -> None:
    """An archive that came too late for some of it lost nothing, and `read_whole` goes on behind it."""
    rows, lake = Rows(streams), Lake(tmp_path / "lake")
    archive = ["archive", *jobs.where, "--subscribe", streams.name, *lake.given]
    archive += ["--option", "failOnDataLoss=false"]
    rows.change(10)
    first = rows.rows()
    assert "streams_with_loss=0" in jobs.run(*archive)
    rows.change(30)
    rows.compact()
    rows.change(5)
    second = rows.rows(int(first[-1][1]))
    said = jobs.run(*archive)
    assert f"messages={len(second)} " in said
    assert "streams_with_loss=0 lost_bytes=0" in said
    rows.change(5)
    tail = rows.rows(int(second[-1][1]))
    options: Any = streams.by_table() | {"ordered": True, "catalog_properties": lake.properties}
    whole = read_whole(spark, "lake.messages", **options)
    found = whole.select("offset", "end_offset", "value").collect()
    assert [(begin, end, bytes(value)) for begin, end, value in found] == first + second + tail
    replay = ["replay", *jobs.where, *lake.given, "--stream", streams.name, "--to", f"{streams.name}-again"]
    refused = jobs.refuse(*replay, "--staging", str(tmp_path / "staging"), "--id", "one")
    assert "--allow-gaps writes what is there, as of a stream that was compacted" in refused
