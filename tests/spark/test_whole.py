"""History and tail in one frame: it has what the streams had, whatever happens to them and to the lake."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import urllib3
from pyarrow import parquet

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake, add, batch
from tests.spark.streams import started, table_options
from tests.support import HOUR_MS, JSON, World
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.spark import whole as plans
from tidemark.spark.failures import Exit
from tidemark.spark.lake import LakeTable
from tidemark.spark.options import ConnectionOptions, InvalidOptions
from tidemark.spark.options.read import ReadOptions
from tidemark.spark.reach import Reach
from tidemark.spark.readers.port import Head, Position

SMALL = Packing(0, every_bytes=1, pack_bytes=60, min_batches=2, block_bytes=20)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def life(spark: Any, world: World, jobs: Jobs, lake: Lake, name: str) -> "Life":
    return Life(spark, world, jobs, lake, name)


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

    def __init__(self, spark: Any, world: World, jobs: Jobs, lake: Lake, bucket: str) -> None:
        self.spark, self.world, self.jobs, self.lake = spark, world, jobs, lake
        self.bucket, self.names = bucket, ("chat", "log")
        self.process = world.process()
        self.process.stores.packing = SMALL
        create_bucket(self.process.stores, bucket)
        self.living: dict[str, Generation] = {}
        self.dead: list[tuple[str, Generation]] = []
        self._count = 0
        self._archive = ["archive", "--bucket", bucket, "--pattern", ".*", *lake.given]
        self._archive += ["--option", "failOnDataLoss=false"]

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

    def begin(self, messages: int, *where: str) -> None:
        """Each stream has some, and the lake has these."""
        for name in self.names:
            self.append(name, messages)
        self.archive(*where)

    def archive(self, *where: str) -> None:
        code, _, err = self.jobs.start(*self._archive, *(where or self.jobs.where))
        assert code in (Exit.DONE, Exit.DATA_LOST), err
        for stream in self.living.values():
            stream.archived = len(stream.values)

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

    def whole(self, *, url: str = "", **how: Any) -> Any:
        where = {"url": url} if url else table_options(self.world)
        how |= where | {"bucket": self.bucket, "subscribePattern": ".*"}
        return plans.read_whole(self.spark, "lake.messages", catalog_properties=self.lake.properties, **how)

    def by_http(self, url: str, name: str) -> list[int]:
        """What a client reads of it."""
        values: list[int] = []
        offset, is_at_tail = "-1", False
        while not is_at_tail:
            answer = urllib3.request("GET", f"{url}/{self.bucket}/{name}?offset={offset}")
            assert answer.status == 200, answer.data
            values += orjson.loads(answer.data)
            offset, is_at_tail = answer.headers["Stream-Next-Offset"], "Stream-Up-To-Date" in answer.headers
        return values


def by_stream(frame: Any) -> dict[str, list[int]]:
    """The messages of each stream, in order within each of its incarnations. Later ones are larger numbers
    here, and the incarnations are in their order."""
    rows = sorted(frame.select("stream", "incarnation", "offset", "position", "value").collect())
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        found.setdefault((row["stream"], row["incarnation"]), []).append(int(row["value"]))
    joined: dict[str, list[int]] = {}
    for (name, _), values in sorted(found.items(), key=lambda each: each[1][0]):
        joined.setdefault(name, []).extend(values)
    return joined


@pytest.mark.parametrize(("seed", "archived_by"), [(23, "table"), (11, "http")])
def test_each_message_is_there_once_in_any_life_of_streams(
    life: Life, server: Any, monkeypatch: pytest.MonkeyPatch, seed: int, archived_by: str
) -> None:
    """Whether the driver reads what the lake lacks, or Spark's tasks."""
    random = Random(seed)
    where = life.jobs.where if archived_by == "table" else ["--url", server.url]
    steps: list[Callable[[str], None]] = [
        *[lambda stream: life.append(stream, random.randint(1, 4))] * 5,
        *[lambda _: life.archive(*where)] * 3,
        *[life.delete, life.trim] * 2,
        life.close,
        lambda _: life.lake.rewrite(),
        lambda _: life.sweep(),
    ]
    random.shuffle(steps)
    life.begin(2, *where)
    for number, step in enumerate(steps):
        monkeypatch.setattr(plans, "SMALL_BYTES", number % 2 * 2**24)
        step(random.choice(life.names))
        deleted = number % 3 == 2
        for url in ("", server.url):
            assert by_stream(life.whole(url=url, deleted=deleted)) == life.expected(deleted=deleted), number
        for stream, generation in life.living.items():
            assert life.by_http(server.url, stream) == generation.values[generation.trimmed :]


def test_a_frame_is_pinned_and_a_table_that_does_not_say_its_reach_is_measured(life: Life) -> None:
    """Messages and commits that come after a frame are not in it."""
    lake, whole = life.lake, life.whole
    life.begin(3)
    life.append("chat", 2)
    pinned, expected = whole(), life.expected(deleted=False)
    life.append("chat", 1)
    life.archive()
    assert by_stream(pinned) == expected
    for place in lake.directory.rglob("reach-*"):
        place.unlink()
    assert by_stream(whole()) == life.expected(deleted=False), "of a table that does not say its reach"
    life.append("log", 1)
    life.archive()
    assert list(lake.directory.rglob("reach-*")), "the next commit says it"
    assert by_stream(whole()) == life.expected(deleted=False)
    ids = [each.snapshot_id for each in lake.table.snapshots()]
    frames = [whole(snapshot=each) for each in ids]
    assert [len(frame.inputFiles()) for frame in frames] == [1, 2, 3]
    assert [by_stream(frame) for frame in frames] == [life.expected(deleted=False)] * 3
    with pytest.raises(
        InvalidOptions, match=f"lake.messages has no snapshot 5; its newest: {ids[2]}, {ids[1]}"
    ):
        whole(snapshot=5)


def test_a_small_tail_has_the_same_rows_and_types_whoever_reads_it(
    life: Life, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads it in any time zone, without a scan, unless its messages are very short."""
    life.begin(3)
    life.append("chat", 2)
    monkeypatch.setattr(plans, "STREAM_BYTES", 1)
    found = []
    for size, zone in ((plans.SMALL_BYTES, "America/St_Johns"), (50, "UTC"), (0, "UTC")):
        monkeypatch.setattr(plans, "SMALL_BYTES", size)
        spark.conf.set("spark.sql.session.timeZone", zone)
        frame = life.whole()
        scans = "BatchScan tidemark" in frame._jdf.queryExecution().executedPlan().toString()
        found.append((scans, frame.schema, sorted(frame.collect())))
    assert [scans for scans, _, _ in found] == [False, True, True]
    assert found[0][1:] == found[1][1:] == found[2][1:]
    assert len(found[0][2]) == 8


def test_the_bucket_of_rows_is_looked_at_where_statistics_do_not_tell_it(lake: Lake) -> None:
    table = lake.ensured()
    add(table, batch(0, "s"), {"stream": "a", "value": [b"1", b"2"]})
    (file,) = plans.files_of_streams(table.load(), "v1", ["a"])
    assert plans._is_all(b"v1", 1, file)
    assert not plans._is_all(b"v2", 1, file)
    for told in ({"lower_bounds": {1: b"v0"}}, {"upper_bounds": None}, {"null_value_counts": {1: 1}}):
        stats = {"lower_bounds": {1: b"v1"}, "upper_bounds": {1: b"v1"}, "null_value_counts": {1: 0}}
        other: Any = SimpleNamespace(**(stats | told))
        assert not plans._is_all(b"v1", 1, other)


def test_a_scan_for_one_stream_opens_few_files_and_row_groups(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is found by the bounds of files, also where all names begin alike, and by those of row
    groups."""
    monkeypatch.setattr("tidemark.spark.lake_files.ROW_GROUP_BYTES", 4096)
    table = lake.ensured()
    wanted = "a-name-that-begins-like-all-others-0333"
    names = [f"{wanted[:-4]}{number:04}" for number in range(400)]
    for number in range(8):
        # As the data source has them: a task has neighbours, each stream in order.
        neighbours = names[number % 4 * 100 :][:100]
        add(
            table,
            batch(0, f"s{number}"),
            *({"stream": name, "value": [bytes(36)] * 20} for name in neighbours),
        )

    def scanned() -> tuple[int, int, int, int]:
        """Files that are opened, of how many; and row groups that are read in those, of how many."""
        opened = [each.file_path for each in plans.files_of_streams(table.load(), "v1", [wanted])]
        groups = [
            group.column(group_columns.index("stream")).statistics
            for found in (parquet.read_metadata(path.removeprefix("file:")) for path in opened)
            for group_columns in [found.schema.names]
            for group in (found.row_group(number) for number in range(found.num_row_groups))
        ]
        read = [each for each in groups if each.min <= wanted <= each.max]
        return len(opened), len(lake.files), len(read), len(groups)

    opened, files, read, groups = scanned()
    assert (opened, files) == (2, 8)
    assert (read <= 4, groups >= 16) == (True, True), (read, groups)


def test_a_streaming_query_begins_with_the_lake_and_each_batch_keeps_its_rows(
    life: Life, spark: Any, tmp_path: Path
) -> None:
    """Its first batch is repeated after a crash with the rows that it had, though the lake has more now."""
    life.begin(3)
    life.append("chat", 2)
    batches: dict[int, list[int]] = {}
    options: dict[str, Any] = table_options(life.world) | {"bucket": life.bucket, "subscribePattern": ".*"}

    def write(rows: Any, batch: int) -> None:
        batches[batch] = sorted(int(row["value"]) for row in rows.collect())
        if fails.pop(0):
            raise OSError("the target is away")

    def streaming(name: str) -> Any:
        place = str(tmp_path / name)
        return plans.stream_whole(
            spark, "lake.messages", write, place, catalog_properties=life.lake.properties, **options
        )

    def run() -> None:
        query = streaming("query")
        started(lambda: query.trigger(availableNow=True).start().awaitTermination())

    fails = [True, False, False, False]
    with pytest.raises(OSError, match="away"):
        run()
    first = dict(batches)
    life.append("log", 1)
    life.archive()
    run()
    assert first[0] == batches[0]
    assert (len(batches[0]), len(batches[1])) == (6, 3)
    life.append("new", 2)
    run()
    expected = chain.from_iterable(life.expected(deleted=False).values())
    assert sorted(chain.from_iterable(batches.values())) == sorted(expected)
    assert (sorted(batches), fails) == ([0, 1, 2], [])
    (tmp_path / "other" / "offsets" / "0").mkdir(parents=True)
    with pytest.raises(InvalidOptions, match="of a query that did not begin with the lake"):
        streaming("other")


def head(name: str, tail: int, incarnation: str = "i", earliest: int = 0) -> Head:
    begin = Position(f"{earliest:016}", incarnation)
    return Head(name, begin, begin.at(f"{tail:016}"))


def reach(first: int, last: int) -> Reach:
    return Reach(f"{first:016}", f"{last:016}")


def planned(*heads: Head, deleted: bool = False, **reaches: Reach) -> plans.WholePlan:
    """`reaches` are by name, of the incarnation `i`; of a name that ends in `_`, of none."""
    known = {(name.rstrip("_"), "" if name.endswith("_") else "i"): reach for name, reach in reaches.items()}
    options = ReadOptions(ConnectionOptions(), pattern="[a-y].*")
    return plans.plan_whole(options, {each.name: each for each in heads}, known, deleted=deleted)


def stretch(found: plans.Stretch) -> dict[str, tuple[int, int]]:
    return {name: (int(start.offset), int(end.offset)) for name, (start, end) in found.items()}


def test_the_data_source_begins_where_the_lake_ends() -> None:
    """Of one that the lake does not have, and of another incarnation, at its first retained offset; of one
    that the lake has from later on, before that too."""
    plan = planned(
        head("all", 30),
        head("again", 9, "j"),
        head("later", 30),
        head("new", 5, earliest=2),
        head("short", 4, ""),
        again=reach(0, 20),
        all=reach(0, 30),
        later=reach(10, 20),
        short_=reach(0, 8),
        zone=reach(0, 1),
    )
    assert plan.kept == {("all", "i"), ("later", "i")}
    assert plan.left == {("again", "i"), ("short", ""), ("zone", "i")}
    assert stretch(plan.before) == {"later": (0, 10)}
    assert stretch(plan.tail) == {"again": (0, 9), "later": (20, 30), "new": (2, 5), "short": (0, 4)}
    kept = planned(head("a", 1), deleted=True, a=reach(0, 1), b=reach(0, 1), zone=reach(0, 1))
    assert kept.kept == {("a", "i"), ("b", "i")}
    assert kept.left == {("zone", "i")}


def test_offsets_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidOptions, match="a: its offsets are not numbers"):
        planned(head("a", 1), a=Reach("x", "y"))


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
def test_what_is_not_read_whole_is_told(world: World, lake: Lake, options: dict[str, str], what: str) -> None:
    LakeTable("default", lake.properties, "lake.messages").ensure()
    given: dict[str, Any] = table_options(world) | {"subscribe": "a"} | options
    with pytest.raises(InvalidOptions, match=what):
        plans.read_whole(None, "lake.messages", catalog_properties=lake.properties, **given)


def test_a_table_with_delete_files_is_refused() -> None:
    """Spark's Parquet reader would bring the rows back."""
    task = SimpleNamespace(delete_files={"deletes.parquet"}, file=SimpleNamespace(file_path="a.parquet"))
    scan = SimpleNamespace(plan_files=lambda: [task])
    table: Any = SimpleNamespace(scan=lambda **_: scan, name=lambda: ("lake", "messages"))
    with pytest.raises(plans.RowsDeleted, match=r"lake\.messages has delete files"):
        plans.files_of_streams(table, "v1", ["a"])
