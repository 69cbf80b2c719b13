"""The archive job: batches, and what it could not read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.spark.lakes import Lake
from tests.spark.opaque import OpaqueServer
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Start, filled, key
from tests.support import JSON, World
from tidemark.log.lifecycle import load_stream
from tidemark.log.schema import log_pk
from tidemark.protocol.offset import render_offset
from tidemark.service.delete import delete
from tidemark.spark.failures import Exit


def test_an_archive_is_made_in_batches_of_bounded_size(
    start: Start,
    spark: Any,
    world: World,
    server: ThreadedServer,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """By either transport, on every version of Spark: a run that fails goes on behind its last batch."""
    filled(world, name, *[bytes(3 * 1024 * 1024)] * 3)
    for transport, connection in (("http", ["--url", server.url]), ("dynamodb", where)):
        out = str(tmp_path / transport)
        archive = ["--subscribe", name, "--batch-bytes", "4000000", "--out", out]
        code, _, err = start(
            "archive", *connection, *archive, "--checkpoint", str(tmp_path / f"checkpoint-{transport}")
        )
        assert (code, err.count(": 1 messages" if transport == "dynamodb" else " messages")) == (0, 3), err
        assert spark.read.parquet(out).agg({"bytes": "sum"}).first()[0] == 9 * 1024 * 1024


def test_an_archive_says_what_it_could_not_read(
    start: Start, spark: Any, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """A batch is gone, at the beginning and later; and a stream that was created again."""
    gone, again = f"{name}-gone", f"{name}-again"
    for stream in (gone, again):
        filled(world, stream, b"0123")
    archive = ["archive", *where, "--pattern", f"{name}-.*", "--out", str(tmp_path / "a")]
    archive += ["--checkpoint", str(tmp_path / "c"), "--option", "failOnDataLoss=false"]
    code, said, _ = start(*archive)
    assert (code, "messages=2 " in said, "streams_with_loss=0 lost_bytes=0" in said) == (0, True, True)
    process = world.process()
    record = load_stream(process.stores.table, key(gone))
    assert record is not None
    for body in (b"lost", b"here", b"lost and", b"there"):
        process.append(key(gone), body)
    for offset in (4, 12):
        item = {"pk": {"S": log_pk(record.key, record.incarnation)}, "sk": {"S": render_offset(offset)}}
        process.stores.table.delete(item)
    delete(process.stores, key(again))
    filled(world, again, b"another")
    code, said, err = start(*archive)
    assert code == Exit.DATA_LOST
    assert "messages=3 " in said
    assert "streams_with_loss=2 lost_bytes=12 " in said
    assert f"archive: {gone}: 12 bytes could not be archived" in err
    assert f"archive: {again}: what was not read when it was deleted and created again" in err
    # It is told once.
    code, said, _ = start(*archive)
    assert (code, "messages=0 " in said, "streams_with_loss=0 " in said) == (0, True, True)
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


def test_a_query_without_rows_so_far_keeps_its_table(
    start: Start, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    """And another query may bring other streams to the table."""
    lake = Lake(tmp_path / "lake")
    filled(world, f"{name}-a", b"one")
    filled(world, f"{name}-b")
    for stream, messages in (("b", 0), ("b", 0), ("a", 1), ("a", 0)):
        checkpoint = ["--checkpoint", str(tmp_path / stream)]
        code, said, err = start(
            "archive", *where, "--subscribe", f"{name}-{stream}", *lake.given, *checkpoint
        )
        assert (code, f"messages={messages} " in said) == (0, True), err
    world.process().append(key(f"{name}-b"), b"two")
    assert (
        start(
            "archive", *where, "--subscribe", f"{name}-b", *lake.given, "--checkpoint", str(tmp_path / "b")
        )[0]
        == 0
    )
    assert sorted(row["value"] for row in lake.rows()) == [b"one", b"two"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--out", "x", "--checkpoint", "x/"], "must be two directories"),
        (["--out", "x", "--checkpoint", "y", "--option", "columns=value"], "an archive has all of them"),
        (["--out", "x", "--checkpoint", "y", "--option", "maxbytespertrigger=5"], "--batch-bytes says"),
        (["--iceberg", "a.b", "--checkpoint", "y"], "the catalog default cannot be used (URI missing"),
        (
            ["--iceberg", "a.b", "--checkpoint", "y", "--catalog-property", "type=none"],
            "('none' is not a valid CatalogType): give its properties",
        ),
        (
            [
                *("--iceberg", "a.b", "--checkpoint", "y", "--catalog-property", "type=sql"),
                *("--catalog-property", "uri=sqlite:////proc/none/lake.db"),
            ],
            "unable to open database file): give its properties",
        ),
    ],
)
def test_what_cannot_become_an_archive_is_told_in_one_line(
    start: Start, world: World, name: str, where: list[str], arguments: list[str], what: str
) -> None:
    filled(world, name, b"one")
    code, said, err = start("archive", *where, "--subscribe", name, *arguments)
    assert (code, said, len(err.splitlines())) == (Exit.YOUR_INPUT, "", 1), err
    assert what in err


def test_a_narrower_pattern_is_told_from_streams_that_are_gone(
    start: Start, world: World, name: str, where: list[str], tmp_path: Path
) -> None:
    for each in "ab":
        filled(world, f"{name}-{each}", b"one")
    archive = ["archive", *where, "--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c")]
    assert start(*archive, "--pattern", f"{name}-.")[0] == 0
    code, _, err = start(*archive, "--pattern", f"{name}-a")
    assert (code, f"streams that are not subscribed any more: {name}-b; begin" in err) == (
        Exit.YOUR_INPUT,
        True,
    )


def test_an_archive_over_http_has_the_time_and_the_day_of_each_message(
    start: Start,
    spark: Any,
    world: World,
    server: ThreadedServer,
    name: str,
    where: list[str],
    tmp_path: Path,
) -> None:
    """As over the table. One of a server that does not tell them says so, and goes on."""
    filled(world, name, b"[1,2]", content_type=JSON)
    world.clock.advance(48 * 60 * 60 * 1000)
    world.process().append(key(name), b"[3]", content_type=JSON)

    def archived(transport: str, *connection: str) -> tuple[list[Any], str]:
        out = str(tmp_path / transport)
        made = ["--out", out, "--checkpoint", str(tmp_path / f"{transport}-checkpoint")]
        code, _, err = start("archive", *connection, *made)
        assert code == 0, err
        rows = spark.read.parquet(out).select("value", "timestamp", "date").collect()
        return sorted(tuple(row) for row in rows), err

    over_table, _ = archived("table", *where, "--subscribe", name)
    over_http, _ = archived("http", "--url", server.url, "--subscribe", name)
    assert over_http == over_table
    assert len({day for _, _, day in over_http}) == 2
    without = ["--option", "includeTimestamps=false"]
    bare, told = archived("without", "--url", server.url, "--subscribe", name, *without)
    assert {time for _, time, _ in bare} == {None}
    assert "without their time" not in told
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        rows, told = archived("foreign", "--url", foreign.url, "--subscribe", "s")
    assert [(value, time) for value, time, _ in rows] == [(b"1", None)]
    assert told.count("archived without their time, under the day of this run") == 1
