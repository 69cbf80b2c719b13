"""The archive job: batches, what it could not read, and which checkpoint fits which table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.opaque import OpaqueServer
from tests.spark.streams import Start, Streams, filled, key, table_options
from tests.support import JSON, World
from tidemark.log.schema import log_pk
from tidemark.protocol.offset import render_offset
from tidemark.service.load import load_head
from tidemark.spark.failures import Exit
from tidemark.spark.whole import read_whole


def test_an_archive_is_made_in_batches_of_bounded_size(
    jobs: Jobs, streams: Streams, small_pages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By either transport, on every version of Spark: a run that fails goes on behind its last batch. What it
    wrote is not read again to look for losses, which would have stopped it."""
    monkeypatch.setattr("tidemark.spark.gaps.find_losses", None)
    streams.fill(*[bytes(200)] * 3)
    for transport, connection in (("http", ["--url", streams.server.url]), ("dynamodb", jobs.where)):
        lake = Lake(tmp_path / transport)
        archive = ["--subscribe", streams.name, "--batch-bytes", "250", *lake.given]
        place = str(tmp_path / f"{transport}-checkpoint")
        code, _, err = jobs.start("archive", *connection, *archive, "--checkpoint", place)
        assert (code, err.count(": 1 messages")) == (0, 3), err
        assert [row["bytes"] for row in lake.rows()] == [200] * 3


def test_an_archive_says_what_it_could_not_read(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """A batch is gone, at the beginning and later; and a stream that was created again."""
    lake = Lake(tmp_path / "lake")
    for suffix in ("-gone", "-again"):
        streams.fill(b"0123", suffix=suffix)
    archive = ["archive", *jobs.where, "--pattern", f"{streams.name}-.*", *lake.given]
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
    assert {row["bytes"] for row in lake.rows()} == {4, 5, 7}


class Archives:
    """Runs of the archive into one table, with a checkpoint that the test names."""

    def __init__(self, start: Start, where: list[str], directory: Path) -> None:
        self._start, self._where, self._directory = start, where, directory
        self.lake = Lake(directory / "lake")

    def run(self, checkpoint: str, pattern: str) -> None:
        code, _, err = self._try(checkpoint, pattern)
        assert code == 0, err

    def refused(self, checkpoint: str, pattern: str) -> str:
        """The line that says why; the table stays as it is."""
        before = self.lake.table.metadata_location
        code, said, err = self._try(checkpoint, pattern)
        assert (code, said, self.lake.table.metadata_location) == (Exit.YOUR_INPUT, "", before), err
        return err.splitlines()[-1]

    def _try(self, checkpoint: str, pattern: str) -> tuple[int, str, str]:
        place = ["--checkpoint", str(self._directory / checkpoint)]
        return self._start("archive", *self._where, "--pattern", pattern, *self.lake.given, *place)

    def values(self) -> list[bytes]:
        return sorted(row["value"] for row in self.lake.rows())


@pytest.fixture
def archives(start: Start, where: list[str], tmp_path: Path) -> Archives:
    return Archives(start, where, tmp_path)


def test_a_table_that_was_rolled_back_gets_back_what_it_lost(
    archives: Archives, spark: Any, world: World, name: str
) -> None:
    """The checkpoint is refused, which would leave a hole for good. `read_whole` reads from the streams what
    the table lacks. A new checkpoint goes on where the table ends."""
    filled(world, name, b"one")
    archives.run("c", name)
    first = archives.lake.table.current_snapshot().snapshot_id
    for body in (b"two", b"three"):
        world.process().append(key(name), body)
        archives.run("c", name)
    archives.lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert archives.values() == [b"one"]
    told: dict[str, Any] = table_options(world) | {"subscribe": name}
    whole = read_whole(spark, "lake.messages", catalog_properties=archives.lake.properties, **told)
    assert sorted(bytes(row["value"]) for row in whole.collect()) == [b"one", b"three", b"two"]
    world.process().append(key(name), b"four")
    told_why = archives.refused("c", name)
    assert f"{name} up to {render_offset(3)}, and the checkpoint goes on from {render_offset(11)}" in told_why
    archives.run("new", name)
    assert archives.values() == [b"four", b"one", b"three", b"two"]


def test_no_two_archives_bring_the_same_messages(archives: Archives, world: World, name: str) -> None:
    """A pattern that is widened to what another archive brought; an archive that another one has overtaken; a
    checkpoint that is older than the table; a checkpoint of another table."""
    filled(world, f"{name}-a", b"a1")
    filled(world, f"{name}-b", b"b1")
    for stream in ("a", "b"):
        archives.run(stream, f"{name}-{stream}")
    world.process().append(key(f"{name}-b"), b"b2")
    told = archives.refused("a", f"{name}-.*")
    assert f"{name}-b up to {render_offset(2)}, and the checkpoint goes on from its beginning" in told
    archives.run("new", f"{name}-.*")
    assert archives.values() == [b"a1", b"b1", b"b2"]
    archives.run("b", f"{name}-b")
    world.process().append(key(f"{name}-b"), b"b3")
    archives.run("new", f"{name}-.*")
    world.process().append(key(f"{name}-b"), b"b4")
    assert f"{name}-b up to {render_offset(6)}, and the checkpoint goes on from" in archives.refused(
        "b", f"{name}-b"
    )
    archives.run("new", f"{name}-.*")
    assert archives.values() == [b"a1", b"b1", b"b2", b"b3", b"b4"]
    load_catalog("default", **archives.lake.properties).drop_table("lake.messages")
    world.process().append(key(f"{name}-a"), b"a2")
    archives.lake.ensured()
    assert "up to its beginning" in archives.refused("new", f"{name}-.*")


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


TABLE = ["--iceberg", "a.b", "--checkpoint", "y"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([*TABLE, "--option", "columns=value"], "an archive has its own"),
        ([*TABLE, "--option", "maxbytespertrigger=5"], "--batch-bytes says"),
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
    jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    """As over the table. One of a server that does not tell them says so, and goes on."""
    streams.fill(b"[1,2]", content_type=JSON)
    streams.world.clock.advance(48 * 60 * 60 * 1000)
    streams.append(b"[3]")

    def archived(transport: str, *connection: str) -> tuple[list[Any], str]:
        lake, place = Lake(tmp_path / transport), str(tmp_path / f"{transport}-checkpoint")
        code, _, err = jobs.start("archive", *connection, *lake.given, "--checkpoint", place)
        assert code == 0, err
        days = {str(task.file.partition[1]) for task in lake.table.scan().plan_files()}
        return sorted((row["value"], row["time"]) for row in lake.rows()), f"{len(days)} days {err}"

    over_table, _ = archived("table", *jobs.where, "--subscribe", streams.name)
    over_http, told = archived("http", "--url", streams.server.url, "--subscribe", streams.name)
    assert over_http == over_table
    assert told.startswith("2 days")
    assert "without their time" not in told
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        rows, told = archived("foreign", "--url", foreign.url, "--subscribe", "s")
    assert rows == [(b"1", None)]
    assert told.count("archived without their time") == 1


def test_a_stream_with_a_gap_is_replayed_only_if_that_is_allowed(
    jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    archive = ["archive", *jobs.where, "--subscribe", streams.name, *lake.given]
    streams.fill()
    for count in (1, 1, 1, 2):  # A file each, of which two are removed.
        streams.append(*[b"0123"] * count)
        jobs.run(*archive, "--checkpoint", str(tmp_path / "c"))
    lake.table.delete("offset = '0000000000000008' or offset = '0000000000000000'")
    again = [
        "--stream",
        streams.name,
        "--to",
        f"{streams.name}-again",
        "--staging",
        str(tmp_path / "staging"),
    ]
    replay = ["replay", "--url", streams.server.url, *lake.given, *again, "--id"]
    assert "2 gaps, the first from the beginning to 0000000000000004" in jobs.refuse(*replay, "one")
    code, said, err = jobs.start(*replay, "one", "--allow-gaps")
    assert (code, "messages=3" in said, "gaps=2" in said) == (0, True, True)
    assert "a gap from 0000000000000008 to 0000000000000012" in err
    assert streams.stored("-again") == b"0123" * 3
    # What was archived is not put behind messages that are there already, as those of the stream itself.
    said = jobs.refuse(*replay, "another", "--allow-gaps")
    assert f"{streams.name}-again has messages already" in said
