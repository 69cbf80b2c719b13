"""The archive job, by Spark and without it: batches, what it could not read, and other archives beside it."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.buckets import key_in_new_bucket
from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.opaque import OpaqueServer
from tests.spark.streams import Streams, filled, key, table_options
from tests.support import JSON, World
from tidemark.log.schema import log_pk
from tidemark.protocol.offset import render_offset
from tidemark.service.load import load_head
from tidemark.spark.archive import Archive, WritePacks
from tidemark.spark.failures import Exit
from tidemark.spark.lake import LakeTable
from tidemark.spark.lake_files import FilesWritten
from tidemark.spark.options import InvalidOptions
from tidemark.spark.reach import reaches_of
from tidemark.spark.readers.port import DataLoss
from tidemark.spark.whole import read_whole


def test_an_archive_is_made_in_batches_of_bounded_size(
    jobs: Jobs, streams: Streams, small_pages: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By either transport: a run that fails goes on behind its last batch."""
    streams.fill(*[bytes(200)] * 3)
    for transport, connection in (("http", ["--url", streams.server.url]), ("dynamodb", jobs.where)):
        lake = Lake(tmp_path / transport)
        archive = ["--subscribe", streams.name, "--batch-bytes", "250", *lake.given]
        code, _, err = jobs.start("archive", *connection, *archive)
        assert (code, err.count(": 1 messages")) == (0, 3), err
        assert [row["bytes"] for row in lake.rows()] == [200] * 3


def test_an_archive_says_what_it_could_not_read(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """A batch is gone, at the beginning and later; and a stream that was created again."""
    lake = Lake(tmp_path / "lake")
    for suffix in ("-gone", "-again"):
        streams.fill(b"0123", suffix=suffix)
    archive = ["archive", *jobs.where, "--pattern", f"{streams.name}-.*", *lake.given]
    archive += ["--option", "failOnDataLoss=false"]
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
    told = "messages unread when it was deleted and created again"
    assert f"archive: {streams.name}-again: {told}" in err
    said = jobs.run(*archive)
    assert "messages=0 " in said
    assert "streams_with_loss=0 " in said, "it is told once"
    assert {row["bytes"] for row in lake.rows()} == {4, 5, 7}


class Archives:
    """Archives of one table, in this process."""

    def __init__(self, options: Mapping[str, str], directory: Path) -> None:
        self.lake, self._options = Lake(directory), options
        self.said: list[str] = []

    def take(
        self, pattern: str, write_packs: WritePacks = map, batch_bytes: int = 10**9, **options: str
    ) -> int:
        """What came. Returns how many messages that were."""
        given = {**self._options, "subscribePattern": pattern, **options}
        lake = LakeTable("default", self.lake.properties, "lake.messages")
        archive = Archive(given, lake, batch_bytes, write_packs, self.said.append)
        archive.take_what_came()
        return archive.messages

    def values(self) -> list[bytes]:
        return sorted(row["value"] for row in self.lake.rows())


@pytest.fixture
def archives(world: World, tmp_path: Path) -> Archives:
    return Archives(table_options(world), tmp_path / "lake")


def test_a_table_rolled_back_gets_its_rows(archives: Archives, spark: Any, world: World, name: str) -> None:
    """`read_whole` reads from the streams what the table lacks meanwhile."""
    filled(world, name, b"one")
    archives.take(name)
    first = archives.lake.table.current_snapshot().snapshot_id
    for body in (b"two", b"three"):
        world.process().append(key(name), body)
        archives.take(name)
    archives.lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert archives.values() == [b"one"]
    told: dict[str, Any] = table_options(world) | {"subscribe": name}
    whole = read_whole(spark, "lake.messages", catalog_properties=archives.lake.properties, **told)
    assert sorted(bytes(row["value"]) for row in whole.collect()) == [b"one", b"three", b"two"]
    world.process().append(key(name), b"four")
    assert archives.take(name) == 3
    assert archives.values() == [b"four", b"one", b"three", b"two"]


def test_a_maintained_table_knows_what_ended_and_deleted_rows_stay_deleted(
    archives: Archives, streams: Streams
) -> None:
    """Another engine expires snapshots and removes orphans: right above the archive's snapshot, and where the
    chain of parents to it is broken. An archive that finds nothing new lets go of deleted rows."""
    lake, pattern = archives.lake, f"{streams.name}-.*"
    suffixes = ("-open", "-closed", "-gone")
    for suffix in suffixes:
        streams.fill(b"a secret", suffix=suffix)
    assert archives.take(pattern) == 3
    for suffix in suffixes:
        streams.append(b"one", suffix=suffix)
    streams.process.append(streams.key("-closed"), close=True)
    assert archives.take(pattern) == 3
    streams.delete("-gone")
    assert archives.take(pattern, failOnDataLoss="false") == 0
    streams.delete("-closed")
    lake.table.delete(f"offset = '{render_offset(0)}'")
    for rewrites in (0, 1, 2):
        for _ in range(rewrites):
            lake.rewrite()
        lake.maintain()
        assert archives.take(pattern) == 0
        assert archives.values() == [b"one"] * 3
    lake.maintain()
    assert len(list(lake.directory.rglob("*.parquet"))) == len(lake.files)
    streams.append(b"two", suffix="-open")
    assert archives.take(pattern) == 1
    assert archives.values() == [b"one", b"one", b"one", b"two"]


def test_a_maintained_table_that_was_rolled_back_gets_its_rows(archives: Archives, streams: Streams) -> None:
    """The tag names a snapshot that is no ancestor of the current one."""
    streams.fill(b"one")
    assert archives.take(streams.name) == 1
    archives.lake.rewrite()
    rewritten = archives.lake.table.current_snapshot().snapshot_id
    streams.append(b"two")
    assert archives.take(streams.name) == 1
    archives.lake.table.manage_snapshots().rollback_to_snapshot(rewritten).commit()
    archives.lake.maintain()
    assert archives.take(streams.name) == 1
    assert archives.values() == [b"one", b"two"]


def test_archives_that_meet_take_each_message_once(archives: Archives, world: World, name: str) -> None:
    """A pattern that is widened to what another one brought; and one that is overtaken while it writes: its
    files go, and it takes the rest."""
    filled(world, f"{name}-a", b"a1")
    filled(world, f"{name}-b", b"b1")
    assert [archives.take(f"{name}-{stream}") for stream in ("a", "b", ".")] == [1, 1, 0]
    world.process().append(key(f"{name}-b"), b"b2")
    overtaken = [lambda: archives.take(f"{name}-b")]

    def meanwhile(write: Callable[[Any], FilesWritten], packs: Sequence[Any]) -> list[FilesWritten]:
        written = [write(each) for each in packs]
        if overtaken:
            assert overtaken.pop()() == 1
            world.process().append(key(f"{name}-a"), b"a2")
        return written

    filled(world, f"{name}-c", b"c1")
    assert archives.take(f"{name}-.", meanwhile) == 1
    assert [line for line in archives.said if "another archive" in line] == [
        "another archive committed first: its messages are not archived again"
    ]
    assert archives.take(f"{name}-.") == 1
    assert archives.values() == [b"a1", b"a2", b"b1", b"b2", b"c1"]
    assert len(list(archives.lake.directory.rglob("*.parquet"))) == len(archives.lake.files)


def test_a_batch_that_fails_leaves_no_file(archives: Archives, world: World, name: str) -> None:
    """One task has written its file by then."""
    filled(world, name, b"one")

    def fail(write: Callable[[Any], FilesWritten], packs: Sequence[Any]) -> Iterator[FilesWritten]:
        yield write(packs[0])
        assert len(list(archives.lake.directory.rglob("*.parquet"))) == 1
        raise RuntimeError("injected")

    with pytest.raises(RuntimeError, match="injected"):
        archives.take(name, fail)
    assert not list(archives.lake.directory.rglob("*.parquet"))
    assert archives.take(name) == 1


def test_what_another_archive_brought_is_no_new_stream(archives: Archives, world: World, name: str) -> None:
    """Between two batches the table went beyond what the first look had found: streams are asked again."""
    for suffix in ("a", "b"):
        filled(world, f"{name}-{suffix}", b"1", b"2")
    others = [f"{name}-[bc]"]

    def meanwhile(write: Callable[[Any], FilesWritten], packs: Sequence[Any]) -> list[FilesWritten]:
        if others:
            world.process().append(key(f"{name}-b"), b"3")
            filled(world, f"{name}-c", b"1")
            assert archives.take(others.pop()) == 4
        return [write(each) for each in packs]

    assert archives.take(f"{name}-.", meanwhile, batch_bytes=2) == 2
    assert archives.values() == [b"1", b"1", b"1", b"2", b"2", b"3"]


def test_a_stream_that_is_gone_is_told_unless_it_was_closed(archives: Archives, streams: Streams) -> None:
    """It is written down as gone then, and told no more. One that came again is another one. A task that
    begins within a message loses nothing."""
    for suffix in ("-a", "-b", "-closed"):
        streams.fill(b"one", suffix=suffix)
    streams.process.append(streams.key("-closed"), close=True)
    pattern = f"{streams.name}-.*"
    assert archives.take(pattern, failOnDataLoss="false", bytesPerPartition="2") == 3
    streams.delete("-closed")
    assert archives.take(pattern) == 0
    streams.delete("-a")
    streams.delete("-b")
    streams.fill(b"another", suffix="-b")
    with pytest.raises(DataLoss, match=f"{streams.name}-a: it does not exist any more"):
        archives.take(pattern)
    assert archives.take(f"{streams.name}-a", failOnDataLoss="false") == 0
    with pytest.raises(DataLoss, match=f"{streams.name}-b: it was deleted and created again"):
        archives.take(pattern)
    assert archives.take(pattern, failOnDataLoss="false") == 1
    again = "-b: messages unread when it was deleted and created again could not be archived"
    assert [line for line in archives.said if "could not" in line] == [streams.name + again]
    assert archives.take(pattern) == 0
    assert archives.values() == [b"another", b"one", b"one", b"one"]


def test_an_archive_begins_where_it_is_told_in_new_streams(archives: Archives, streams: Streams) -> None:
    """Without messages a stream has no place in the table."""
    streams.fill(b"old", suffix="-a")
    streams.fill(suffix="-empty")
    streams.world.clock.advance(60_000)
    now = str(streams.world.clock.now_ms)
    streams.append(b"new", suffix="-a")
    assert archives.take(f"{streams.name}-.*", startingTimestamp=now) == 1
    assert {name for _, name, _ in reaches_of(archives.lake.table)} == {f"{streams.name}-a"}
    streams.append(b"late", suffix="-empty")
    assert archives.take(f"{streams.name}-.*", startingTimestamp=now) == 1
    with pytest.raises(InvalidOptions, match="give startingTimestamp"):
        archives.take("a", startingOffsets="latest")
    other = key_in_new_bucket(streams.process).bucket
    with pytest.raises(InvalidOptions, match=f"no such stream in {other}"):
        archives.take("", subscribe=f"{streams.name}-a", bucket=other)


TABLE = ["--iceberg", "a.b"]
OPENED = [*TABLE, "--catalog-property", "type=sql", "--catalog-property", "uri=sqlite://"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([*OPENED, "--option", "columns=value"], "columns is not for archives, which have their own"),
        ([*OPENED, "--option", "maxbytespertrigger=5"], "maxBytesPerTrigger is not for archives"),
        (TABLE, "the catalog default cannot be used (URI missing"),
        ([*TABLE, "--catalog-property", "type=none"],
         "('none' is not a valid CatalogType): give its properties"),
        ([*TABLE, *("--catalog-property", "type=sql", "--catalog-property", "uri=sqlite:////proc/no/a.db")],
         "unable to open database file): give its properties"),
    ],
)  # fmt: skip
def test_what_cannot_become_an_archive_is_told_in_one_line(
    jobs: Jobs, streams: Streams, arguments: list[str], what: str
) -> None:
    streams.fill(b"one")
    code, said, err = jobs.start("archive", *jobs.where, "--subscribe", streams.name, *arguments)
    assert (code, said, len(err.splitlines())) == (Exit.YOUR_INPUT, "", 1), err
    assert what in err


def test_an_archive_over_http_has_each_messages_time(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """As over the table. One of a server that does not tell them says so, and goes on."""
    streams.fill(b"[1,2]", content_type=JSON)
    streams.world.clock.advance(48 * 60 * 60 * 1000)
    streams.append(b"[3]")

    def archived(transport: str, *connection: str) -> tuple[list[Any], str]:
        lake = Lake(tmp_path / transport)
        code, _, err = jobs.start("archive", *connection, *lake.given)
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


def test_a_gap_is_replayed_only_if_that_is_allowed(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    archive = ["archive", *jobs.where, "--subscribe", streams.name, *lake.given]
    streams.fill()
    for count in (1, 1, 1, 2):  # A file each, of which two are removed.
        streams.append(*[b"0123"] * count)
        jobs.run(*archive)
    lake.table.delete("offset = '0000000000000008' or offset = '0000000000000000'")
    again = ["--stream", streams.name, "--to", f"{streams.name}-again"]
    again += ["--staging", str(tmp_path / "staging")]
    replay = ["replay", "--url", streams.server.url, *lake.given, *again, "--id"]
    assert "2 gaps, the first from the beginning to 0000000000000004" in jobs.refuse(*replay, "one")
    code, said, err = jobs.start(*replay, "one", "--allow-gaps")
    assert (code, "messages=3" in said, "gaps=2" in said) == (0, True, True)
    assert "a gap from 0000000000000008 to 0000000000000012" in err
    assert streams.stored("-again") == b"0123" * 3
    # What was archived is not put behind messages that are there already, as those of the stream itself.
    said = jobs.refuse(*replay, "another", "--allow-gaps")
    assert f"{streams.name}-again has messages already" in said


def test_a_stream_is_replayed_up_to_a_time_and_in_the_incarnation_that_is_named(
    jobs: Jobs, streams: Streams, tmp_path: Path
) -> None:
    """Created again, with the same offsets. What is replayed up to a time stays open."""
    lake = Lake(tmp_path / "lake")
    archive = ["archive", *jobs.where, "--subscribe", streams.name, *lake.given]
    streams.fill(b"old1", b"old2")
    streams.world.clock.advance(60_000)
    later = str(streams.world.clock.now_ms)
    streams.append(b"old3", close=True)
    jobs.run(*archive)
    replay = ["replay", "--url", streams.server.url, *lake.given, "--stream", streams.name]
    replay += ["--staging", str(tmp_path / "staging"), "--to"]
    early = [f"{streams.name}-early", "--id", "early", "--until"]
    assert "--until must be milliseconds since 1970" in jobs.refuse(*replay, *early, "noon")
    assert "closed" not in jobs.run(*replay, *early, later)
    assert streams.stored("-early") == b"old1old2"
    streams.delete()
    streams.fill(b"new1")
    jobs.run(*archive)
    by_value = sorted(lake.rows(), key=lambda row: bytes(row["value"]))
    new, old = dict.fromkeys(row["incarnation"] for row in by_value)
    again = [f"{streams.name}-again", "--id", "again"]
    told = jobs.refuse(*replay, *again)
    assert f"{streams.name} was deleted and created again: set --incarnation to one of {old} (" in told
    assert f"{new} (messages of {by_value[0]['time']:%Y-%m-%d %H:%M:%S} to " in told
    assert "has no incarnation x: set" in jobs.refuse(*replay, *again, "--incarnation", "x")
    assert "closed=true" in jobs.run(*replay, *again, "--incarnation", old)
    assert streams.stored("-again") == b"old1old2old3"


def test_the_job_goes_on_where_the_command_archived(jobs: Jobs, streams: Streams, tmp_path: Path) -> None:
    """From the server that the command line names."""
    lake = Lake(tmp_path / "lake")
    streams.fill(b"one")
    code = "import sys; sys.modules['pyspark'] = None; from tidemark.cli.__main__ import main; main()"
    program = [sys.executable, "-c", code, "--url", streams.server.url]
    command = [*program, "archive", "--transport", "http", "--subscribe", streams.name]
    done = subprocess.run([*command, *lake.given], capture_output=True, text=True, check=False)
    assert (done.returncode, "messages=1 " in done.stdout) == (0, True), done.stderr
    streams.append(b"two")
    assert "messages=1 " in jobs.run("archive", *jobs.where, "--subscribe", streams.name, *lake.given)
    found = sorted((row["value"], row["end_offset"]) for row in lake.rows())
    assert found == [(b"one", render_offset(3)), (b"two", render_offset(6))]
    refused = subprocess.run([*command, "--iceberg", "x"], capture_output=True, text=True, check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (Exit.YOUR_INPUT, 1), refused.stderr
