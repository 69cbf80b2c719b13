"""History and tail in one frame: it has what the streams had, whatever happens to them and to the lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow as pa
import pytest
import urllib3
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue, And, EqualTo

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import started, table_options
from tests.support import HOUR_MS, JSON, World
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.spark.failures import Exit
from tidemark.spark.lake import LakeTable
from tidemark.spark.options import ConnectionOptions, InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.readers.port import Head, Position
from tidemark.spark.side_tables import (
    REACH_SCHEMA,
    Reach,
    SideTable,
    committed_reach,
    join_reaches,
    merge_reach,
)
from tidemark.spark.whole import RowsDeleted, Stretch, WholePlan, files_of_streams, plan_whole, read_whole
from tidemark.spark.whole_stream import stream_whole

SMALL = Packing(0, every_bytes=1, pack_bytes=60, min_batches=2, block_bytes=20)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@dataclass
class Generation:
    """One of the streams of a name: its messages, which are numbers, how many of them the lake has, and how
    many the stream has let go of."""

    values: list[int] = field(default_factory=list)
    archived: int = 0
    trimmed: int = 0
    closed: bool = False

    def place(self, number: int) -> int:
        """Where the message of this number begins. Behind each is a comma."""
        return sum(len(str(value)) + 1 for value in self.values[:number])


class Life:
    """Streams of a bucket of their own, and what they have had."""

    def __init__(self, world: World, jobs: Jobs, lake: Lake, directory: Path, bucket: str) -> None:
        self.world, self.jobs, self.lake = world, jobs, lake
        self.bucket, self.names = bucket, ("chat", "log")
        self.process = world.process()
        self.process.stores.packing = SMALL
        create_bucket(self.process.stores, bucket)
        self.living: dict[str, Generation] = {}
        self.dead: list[tuple[str, Generation]] = []
        self._count = 0
        self._archive = ["archive", "--bucket", bucket, "--pattern", ".*", *lake.given]
        self._archive += ["--checkpoint", str(directory / "checkpoint"), "--option", "failOnDataLoss=false"]

    def key(self, name: str) -> StreamKey:
        return StreamKey(self.bucket, name)

    def append(self, name: str, messages: int) -> None:
        """To a new stream, if there is none."""
        stream = self.living.get(name)
        if stream is None:
            stream = self.living[name] = Generation()
            self.process.create(self.key(name), content_type=JSON)
        if stream.closed:
            return
        for _ in range(messages):
            self._count += 1
            stream.values.append(self._count**3)
            self.process.append(self.key(name), b"[%d]" % stream.values[-1], content_type=JSON)

    def close(self, name: str) -> None:
        if name in self.living:
            self.living[name].closed = True
            self.process.append(self.key(name), close=True)

    def delete(self, name: str) -> None:
        if name in self.living:
            self.dead.append((name, self.living.pop(name)))
            delete(self.process.stores, self.key(name))

    def trim(self, name: str) -> None:
        """Below what the lake has."""
        stream = self.living.get(name)
        if stream is not None and stream.archived > stream.trimmed:
            stream.trimmed = stream.archived
            trim_below(self.process.stores, self.key(name), stream.place(stream.trimmed))

    def archive(self, *where: str) -> None:
        code, _, err = self.jobs.start(*self._archive, *where)
        assert code in (Exit.DONE, Exit.DATA_LOST), err
        for stream in self.living.values():
            stream.archived = len(stream.values)

    def compact(self) -> None:
        self.jobs.run("compact", *self.lake.given, "--keep-days", "0")

    def sweep(self) -> None:
        """Batches become packs, and what is let go of goes. Another day may begin."""
        self.world.clock.advance(9 * HOUR_MS)
        sweep(self.process.stores)

    def expected(self, *, deleted: bool) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, stream in self.dead if deleted else ():
            found.setdefault(name, []).extend(stream.values[: stream.archived])
        for name, stream in self.living.items():
            found.setdefault(name, []).extend(stream.values)
        return {name: sorted(values) for name, values in found.items() if values}

    def by_http(self, url: str, name: str) -> list[int]:
        """What a client reads of it."""
        values: list[int] = []
        offset, up_to_date = "-1", "false"
        while up_to_date != "true":
            answer = urllib3.request("GET", f"{url}/{self.bucket}/{name}?offset={offset}")
            assert answer.status == 200, answer.data
            values += orjson.loads(answer.data)
            offset, up_to_date = (
                answer.headers["Stream-Next-Offset"],
                answer.headers.get("Stream-Up-To-Date", ""),
            )
        return values


def by_stream(frame: Any) -> dict[str, list[int]]:
    """The messages of each stream, in order within each of its incarnations. Later ones are larger numbers
    here, and the incarnations are in their order."""
    rows = sorted(
        frame.collect(), key=lambda row: (row["stream"], row["incarnation"], row["offset"], row["position"])
    )
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        found.setdefault((row["stream"], row["incarnation"]), []).append(int(row["value"]))
    joined: dict[str, list[int]] = {}
    for (name, _), values in sorted(found.items(), key=lambda each: each[1][0]):
        joined.setdefault(name, []).extend(values)
    return joined


@pytest.mark.parametrize(("seed", "archived_by"), [(23, "table"), (11, "http")])
def test_each_message_is_there_once_in_any_life_of_streams(
    spark: Any,
    world: World,
    server: Any,
    jobs: Jobs,
    lake: Lake,
    name: str,
    tmp_path: Path,
    seed: int,
    archived_by: str,
) -> None:
    random = Random(seed)
    life = Life(world, jobs, lake, tmp_path, name)
    over_http = {"url": server.url, "bucket": life.bucket, "subscribePattern": ".*"}
    over_table = table_options(world) | {"bucket": life.bucket, "subscribePattern": ".*"}
    where = jobs.where if archived_by == "table" else ["--url", server.url]
    steps: list[Callable[[str], None]] = [
        *[lambda stream: life.append(stream, random.randint(1, 4))] * 5,
        *[lambda _: life.archive(*where)] * 3,
        *[life.delete, life.trim] * 2,
        life.close,
        lambda _: life.compact(),
        lambda _: life.sweep(),
    ]
    random.shuffle(steps)
    for stream in life.names:
        life.append(stream, 2)
    life.archive(*where)
    for number, step in enumerate(steps):
        step(random.choice(life.names))
        deleted = number % 3 == 2
        for options in (over_table, over_http):
            frame = read_whole(
                spark, "lake.messages", catalog_properties=lake.properties, deleted=deleted, **options
            )
            assert by_stream(frame) == life.expected(deleted=deleted), number
        for stream, generation in life.living.items():
            assert life.by_http(server.url, stream) == generation.values[generation.trimmed :]


def test_the_lakes_part_is_the_same_after_a_compaction_that_forgot_its_snapshot(
    spark: Any, world: World, jobs: Jobs, lake: Lake, name: str, tmp_path: Path
) -> None:
    """A frame is pinned: messages and commits that come after it are not in it. A table whose reach was never
    recorded is measured, and one that is older than its record, because it was restored, as well."""
    life = Life(world, jobs, lake, tmp_path, name)
    for stream in life.names:
        life.append(stream, 3)
    life.archive(*jobs.where)
    options: dict[str, Any] = table_options(world) | {"bucket": name, "subscribePattern": ".*"}

    def whole() -> Any:
        return read_whole(spark, "lake.messages", catalog_properties=lake.properties, **options)

    life.append("chat", 2)
    pinned, expected = whole(), life.expected(deleted=False)
    life.append("chat", 1)
    life.archive(*jobs.where)
    assert by_stream(pinned) == expected
    queries = [name for name in lake.table.properties if name.startswith("tidemark.reach.")]
    with lake.table.transaction() as transaction:
        transaction.remove_properties(*queries)
    assert by_stream(whole()) == life.expected(deleted=False), "of a version without the record"
    life.append("log", 1)
    life.archive(*jobs.where)
    assert [name for name in lake.table.properties if name.startswith("tidemark.reach.")] == queries
    assert by_stream(whole()) == life.expected(deleted=False)


@pytest.fixture
def few_rows_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.spark.lake_files.ROW_GROUP_BYTES", 4096)


def test_a_scan_for_one_stream_of_many_opens_few_files_and_row_groups(
    spark: Any, lake: Lake, few_rows_a_group: None
) -> None:
    """Its name is found by the bounds of files, also where all names begin alike, and by those of row groups.
    A compaction leaves as few."""
    table = LakeTable("default", lake.properties, "lake.messages")
    table.ensure()
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    wanted = "a-name-that-begins-like-all-others-0333"
    columns = {
        "bucket": "'many'",
        "stream": "format_string('a-name-that-begins-like-all-others-%04d', (id * 7) % 400)",
        "offset": "lpad(CAST(id AS STRING), 16, '0')",
        "end_offset": "lpad(CAST(id + 1 AS STRING), 16, '0')",
        "position": "0",
        "timestamp": "TIMESTAMP '2026-11-01 12:00:00'",
        "value": "CAST(uuid() AS BINARY)",
        "content_type": "'text/plain'",
        "incarnation": "'i'",
        "producer_id": "''",
        "producer_epoch": "0L",
        "producer_seq": "0L",
        "key": "''",
    }
    rows = spark.range(8000).selectExpr(*(f"{value} AS {name}" for name, value in columns.items()))
    for batch in range(2):
        # As the data source has them: a task has neighbours, each stream in order.
        table.write_batch(rows.repartitionByRange(4, "stream"), "q", batch)

    def scanned() -> tuple[int, int, int, int]:
        """Files that are opened, of how many; and row groups that are read in those, of how many."""
        opened = table.files(And(EqualTo("bucket", "many"), EqualTo("stream", wanted)))
        groups = [
            group.column(group_columns.index("stream")).statistics
            for found in (parquet.read_metadata(path.removeprefix("file:")) for path in opened)
            for group_columns in [found.schema.names]
            for group in (found.row_group(number) for number in range(found.num_row_groups))
        ]
        read = [each for each in groups if each.min <= wanted <= each.max]
        return len(opened), len(table.files()), len(read), len(groups)

    opened, files, read, groups = scanned()
    assert (opened, files) == (2, 8)
    assert (read <= 4, groups >= 16) == (True, True), (read, groups)
    size = sum(file.file.file_size_in_bytes for file in lake.table.scan().plan_files())
    old, new = table.compact(spark, size // 3)
    assert (old, new) == (8, 3)
    opened, files, read, groups = scanned()
    assert (opened, files) == (1, 3)
    assert (read <= 3, groups >= 10) == (True, True), (read, groups)


def test_a_streaming_query_begins_with_the_lake_and_each_batch_keeps_its_rows(
    spark: Any, world: World, jobs: Jobs, lake: Lake, name: str, tmp_path: Path
) -> None:
    """Its first batch is repeated after a crash with the rows that it had, though the lake has more now."""
    life = Life(world, jobs, lake, tmp_path, name)
    for stream in life.names:
        life.append(stream, 3)
    life.archive(*jobs.where)
    life.append("chat", 2)
    batches: dict[int, list[int]] = {}
    options: dict[str, Any] = table_options(world) | {"bucket": name, "subscribePattern": ".*"}

    def write(rows: Any, batch: int) -> None:
        batches[batch] = sorted(int(row["value"]) for row in rows.collect())
        if fails.pop(0):
            raise OSError("the target is away")

    def run() -> None:
        query = stream_whole(
            spark,
            "lake.messages",
            write,
            str(tmp_path / "query"),
            catalog_properties=lake.properties,
            **options,
        )
        started(lambda: query.trigger(availableNow=True).start().awaitTermination())

    fails = [True, False, False, False]
    with pytest.raises(OSError, match="away"):
        run()
    first = dict(batches)
    life.append("log", 1)
    life.archive(*jobs.where)
    run()
    assert first[0] == batches[0]
    assert (len(batches[0]), len(batches[1])) == (6, 3)
    life.append("new", 2)
    run()
    expected = chain.from_iterable(life.expected(deleted=False).values())
    assert sorted(chain.from_iterable(batches.values())) == sorted(expected)
    assert (sorted(batches), fails) == ([0, 1, 2], [])
    with pytest.raises(InvalidOptions, match="of a query that did not begin with the lake"):
        stream_whole(
            spark,
            "lake.messages",
            write,
            str(tmp_path / "checkpoint"),
            catalog_properties=lake.properties,
            **options,
        )


def head(name: str, tail: int, incarnation: str = "i", earliest: int = 0) -> Head:
    begin = Position(f"{earliest:016}", incarnation)
    return Head(name, begin, begin.at(f"{tail:016}"))


def planned(*heads: Head, deleted: bool = False, **reaches: Reach) -> WholePlan:
    """`reaches` are by name, of the incarnation `i`; of a name that ends in `_`, of none."""
    known = {(name.rstrip("_"), "" if name.endswith("_") else "i"): reach for name, reach in reaches.items()}
    options = ReadOptions(ConnectionOptions(), pattern="[a-y].*")
    return plan_whole(options, {each.name: each for each in heads}, known, deleted=deleted)


def stretch(found: Stretch) -> dict[str, tuple[int, int]]:
    return {name: (int(found.starts[name].offset), int(end.offset)) for name, end in found.ends.items()}


def test_the_data_source_begins_where_the_lake_ends() -> None:
    """Of one that the lake does not have, and of another incarnation, at its first retained offset; of one
    that the lake has from later on, before that too."""
    plan = planned(
        head("all", 30),
        head("again", 9, "j"),
        head("later", 30),
        head("new", 5, earliest=2),
        head("short", 4, ""),
        again=Reach(0, 20),
        all=Reach(0, 30),
        later=Reach(10, 20),
        short_=Reach(0, 8),
        zone=Reach(0, 1),
    )
    assert plan.kept == {("all", "i"), ("later", "i")}
    assert plan.left == {("again", "i"), ("short", ""), ("zone", "i")}
    assert stretch(plan.before) == {"later": (0, 10)}
    assert stretch(plan.tail) == {"again": (0, 9), "later": (20, 30), "new": (2, 5), "short": (0, 4)}
    kept = planned(head("a", 1), deleted=True, a=Reach(0, 1), b=Reach(0, 1), zone=Reach(0, 1))
    assert kept.kept == {("a", "i"), ("b", "i")}
    assert kept.left == {("zone", "i")}


def test_offsets_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="a: its offsets are not numbers"):
        planned(head("a", 1), a=Reach(None, None))


def reach_row(query: str, batch: int, last: int, *, since: int | None = None) -> dict[str, Any]:
    keys = {"bucket": "v1", "stream": "s", "incarnation": "i", "first": 0, "last": last, "query": query}
    return keys | {"first_batch": batch if since is None else since, "last_batch": batch}


def test_what_is_recorded_counts_up_to_the_last_batch_that_the_table_has() -> None:
    """Rows that a compaction has joined may go beyond a table that was restored: then nothing is known."""
    rows = [reach_row("", 0, 5), reach_row("q", 0, 7), reach_row("q", 1, 9), reach_row("other", 4, 6)]
    known = committed_reach(rows, {"q": 0, "other": 4})
    assert known is not None
    assert join_reaches(known) == {("s", "i"): Reach(0, 7)}
    assert committed_reach([reach_row("q", 3, 9, since=0)], {"q": 2}) is None
    assert committed_reach([reach_row("q", 3, 9, since=3)], {"q": 2}) == []
    merged = merge_reach(pa.Table.from_pylist(rows, REACH_SCHEMA.as_arrow()), {"q": 1, "other": 3})
    assert sorted(merged.to_pylist(), key=lambda row: row["query"]) == [
        reach_row("", 0, 5),
        reach_row("other", 4, 6),
        reach_row("q", 1, 9, since=0),
    ]


def test_rows_that_come_while_a_side_table_is_compacted_stay(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.spark.side_tables.MOST_FILES", 1)
    catalog = load_catalog("default", **lake.properties)
    catalog.create_namespace("lake")
    side = SideTable(catalog, "lake.side", REACH_SCHEMA)
    for batch in range(2):
        side.append([reach_row("q", batch, batch)])

    def merge(rows: pa.Table) -> pa.Table:
        if len(rows) == 2:
            side.append([reach_row("q", 2, 2)])
        return merge_reach(rows, {"q": 9})

    later = datetime.now(UTC) + timedelta(days=1)
    side.compact(merge, later)
    assert len(side.rows(AlwaysTrue())) == 3, "the next run does it"
    side.compact(merge, later)
    assert side.rows(AlwaysTrue()) == [reach_row("q", 2, 2, since=0)]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets is not for a whole read"),
        ({"endingTimestamp": "5"}, "endingTimestamp is not for a whole read"),
        ({"between": "[]"}, "between is not for a whole read"),
        ({"columns": "value,key"}, "a whole read has no key: use get_json_object"),
        ({"subscribe": "a,b"}, "no such stream in v1: a, b"),
    ],
)
def test_what_cannot_be_read_whole_is_told(
    world: World, lake: Lake, options: dict[str, str], what: str
) -> None:
    LakeTable("default", lake.properties, "lake.messages").ensure()
    given: dict[str, Any] = table_options(world) | {"subscribe": "a"} | options
    with pytest.raises(InvalidOptions, match=what):
        read_whole(None, "lake.messages", catalog_properties=lake.properties, **given)


def test_a_table_with_delete_files_is_refused() -> None:
    """Spark's Parquet reader would bring the rows back."""
    task = SimpleNamespace(delete_files={"deletes.parquet"}, file=SimpleNamespace(file_path="a.parquet"))
    scan = SimpleNamespace(plan_files=lambda: [task])
    table: Any = SimpleNamespace(scan=lambda **_: scan, name=lambda: ("lake", "messages"))
    with pytest.raises(RowsDeleted, match=r"lake\.messages has delete files"):
        files_of_streams(table, None, "v1", ["a"])
