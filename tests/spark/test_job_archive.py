"""The archive job: batches, what it could not read, and the jobs that read a directory that it has made."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.opaque import OpaqueServer
from tests.spark.streams import Start, Streams, filled, key
from tests.support import JSON, World
from tidemark.log.schema import log_pk
from tidemark.protocol.offset import render_offset
from tidemark.service.load import load_head
from tidemark.spark.failures import Exit
from tidemark.spark.progress import taken_progress


def test_what_was_archived_is_replayed_byte_for_byte(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    """Incremental; JSON as it was written, and large bodies. A killed run left a file in the archive."""
    streams.fill(b'[{"a": 1.0}, "x"]', b' {"b" : [1, 2]} ', suffix="-json", content_type=JSON)
    streams.fill(b"one", bytes(range(256)) * 400, b"three", suffix="-bytes")
    archived, checkpoint = tmp_path / "archive", str(tmp_path / "checkpoint")
    places = ["--out", str(archived), "--checkpoint", checkpoint]
    archive = ["archive", *jobs.where, "--pattern", f"{streams.name}-.*", *places]
    assert "messages=6 " in jobs.run(*archive)
    (some,) = sorted(archived.rglob("part-*.parquet"))[:1]
    shutil.copy(some, some.with_name("part-of-a-killed-run.parquet"))
    streams.append(b"[3]", suffix="-json")
    assert "messages=1 " in jobs.run(*archive)
    assert "messages=0 " in jobs.run(*archive)
    assert spark.read.parquet(str(archived)).count() == 7
    day = datetime.fromtimestamp(streams.world.clock() / 1000, UTC).date()
    assert (archived / "bucket=v1" / f"date={day}").is_dir()
    taken = taken_progress(spark, checkpoint).positions[f"{streams.name}-json"]
    assert taken.offset == render_offset(len(streams.stored("-json")))
    for suffix in ("-json", "-bytes"):
        again = [
            "--stream",
            streams.name + suffix,
            "--to",
            f"{streams.name}{suffix}-again",
            "--id",
            suffix[1:],
        ]
        replay = ["replay", *jobs.where, "--archive", str(archived), *again, "--staging", str(tmp_path / "s")]
        for _ in range(2):
            assert "messages=" in jobs.run(*replay)
        assert streams.stored(f"{suffix}-again") == streams.stored(suffix)


def test_an_archive_is_made_in_batches_of_bounded_size(
    jobs: Jobs,
    spark: Any,
    streams: Streams,
    small_pages: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """By either transport, on every version of Spark: a run that fails goes on behind its last batch. What it
    wrote is not read again to look for losses, which would have stopped it."""
    monkeypatch.setattr("tidemark.spark.gaps.find_losses", None)
    streams.fill(*[bytes(200)] * 3)
    for transport, connection in (("http", ["--url", streams.server.url]), ("dynamodb", jobs.where)):
        out = str(tmp_path / transport)
        archive = ["--subscribe", streams.name, "--batch-bytes", "250", "--out", out]
        code, _, err = jobs.start("archive", *connection, *archive, "--checkpoint", f"{out}-checkpoint")
        assert (code, err.count(": 1 messages")) == (0, 3), err
        assert spark.read.parquet(out).agg({"bytes": "sum"}).first()[0] == 600


def test_an_archive_says_what_it_could_not_read(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    """A batch is gone, at the beginning and later; and a stream that was created again."""
    for suffix in ("-gone", "-again"):
        streams.fill(b"0123", suffix=suffix)
    archive = ["archive", *jobs.where, "--pattern", f"{streams.name}-.*", "--out", str(tmp_path / "a")]
    archive += ["--checkpoint", str(tmp_path / "c"), "--option", "failOnDataLoss=false"]
    said = jobs.run(*archive)
    assert "messages=2 " in said
    assert "streams_with_loss=0 lost_bytes=0" in said
    record = load_head(streams.process.stores, streams.key("-gone")).record
    streams.append(b"lost", b"here", b"lost and", b"there", suffix="-gone")
    for offset in (4, 12):
        item = {"pk": {"S": log_pk(record.key, record.incarnation)}, "sk": {"S": render_offset(offset)}}
        streams.process.stores.table.delete(item)
    streams.delete("-again")
    streams.fill(b"another", suffix="-again")
    code, said, err = jobs.start(*archive)
    assert code == Exit.DATA_LOST
    assert "messages=3 " in said
    assert "streams_with_loss=2 lost_bytes=12 " in said
    assert f"archive: {streams.name}-gone: 12 bytes could not be archived" in err
    told = "what was not read when it was deleted and created again"
    assert f"archive: {streams.name}-again: {told}" in err
    said = jobs.run(*archive)
    assert "messages=0 " in said
    assert "streams_with_loss=0 " in said, "it is told once"
    assert {row.bytes for row in spark.read.parquet(str(tmp_path / "a")).collect()} == {4, 5, 7}


def test_an_archive_and_its_checkpoint_belong_together(
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """Spark's file sink passes over batches whose numbers it has seen, and a table would have them twice. In
    either case the run would end with a success."""
    filled(world, name, b"one")
    lake, other = Lake(tmp_path / "lake"), Lake(tmp_path / "other")
    places = {
        "directory": (["--out", str(tmp_path / "a")], ["--out", str(tmp_path / "b")]),
        "table": (lake.given, other.given),
    }
    for kind, (mine, another) in places.items():
        archive = ["archive", *where, "--subscribe", name]
        whole = [*archive, *mine, "--checkpoint", str(tmp_path / kind)]
        assert start(*whole)[0] == 0
        for wrong in (
            [*archive, *mine, "--checkpoint", str(tmp_path / f"{kind}-new")],
            [*archive, *another, "--checkpoint", str(tmp_path / kind)],
        ):
            code, said, err = start(*wrong)
            assert (code, said, "do not belong together" in err) == (Exit.YOUR_INPUT, "", True), err
        world.process().append(key(name), b"two")
        code, said, err = start(*whole)
        assert (code, "messages=1 " in said or kind == "table") == (0, True), err
    assert spark.read.parquet(str(tmp_path / "a")).count() == 2
    assert len(lake.rows()) == 3


def test_a_checkpoint_that_is_older_than_the_archive_is_refused(
    start: Start, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """The archive would take its new batches for those that it has already."""
    filled(world, name, b"one")
    lake = Lake(tmp_path / "lake")
    for kind, out in (("directory", ["--out", str(tmp_path / "a")]), ("table", lake.given)):
        checkpoint, backup = tmp_path / kind, tmp_path / f"{kind}-backup"
        archive = ["archive", *where, "--subscribe", name, *out, "--checkpoint", str(checkpoint)]
        assert start(*archive)[0] == 0
        shutil.copytree(checkpoint, backup)
        world.process().append(key(name), b"two")
        assert start(*archive)[0] == 0
        newest = checkpoint.rename(tmp_path / f"{kind}-newest")
        backup.rename(checkpoint)
        world.process().append(key(name), b"three")
        code, said, err = start(*archive)
        assert (code, said, "do not belong together" in err) == (Exit.YOUR_INPUT, "", True), err
        shutil.rmtree(checkpoint)
        newest.rename(checkpoint)
        code, said, err = start(*archive)
        assert (code, "messages=1 " in said) == (0, True), err


def test_a_query_without_rows_so_far_keeps_its_table(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """And another query may bring other streams to the table."""
    lake = Lake(tmp_path / "lake")
    streams.fill(b"one", suffix="-a")
    streams.fill(suffix="-b")
    for suffix, messages in (("-b", 0), ("-b", 0), ("-a", 1), ("-b", 1)):
        if suffix == "-b" and messages:
            streams.append(b"two", suffix="-b")
        places = [*lake.given, "--checkpoint", str(tmp_path / suffix)]
        said = jobs.run("archive", *jobs.where, "--subscribe", streams.name + suffix, *places)
        assert f"messages={messages} " in said
    assert sorted(row["value"] for row in lake.rows()) == [b"one", b"two"]


OUT, TABLE = ["--out", "x", "--checkpoint", "y"], ["--iceberg", "a.b", "--checkpoint", "y"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--out", "x", "--checkpoint", "x/"], "must be two directories"),
        ([*OUT, "--option", "columns=value"], "an archive has its own"),
        ([*OUT, "--option", "maxbytespertrigger=5"], "--batch-bytes says"),
        (TABLE, "the catalog default cannot be used (URI missing"),
        (
            [*TABLE, "--catalog-property", "type=none"],
            "('none' is not a valid CatalogType): give its properties",
        ),
        (
            [
                *TABLE,
                *("--catalog-property", "type=sql", "--catalog-property", "uri=sqlite:////proc/no/a.db"),
            ],
            "unable to open database file): give its properties",
        ),
    ],
)
def test_what_cannot_become_an_archive_is_told_in_one_line(
    jobs: Jobs, streams: Streams, arguments: list[str], what: str
) -> None:
    streams.fill(b"one")
    code, said, err = jobs.start("archive", *jobs.where, "--subscribe", streams.name, *arguments)
    assert (code, said, len(err.splitlines())) == (Exit.YOUR_INPUT, "", 1), err
    assert what in err


def test_an_archive_over_http_has_the_time_and_the_day_of_each_message(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    """As over the table. One of a server that does not tell them says so, and goes on."""
    streams.fill(b"[1,2]", content_type=JSON)
    streams.world.clock.advance(48 * 60 * 60 * 1000)
    streams.append(b"[3]")

    def archived(transport: str, *connection: str) -> tuple[list[Any], str]:
        out = str(tmp_path / transport)
        code, _, err = jobs.start("archive", *connection, "--out", out, "--checkpoint", f"{out}-checkpoint")
        assert code == 0, err
        rows = spark.read.parquet(out).select("value", "timestamp", "date").collect()
        return sorted(tuple(row) for row in rows), err

    over_table, _ = archived("table", *jobs.where, "--subscribe", streams.name)
    over_http, told = archived("http", "--url", streams.server.url, "--subscribe", streams.name)
    assert over_http == over_table
    assert len({day for _, _, day in over_http}) == 2
    assert "without their time" not in told
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        rows, told = archived("foreign", "--url", foreign.url, "--subscribe", "s")
    assert [(value, time) for value, time, _ in rows] == [(b"1", None)]
    assert told.count("archived without their time, under the day of this run") == 1


def test_a_stream_with_a_gap_is_replayed_only_if_that_is_allowed(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    streams.fill(*[b"0123"] * 5)
    whole, torn = str(tmp_path / "whole"), str(tmp_path / "torn")
    places = ["--out", whole, "--checkpoint", str(tmp_path / "c")]
    jobs.run("archive", *jobs.where, "--subscribe", streams.name, *places)
    gaps = "offset not in ('0000000000000008', '0000000000000000')"
    spark.read.parquet(whole).where(gaps).write.parquet(torn)
    again = [
        "--stream",
        streams.name,
        "--to",
        f"{streams.name}-again",
        "--staging",
        str(tmp_path / "staging"),
    ]
    replay = ["replay", *jobs.where, "--archive", torn, *again, "--id"]
    assert "2 gaps, the first from the beginning to 0000000000000004" in jobs.refuse(*replay, "one")
    code, said, err = jobs.start(*replay, "one", "--allow-gaps")
    assert (code, "messages=3" in said, "gaps=2" in said) == (0, True, True)
    assert "a gap from 0000000000000008 to 0000000000000012" in err
    assert streams.stored("-again") == b"0123" * 3
    # What was archived is not put behind messages that are there already, as those of the stream itself.
    said = jobs.refuse(*replay, "another", "--allow-gaps")
    assert f"{streams.name}-again has messages already" in said
