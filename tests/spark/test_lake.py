"""The archive as an Iceberg table: every engine reads the same rows of it, whatever crashed meanwhile."""

import contextlib
import os
import re
import signal
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType, NestedField, StringType

from tests.spark.duckdb_iceberg import connect_duckdb
from tests.spark.lakes import Content, Lake, add, add_message, batch, digest, made
from tests.spark.streams import Start, filled, key, read_here, table_options
from tests.support import BYTES, JSON, World
from tidemark.protocol.messages import parse_content_type
from tidemark.service.load import load_head
from tidemark.spark import lake as lake_module
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.lake import KEPT_SNAPSHOTS, SCHEMA, LakeTable, NoLakeTable
from tidemark.spark.lake_files import FilesWritten, write_files
from tidemark.spark.reach import REACH, ArchiveBatch, Reach, reaches_of


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def archive(start: Start, where: list[str], name: str, lake: Lake) -> Callable[..., Any]:
    arguments = ["archive", *where, "--pattern", f"{name}-.*", *lake.given]
    return lambda: start(*arguments)


def rows_of(*streams: tuple[str, list[tuple[int, bytes]]]) -> Content:
    return digest([(stream, f"{offset:016}", value) for stream, rows in streams for offset, value in rows])


def test_every_engine_reads_the_same_table_also_after_a_killed_run(
    start: Start,
    spark: Any,
    world: World,
    server: Any,
    name: str,
    archive: Callable[..., Any],
    lake: Lake,
    where: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Killed before its commit, and after it before Spark learned of it; then compacted by another engine,
    and replayed."""
    filled(world, f"{name}-json", b'[{"key":"k", "n": 1.0}, "x"]', content_type=JSON)
    filled(world, f"{name}-bytes", b"one", bytes(range(256)) * 40, content_type=BYTES)
    code, said, err = archive()
    assert "messages=4 " in said, err
    world.process().append(key(f"{name}-json"), b"[3]", content_type=JSON)
    commit = LakeTable._add

    def dies_before(*_: Any) -> bool:
        raise RuntimeError("killed")

    def dies_after(*batch: Any) -> bool:
        commit(*batch)
        raise RuntimeError("killed")

    for dies in (dies_before, dies_after):
        monkeypatch.setattr(LakeTable, "_add", dies)
        assert archive()[0] == Exit.FAILED
    monkeypatch.setattr(LakeTable, "_add", commit)
    assert archive()[0] == 0
    assert len(lake.table.snapshots()) == 2
    json = [(0, b'{"key":"k", "n": 1.0}'), (22, b'"x"'), (26, b"3")]
    large = [(0, b"one"), (3, bytes(range(256)) * 40)]
    expected = rows_of((f"{name}-json", json), (f"{name}-bytes", large))
    readers: list[Callable[[], Content]] = [lake.by_pyarrow, lake.by_polars, lake.by_duckdb]
    readers.append(lambda: lake.by_spark(spark))
    assert [read() for read in readers] == [expected] * 4
    # More files lie there than the table has: plain Parquet readers of the directory would count them.
    assert len(list(lake.directory.rglob("*.parquet"))) > len(lake.files)
    found = lake.table.scan().to_arrow().to_pylist()
    assert {(row["key"], row["bytes"]) for row in found if row["key"]} == {("k", 21)}
    assert {str(task.file.partition[0]) for task in lake.table.scan().plan_files()} == {"v1"}
    lake.rewrite()
    assert len(lake.files) == 1
    assert [read() for read in readers] == [expected] * 4
    for kind in ("json", "bytes"):
        replay = ["replay", "--url", server.url, *lake.given, "--stream", f"{name}-{kind}"]
        replay += ["--to", f"{name}-{kind}-again"]
        code, _, err = start(*replay, "--staging", str(tmp_path / "staging"), "--id", f"{name}-{kind}")
        assert code == 0, err
        process = world.process()
        assert process.read_all(key(f"{name}-{kind}-again")) == process.read_all(key(f"{name}-{kind}"))


def test_the_pages_view_parses_messages_into_columns(lake: Lake) -> None:
    table = lake.ensured()
    orders = [b'{"id": "a", "total": 9.5}', b'{"id": "b"}', b"3"]
    for stream in ("orders/eu", "other"):
        add(table, batch(0, stream), {"stream": stream, "value": orders})
    page = (Path(__file__).parents[2] / "docs" / "spark" / "jobs.md").read_text()
    view = re.findall(r"test_lake.py -->\n```sql\n(.*?)```", page, re.DOTALL)[0]
    scan = f"iceberg_scan('{lake.table.metadata_location}')"
    with connect_duckdb() as duckdb:
        duckdb.execute(re.sub(r"iceberg_scan\('.*?'\)", scan, view))
        found = sorted(duckdb.execute("SELECT stream, id, total FROM orders").fetchall(), key=str)
    assert found == [("orders/eu", "a", 9.5), ("orders/eu", "b", None), ("orders/eu", None, None)]


def test_a_replayed_stream_is_closed_where_it_was_and_a_fork_has_what_it_inherited(
    start: Start,
    world: World,
    server: Any,
    name: str,
    archive: Callable[..., Any],
    lake: Lake,
    where: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Closed with its last message, or by itself after everything was archived; a fork that leaves its source
    in the middle of a message; boundaries, content types with their parameters, and closure. One of them by
    HTTP, and one twice over."""
    process, text = world.process(), parse_content_type("text/plain; charset=utf-8")
    streams = {kind: key(f"{name}-{kind}") for kind in ("json", "text", "open", "fork")}
    process.create(streams["json"], content_type=JSON)
    process.append(streams["json"], b'[1, {"a": 2}]', content_type=JSON)
    process.append(streams["json"], b"[3]", content_type=JSON, close=True)
    for kind in ("text", "open"):
        process.create(streams[kind], content_type=text)
        for body in (b"first", b"second"):
            process.append(streams[kind], body, content_type=text)
    process.fork(streams["fork"], streams["text"], 5, 3)
    process.append(streams["fork"], b"of its own", content_type=text, close=True)
    assert archive()[0] == 0
    process.append(streams["text"], close=True)
    for _ in range(2):
        assert archive()[0] == 0
    for kind, source in streams.items():
        again = key(f"again-{name}-{kind}")
        names = ["--stream", source.stream_id, "--to", again.stream_id]
        replay = ["replay", "--url", server.url, *lake.given, *names]
        replay += ["--staging", str(tmp_path / "staging"), "--id", again.stream_id]
        for _ in range(2 if kind == "text" else 1):
            code, said, err = start(*replay)
            assert (code, "closed=true" in said) == (0, kind != "open"), err
        found, expected = load_head(process.stores, again), load_head(process.stores, source)
        assert process.read_all(again) == process.read_all(source)
        assert found.tail.closed == expected.tail.closed
        assert found.record.content_type == expected.record.content_type
        assert boundaries(world, again.stream_id) == boundaries(world, source.stream_id)


def boundaries(world: World, stream: str) -> list[str]:
    return [end for _, end, _ in read_here(table_options(world), subscribe=stream)]


def test_two_jobs_that_make_a_catalog_both_open_it(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one's tables come between the look for them and the statement that makes them."""
    made = list[str]()

    def late(name: str, **properties: str) -> Catalog:
        if not made:
            made.append(load_catalog(name, **properties).name)
            raise RuntimeError("(sqlite3.OperationalError) table iceberg_tables already exists")
        return load_catalog(name, **properties)

    monkeypatch.setattr(lake_module, "load_catalog", late)
    lake.ensured()
    assert (made, lake.table.name()) == (["default"], ("lake", "messages"))


def test_an_archive_that_goes_on_takes_what_comes_until_it_is_stopped(
    start: Start, world: World, name: str, lake: Lake, where: list[str]
) -> None:
    """SIGTERM ends it between two looks, with its summary and without an error."""
    load_catalog("default", **lake.properties)  # It is there before two open it at once.
    filled(world, f"{name}-a", b"one")
    seen: list[int] = []
    has_ended = threading.Event()

    def append_and_stop() -> None:
        while len(seen) < 3 and not has_ended.is_set():
            with contextlib.suppress(NoSuchTableError):
                snapshots = len(lake.table.snapshots())
                if snapshots == len(seen) + 1:
                    seen.append(snapshots)
                    world.process().append(key(f"{name}-a"), b"more")
            has_ended.wait(0.2)
        # Not where the job has ended: nobody would catch the signal.
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=append_and_stop)
    other.start()
    arguments = ["archive", *where, "--pattern", f"{name}-.*", *lake.given, "--every", "0.5"]
    code, said, err = start(*arguments)
    has_ended.set()
    other.join()
    assert (code, seen) == (0, [1, 2, 3]), err
    assert f"messages={lake.table.scan().to_arrow().num_rows} " in said
    assert start(*arguments[:-1], "0")[0] == Exit.YOUR_INPUT


def test_a_table_of_an_older_version_gets_the_columns_that_it_lacks(
    spark: Any, world: World, name: str, archive: Callable[..., Any], lake: Lake
) -> None:
    catalog = load_catalog("default", **lake.properties)
    catalog.create_namespace("lake")
    fields = (
        NestedField(number, field, StringType()) for number, field in enumerate(("stream", "offset"), 1)
    )
    old = catalog.create_table("lake.messages", Schema(*fields))
    old.append(pa.table({"stream": ["old"], "offset": ["0000000000000000"]}))
    filled(world, f"{name}-a", b"new")
    code, _, err = archive()
    assert code == 0, err
    found = {row["stream"]: row for row in lake.table.scan().to_arrow().to_pylist()}
    assert (found["old"]["value"], found[f"{name}-a"]["value"]) == (None, b"new")
    assert found[f"{name}-a"]["incarnation"]


def test_a_file_has_field_ids_and_statistics_also_beside_files_without_ids(lake: Lake) -> None:
    """An older release wrote files without ids. A renamed column keeps its values in both kinds."""
    add_message(lake.ensured(), 0)
    (made,) = (task.file for task in lake.table.scan().plan_files())
    place, older = made.file_path.removeprefix("file://"), lake.directory / "data" / "older.parquet"
    schema = parquet.read_schema(place)
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in schema] == list(range(1, 15))
    (expected,) = parquet_files_to_data_files(lake.table.io, lake.table.metadata, iter([made.file_path]))
    for name in ("lower_bounds", "upper_bounds", "null_value_counts", "partition", "file_size_in_bytes"):
        assert getattr(made, name) == getattr(expected, name), name
    without = pa.schema([field.remove_metadata() for field in schema])
    parquet.write_table(parquet.read_table(place).cast(without), older)
    lake.table.add_files([f"file://{older}"])
    both = digest([("s", "0", b"x")] * 2)
    assert [lake.by_pyarrow(), lake.by_polars(), lake.by_duckdb()] == [both] * 3
    with lake.table.update_schema() as update:
        update.rename_column("bytes", "size")
    assert [row["size"] for row in lake.rows()] == [1, 1]
    assert lake.ask_duckdb("SELECT size FROM {}") == [(1,), (1,)]


def made_by_others(lake: Lake, fields: str = "", schema: Schema = SCHEMA) -> LakeTable:
    """A table that is partitioned by `column:transform` in each of the fields."""
    catalog = load_catalog("default", **lake.properties)
    catalog.create_namespace("lake")
    found = [(field, schema.find_field(field.partition(":")[0]).field_id) for field in fields.split()]
    spec = (PartitionField(of, 1000 + of, field.partition(":")[2], field) for field, of in found)
    catalog.create_table("lake.messages", schema, partition_spec=PartitionSpec(*spec))
    return LakeTable("default", lake.properties, "lake.messages")


@pytest.mark.parametrize(
    "fields", ["bucket:bucket[4] time:month", "stream:void bucket:truncate[1] time:year", "time:day"]
)
def test_a_table_may_be_partitioned_by_what_all_rows_of_a_file_have(lake: Lake, fields: str) -> None:
    table = made_by_others(lake, fields)
    table.ensure()
    times = [datetime(2026, 11, 1, 5, tzinfo=UTC), None]
    assert add(table, batch(0), {"value": [b"1", b"2"], "timestamp": times})
    found = lake.table.scan(row_filter="bucket = 'v1' and time >= '2026-11-01T05:00:00+00:00'").to_arrow()
    assert found["value"].to_pylist() == [b"1"]
    told = lake.ask_duckdb("SELECT value FROM {} WHERE bucket = 'v1' AND stream = 's' ORDER BY time")
    assert told == [(b"1",), (b"2",)]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("stream:bucket[4]", "is partitioned by stream:bucket[4], bucket[4] of stream, but a file"),
        ("stream:identity", "identity of stream, but a file of the archive has one bucket and one day"),
        ("time:hour", "partition by bucket, and by year, month or day of time"),
    ],
)
def test_a_table_is_refused_before_anything_is_read(lake: Lake, fields: str, told: str) -> None:
    with pytest.raises(NoLakeTable, match=re.escape(told)):
        made_by_others(lake, fields).ensure()
    assert explain_failure(NoLakeTable("tidemark: x")) == ("x", Exit.YOUR_INPUT)


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("time", StringType(), "rows: Cannot change column type: time: string -> timestamptz"),
        ("mine", LongType(), "rows: Column mine is required, and must be optional"),
        ("position", LongType(), None),
    ],
)
def test_a_column_that_cannot_take_the_values_is_refused(
    lake: Lake, name: str, kind: Any, told: str | None
) -> None:
    table = made_by_others(lake, schema=Schema(NestedField(1, name, kind, required=True)))
    with pytest.raises(NoLakeTable, match=told) if told else contextlib.nullcontext():
        table.ensure()
        add_message(table, 0)
        assert lake.rows()[0]["position"] == 0


def test_the_reach_is_a_puffin_file_and_the_form_before_it_is_read(lake: Lake) -> None:
    """The table's statistics name the file, so that no engine removes it."""
    table, before = lake.ensured(), Reach("0", f"{1:016}", closed=True)
    place = f"{lake.table.location()}/metadata/reach-1.json.z"
    with lake.table.io.new_output(place).create() as older:
        older.write(zlib.compress(orjson.dumps([["v1", "s", "", msgspec.to_builtins(before)]])))
    with lake.table.transaction() as transaction:
        transaction.update_snapshot({"tidemark.reach": place}).fast_append().commit()
    assert reaches_of(lake.table) == {("v1", "s", ""): before}
    assert add(table, ArchiveBatch("v1", {}, {}, {}, {}))
    assert reaches_of(lake.table) == {("v1", "s", ""): before}
    (named,), snapshot = lake.table.metadata.statistics, lake.table.current_snapshot()
    assert snapshot.summary[REACH] == named.statistics_path
    assert lake.table.refs()["tidemark"].snapshot_id == named.snapshot_id == snapshot.snapshot_id
    data = Path(named.statistics_path.removeprefix("file://")).read_bytes()
    puffin = PuffinFile(data)
    (blob,) = puffin.footer.blobs
    assert (blob.type, blob.snapshot_id, blob.fields) == ("tidemark-reach-v1", snapshot.snapshot_id, [])
    assert orjson.loads(zlib.decompress(puffin.get_blob_payload(blob)))[0][1] == "s"
    assert len(data) == named.file_size_in_bytes
    assert data[-named.file_footer_size_in_bytes :].startswith(b"PFA1{")


def test_the_metadata_does_not_grow_with_the_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """By counts of files, but for one that pyiceberg leaves at each merge of manifests, which is every
    hundred commits by default. All rows stay, and the reach."""
    for name in (KEPT_SNAPSHOTS, "commit.manifest.min-count-to-merge"):
        monkeypatch.setitem(lake_module._PROPERTIES, name, "5")
    table, counts = lake.ensured(), []
    for number in range(60):
        add_message(table, number)
        counts.append(len(list((lake.directory / "metadata").iterdir())))
    merges = 20 // 4
    assert max(counts[40:]) <= max(counts[20:40]) + merges < 60
    assert len(lake.rows()) == 60
    assert reaches_of(lake.table) == {("v1", "s", ""): Reach(f"{0:016}", f"{60:016}")}


def test_a_refused_commit_leaves_nothing_and_is_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, refusals = SqlCatalog.commit_table, list[int]()

    def refuse(catalog: SqlCatalog, *change: Any) -> Any:
        if refusals and refusals.pop():
            raise CommitFailedException("another writer was faster")
        return commit(catalog, *change)

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    table = lake.ensured()
    refusals += [1, 2]
    assert add_message(table, 0)
    assert (len(lake.rows()), refusals) == (1, [])
    assert [len(list(lake.directory.rglob(kind))) for kind in ("reach-*", "*.parquet")] == [1, 1]
    refusals += [1] * 20
    with pytest.raises(CommitFailedException):
        add_message(table, 1)
    assert [len(list(lake.directory.rglob(kind))) for kind in ("reach-*", "*.parquet")] == [1, 1]


def test_a_task_writes_a_file_a_day(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody tells the time. What it holds is bounded however many days there are."""
    monkeypatch.setattr("tidemark.spark.lake_files.HELD_BYTES", 20_000)
    times = [*(datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 5)), None]
    streams = [{"stream": name, "value": [b"x"] * 5, "timestamp": times} for name in "aab"]
    table = lake.ensured()
    place = table.place()
    assert table.add(place, [FilesWritten(write_files(map(made, streams), place), {})], batch(0))
    files = [task.file for task in lake.table.scan().plan_files()]
    assert {each.partition[1] for each in files} >= {None}
    assert [each.record_count for each in files] == [3] * 5
    places = (each.file_path.removeprefix("file://") for each in files)
    assert max(parquet.read_metadata(place).num_row_groups for place in places) > 1
