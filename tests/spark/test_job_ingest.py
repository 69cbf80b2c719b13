"""The ingest job, once under its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.spark.jobs import Jobs
from tests.spark.streams import Streams


def test_ingest_writes_once_under_its_id(jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path) -> None:
    """And a used id stands neither for other rows nor for another stream. Names of columns may have dots."""
    users = f"concat('{streams.name}-', id % 3) as `user.name`"
    for file, count in (("one", 300), ("two", 400)):
        spark.range(0, count, 1, 1).selectExpr("id as `row.id`", users).write.parquet(str(tmp_path / file))
    ingest = ["ingest", "--url", streams.server.url, "--create", "--staging", str(tmp_path / "staging")]
    by_user = ["--id", streams.name, "--stream-column", "user.name", "--input"]
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert said.startswith("ingest: messages=300 streams=3")
    assert "already" not in said
    said = jobs.run(*ingest, *by_user, str(tmp_path / "one"))
    assert "messages=300 streams=3" in said
    assert "already_complete=true" in said
    told = f"producer id {streams.name} was used for 300 rows to {streams.name}-0 and 2 more streams"
    to_one = ["--id", streams.name, "--stream", streams.name, "--input"]
    for other in ([*by_user, str(tmp_path / "two")], [*to_one, str(tmp_path / "one")]):
        said = jobs.refuse(*ingest, *other)
        assert told in said
        assert "give it an id of its own" in said
    for user in range(3):
        assert streams.values(f"-{user}") == [{"row.id": index} for index in range(user, 300, 3)]


def test_a_csv_is_read_by_sparks_options_and_null_stays(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """Its header names the columns, also with dots; a quoted line break is part of a value."""
    (tmp_path / "in.csv").write_text('a.b,text\n1,"two\nlines"\n2,\n')
    ingest = ["ingest", "--url", streams.server.url, "--staging", str(tmp_path / "s"), "--format", "csv"]
    ingest += ["--input", str(tmp_path / "in.csv"), "--create"]
    ingest += ["--input-option", "header=true", "--input-option", "multiLine=true"]
    jobs.run(*ingest, "--id", f"{streams.name}-1", "--stream", streams.name)
    assert streams.values() == [{"a.b": "1", "text": "two\nlines"}, {"a.b": "2", "text": None}]
    column = ["--value-column", "a.b", "--content-type", "text/plain"]
    jobs.run(*ingest, "--id", f"{streams.name}-2", "--stream", f"{streams.name}-column", *column)
    assert streams.stored("-column") == b"12"
