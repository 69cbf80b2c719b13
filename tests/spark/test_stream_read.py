"""The streaming read: every message once, across batches, limits and restarts. Streams that come and go are
in `test_churn.py` and `test_forgetting.py`."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.spark.streams import Streams, started, values_of
from tidemark.spark import queries
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Progress, decode_offset, encode_offset, everything_until
from tidemark.spark.queries import Driver, plan_partitions, within_limit
from tidemark.spark.source import TidemarkSource, spark_version

ADMISSION = spark_version() >= (4, 2)
#: Before 4.2 a query with a limit needs a trigger that keeps on coming.
KEEPS_COMING: dict[str, Any] = {"availableNow": True} if ADMISSION else {"processingTime": "0 seconds"}
SCHEMA = StructType([StructField("value", BinaryType())])
MAY_LIMIT = {} if ADMISSION else {"assumeProcessingTime": "true"}


class Query:
    """A streaming query into an append-only file sink, run until it has read what is there."""

    def __init__(self, spark: Any, streams: Streams, directory: Path) -> None:
        self._spark, self._streams = spark, streams
        self._checkpoint, self._out = directory / "checkpoint", directory / "out"
        self.batches: list[int] = []

    def run(self, *, trigger: dict[str, Any] | None = None, fail: int | None = None, **options: str) -> None:
        """With `fail`, the batch behind so many fails."""
        started(lambda: self._run(trigger or {"availableNow": True}, fail, self._streams.by_table(**options)))

    def _run(self, trigger: dict[str, Any], fail: int | None, options: dict[str, str]) -> None:
        self.batches = []

        def write(frame: Any, batch_id: int) -> None:
            found = frame.select("value").collect()
            self.batches.append(len(found))
            if fail is not None and len(self.batches) > fail:
                raise RuntimeError("injected")
            self._out.mkdir(exist_ok=True)
            values = sorted(bytes(row["value"]).decode() for row in found)
            (self._out / f"{batch_id:09}").write_text(" ".join(values))

        source = self._spark.readStream.format("tidemark").options(**options).load()
        writing = source.writeStream.foreachBatch(write).trigger(**trigger)
        query = writing.option("checkpointLocation", str(self._checkpoint)).start()
        try:
            if "availableNow" in trigger:
                assert query.awaitTermination(900)
            else:
                query.processAllAvailable()
        finally:
            query.stop()
            self.latest = [each["sources"][0]["latestOffset"] for each in query.recentProgress]

    def values(self) -> list[str]:
        return [value for path in sorted(self._out.iterdir()) for value in path.read_text().split()]


@pytest.fixture
def query(spark: Any, streams: Streams, tmp_path: Path) -> Query:
    return Query(spark, streams, tmp_path)


def numbered(start: int, end: int) -> list[str]:
    return [f"{index:04}" for index in range(start, end)]


def append(streams: Streams, values: list[str]) -> None:
    streams.append(*[value.encode() for value in values])


def test_a_query_goes_on_from_a_checkpoint_and_repeats_a_failed_batch(query: Query, streams: Streams) -> None:
    """What came meanwhile belongs to the next batch."""
    streams.fill()
    append(streams, numbered(0, 3))
    query.run()
    append(streams, numbered(3, 8))
    with pytest.raises(Exception, match="injected"):
        query.run(fail=0)
    append(streams, numbered(8, 11))
    query.run()
    if ADMISSION:
        assert query.batches == [5, 3]
    else:
        # AvailableNow is a single batch here, and after a failure that is the failed one.
        assert query.batches == [5]
        query.run()
        assert query.batches == [3]
    assert query.values() == numbered(0, 11)


def test_a_limit_cuts_batches_and_loses_nothing(query: Query, streams: Streams) -> None:
    """Twelve bytes are three messages of four; the restart begins in the middle."""
    streams.fill()
    append(streams, numbered(0, 10))
    limit: dict[str, Any] = MAY_LIMIT | {"maxBytesPerTrigger": "12"}
    with pytest.raises(Exception, match="injected"):
        query.run(trigger=KEEPS_COMING, fail=2, **limit)
    assert query.batches == [3, 3, 3]
    query.run(trigger=KEEPS_COMING, **limit)
    assert query.batches == [3, 1]
    assert query.values() == numbered(0, 10)


def test_available_now_with_a_limit_reads_everything_or_is_refused(query: Query, streams: Streams) -> None:
    streams.fill()
    append(streams, numbered(0, 7))
    limits: dict[str, Any] = {"maxBytesPerTrigger": "12"}
    if not ADMISSION:
        with pytest.raises(Exception, match=r"maxBytesPerTrigger .* AvailableNow it would stop"):
            query.run(**limits)
        return
    query.run(**limits)
    assert query.batches == [3, 3, 1]
    assert query.values() == numbered(0, 7)
    behind = [tuple(json.loads(latest).values()) for latest in query.latest]
    assert behind[:3] == [(1, 16), (1, 4), (0, 0)]


class Follower:
    """A query as its driver plans it, with its checkpoint, and no Spark around it."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._checkpoint: Progress | None = None

    def run(self, **given: str) -> list[bytes]:
        """Starts the query, and stops it after one batch."""
        options = parse_read_options(self._streams.by_table(**given), streaming=True)
        driver = Driver(options)
        start = self._checkpoint or driver.initial()
        end = everything_until(options, start, driver.look())
        end = within_limit(options, driver.reader, start, end)
        parts = plan_partitions(options, driver.reader, start.positions, end.positions)
        found = values_of(driver.reader, parts)
        self._checkpoint = decode_offset(json.loads(json.dumps(encode_offset(end))))
        return found


@pytest.fixture
def follower(streams: Streams) -> Follower:
    return Follower(streams)


def test_the_limit_is_shared_by_how_far_behind_each_stream_is(follower: Follower, streams: Streams) -> None:
    for suffix, count in (("-a", 9), ("-b", 3)):
        streams.fill(*[b"%s%03d" % (suffix[1:].encode(), number) for number in range(count)], suffix=suffix)
    found = [follower.run(subscribePattern=f"{streams.name}-.", maxBytesPerTrigger="16") for _ in range(4)]
    assert [[value[:1] for value in batch] for batch in found] == [[b"a"] * 3 + [b"b"]] * 3 + [[]]


def test_latest_reads_only_what_comes(follower: Follower, streams: Streams) -> None:
    streams.fill(b"old")
    assert follower.run(startingOffsets="latest") == []
    streams.append(b"new")
    assert follower.run(startingOffsets="latest") == [b"new"]


def latest_of(reader: Any, start: Any) -> Any:
    """As this version of Spark asks for it."""
    if not ADMISSION:
        return reader.latestOffset()
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return reader.latestOffset(start, ReadAllAvailable())


def start_reader(streams: Streams, **given: str) -> Any:
    """A query as it is started, and started again after a crash."""
    return TidemarkSource(streams.by_table(**given)).streamReader(SCHEMA)


def test_nothing_is_new_only_where_a_look_after_the_question_says_so(streams: Streams) -> None:
    """`processAllAvailable` waits for that answer: what was appended before it must be read."""
    streams.fill(b"one")
    reader = start_reader(streams)
    place = latest_of(reader, reader.initialOffset())
    for body in (b"two", b"three"):
        reader.partitions(place, place)
        streams.append(body)
        before, place = place, latest_of(reader, place)
        assert place != before


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_first_batch_from_the_tail_on_is_empty_also_when_it_is_repeated(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    """Spark keeps where it ends, and asks where the query begins each time: after a crash it begins later."""
    monkeypatch.setattr(queries, "LOOK_SECONDS", 0)
    given = {"startingOffsets": "latest", "failOnDataLoss": strict}
    streams.fill(b"old")
    reader = start_reader(streams, **given)
    begin = reader.initialOffset()
    streams.append(b"new")
    end = latest_of(reader, begin)
    assert end == begin == reader.initialOffset()
    streams.append(b"newer")
    again = start_reader(streams, **given)
    assert not again.partitions(again.initialOffset(), end)
    parts = [part for packed in again.partitions(end, latest_of(again, end)) for part in packed.parts]
    assert values_of(again.driver.reader, parts) == [b"new", b"newer"]
