"""Compacted streams: both transports read what the server's own read has, at the same offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams, plan_here, read_here, rows_of, table_of
from tests.support import JSON
from tidemark.janitor.compact import load_packs
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.log.read import load_stream
from tidemark.log.records import StreamRecord
from tidemark.log.schema import batch_key, log_pk
from tidemark.protocol.compaction import Compaction
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import messages
from tidemark.spark.folds import CONFLICT, PUBLISHED, SnapshotPlan, Snapshotter
from tidemark.spark.gaps import losses_beside_compaction
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.readers.port import DataLoss
from tidemark.spark.trim import TRIMMED, Stretch, Trimmer, TrimPlan, TrimResult, archived_end_of_compacted
from tidemark.spark.whole import read_whole

SMALL = Packing(0, every_bytes=1, pack_bytes=400, min_batches=2, block_bytes=80)
AT_ONCE = Compaction(after_seconds=0, tombstone_seconds=0)
COLUMNS = "offset,end_offset,value,key,timestamp"


class Rows:
    """A stream of changes to a few rows."""

    def __init__(self, streams: Streams, seed: int = 0) -> None:
        self.streams, self.chance = streams, Random(seed)
        streams.process.stores.packing = SMALL
        streams.process.create(streams.key(), content_type=JSON, compaction=AT_ONCE)
        streams._types[""] = JSON
        self.ends: list[int] = []

    def change(self, appends: int) -> None:
        for _ in range(appends):
            changes = [self._change() for _ in range(self.chance.choice((1, 1, 3)))]
            self.streams.append(b"[%s]" % b",".join(changes))
            for change in changes:
                self.ends.append(len(change) + 1 + (self.ends[-1] if self.ends else 0))
            self.streams.world.clock.advance(1000)

    def _change(self) -> bytes:
        value = 10 ** self.chance.randrange(12)
        key = self.chance.choice("abcdefgh")
        return orjson.dumps({"type": "row", "key": key, "value": value, "headers": {"operation": "upsert"}})

    def compact(self) -> None:
        assert sweep(self.streams.process.stores).packed

    def record(self) -> StreamRecord:
        record = load_stream(self.streams.process.stores.table, self.streams.key())
        assert record is not None
        return record

    def read(self, offset: int = 0) -> list[tuple[int, bytes]]:
        """By the server: where each message ends, and its body."""
        stores, found, at_tail = self.streams.world.process().stores, list[tuple[int, bytes]](), False
        while not at_tail:
            reading = read(stores, self.streams.key(), offset)
            found += messages(reading)
            offset, at_tail = reading.page.end, reading.page.up_to_date
        return found

    def rows(self, offset: int = 0) -> list[tuple[str, str, bytes]]:
        """The same as rows of the table's reader."""
        places = [(end - len(body) - 1, end, body) for end, body in self.read(offset)]
        return [(render_offset(start), render_offset(end), body) for start, end, body in places]


@pytest.fixture
def rows(streams: Streams) -> Rows:
    found = Rows(streams)
    found.change(40)
    found.compact()
    found.change(5)
    assert 0 < found.record().compacted < found.ends[-1], "a part is compacted, and a part is not"
    return found


def test_the_table_is_read_as_the_server_reads_it_wherever_partitions_are_cut(rows: Rows) -> None:
    expected, given = rows.rows(), rows.streams.by_table()
    assert len(expected) < len(rows.ends) / 2, "most messages are gone"
    for size in (7, 33, 90, 400, 10**6):
        assert read_here(given, bytesPerPartition=str(size)) == expected


@pytest.mark.parametrize("size", [100, 300, 10**6])
def test_a_compacted_stream_is_cut_by_what_is_left_of_it(rows: Rows, size: int) -> None:
    _, parts = plan_here(rows.streams.by_table(bytesPerPartition=str(size)))
    left = sum(len(body) + 1 for _, body in rows.read())
    assert sum(part.size for part in parts) == left < rows.ends[-1] / 2
    assert len(parts) <= left / size + 2
    assert [part.end for part in parts[:-1]] == [part.start for part in parts[1:]]
    assert (int(parts[0].start), int(parts[-1].end)) == (0, rows.ends[-1])


def test_a_read_begins_and_ends_where_any_message_ended_before_it_was_compacted(rows: Rows) -> None:
    every, name, given = rows.rows(), rows.streams.name, rows.streams.by_table()
    for offset in (0, *rows.ends):
        place = f'{{"{name}": "{render_offset(offset)}"}}'
        before = [row for row in every if int(row[1]) <= offset]
        assert read_here(given, endingOffsets=place) == before
        assert read_here(given, startingOffsets=place) == every[len(before) :] == rows.rows(offset)
    inside = f'{{"{name}": "{int(every[0][0]) + 1:016d}"}}'
    with pytest.raises(InvalidOptions, match="not the end of a message"):
        plan_here(given, startingOffsets=inside)


def test_messages_keep_their_times(streams: Streams) -> None:
    rows, given = Rows(streams), streams.by_table(columns=COLUMNS)
    rows.change(40)
    before = {row["end_offset"]: row for row in table_of(*plan_here(given), COLUMNS)}
    rows.compact()
    after = table_of(*plan_here(given), COLUMNS)
    assert after == [before[row["end_offset"]] for row in after]
    for row in after:
        since = str(int(row["timestamp"].timestamp() * 1000))
        found = table_of(*plan_here(given, startingTimestamp=since), COLUMNS)
        assert found == [each for each in after if each["timestamp"] >= row["timestamp"]]


def test_a_pack_that_is_missing_from_a_compacted_stream_is_data_loss(rows: Rows) -> None:
    reader, parts = plan_here(rows.streams.by_table(bytesPerPartition="300"))
    expected = rows_of(reader, parts)
    table, record = rows.streams.process.stores.table, rows.record()
    packs = [pack for pack in load_packs(rows.streams.process.stores, record) if pack.compacted]
    lost = packs[len(packs) // 2]
    table.delete(batch_key(log_pk(record.key, record.incarnation), lost.start))
    with pytest.raises(DataLoss, match=f"{render_offset(lost.start)} to {render_offset(lost.end)}"):
        rows_of(reader, plan_here(rows.streams.by_table())[1])
    quiet = [replace(part, fail_on_data_loss=False) for part in parts]
    assert (
        rows_of(reader, quiet)
        == [row for row in expected if not lost.start <= int(row[0]) < lost.end]
        != expected
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_planned_read_goes_on_while_the_stream_is_compacted(streams: Streams, seed: int) -> None:
    """Each message is read once, at its offset, and none is missing that is not superseded."""
    rows = Rows(streams, seed)
    rows.change(30)
    whole = read_here(streams.by_table())
    rows.compact()
    rows.change(30)
    reader, parts = plan_here(streams.by_table(bytesPerPartition="300"))
    cut = rows.chance.randrange(len(parts))
    found = rows_of(reader, parts[:cut])
    rows.compact()
    found += rows_of(reader, parts[cut:])
    assert found == sorted(set(found))
    assert set(rows.rows()) <= set(found)
    assert {row for row in whole if row in rows.rows()} <= set(found)


def test_limits_go_through_a_compacted_stream(rows: Rows) -> None:
    reader, _ = plan_here(rows.streams.by_table())
    head = reader.head(rows.streams.name)
    expected = rows.rows()
    for limit, most in ((reader.limit, 100), (reader.limit_messages, 3)):
        place, found = head.earliest, list[Any]()
        while place.offset != head.tail.offset:
            end = limit(rows.streams.name, place, head.tail, most)
            assert end.offset > place.offset
            found += rows_of(reader, reader.partitions(rows.streams.name, place, end, 10**6))
            place = end
        assert found == expected


TIMED = {"includeTimestamps": "true"}


def values_until(rows: Rows, offset: int) -> list[bytes]:
    return [body for end, body in rows.read() if end <= offset]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("more", [{}, TIMED], ids=["without times", "with times"])
def test_a_page_over_http_is_cut_where_a_read_must_end(rows: Rows, more: dict[str, str]) -> None:
    """Whatever lies behind it, and wherever messages ended before they were compacted."""
    given, name = rows.streams.by_http(**more), rows.streams.name
    everything = table_of(*plan_here(rows.streams.by_table()), "value,timestamp")
    columns = "value,timestamp" if more else "value"
    for offset in (0, *rows.ends):
        until = values_until(rows, offset)
        place = f'{{"{name}": "{render_offset(offset)}"}}'
        before = table_of(*plan_here(given, endingOffsets=place), columns)
        behind = table_of(*plan_here(given, startingOffsets=place), columns)
        assert [row["value"] for row in before] == until
        assert len(before) + len(behind) == len(everything)
        assert not more or before + behind == everything


def test_pages_are_read_on_while_the_stream_is_compacted(streams: Streams, small_pages: None) -> None:
    """The rows of a page that was read before stay; those of the pages behind it are what is left."""
    rows = Rows(streams, 3)
    rows.change(40)
    reader, parts = plan_here(streams.by_http())
    batches = (batch for part in parts for batch in reader.read(part, ["value", "end_offset"]))
    first = next(batches).to_pylist()
    rows.compact()
    rest = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in rest] == [body for end, body in rows.read(int(first[0]["end_offset"]))]
    assert len(first) + len(rest) < len(rows.ends)


@pytest.mark.parametrize("more", [{}, TIMED], ids=["without times", "with times"])
def test_a_dense_page_is_not_asked_about_again(rows: Rows, more: dict[str, str]) -> None:
    rows.streams.server.seen.clear()
    seen, dense = rows.streams.server.seen, rows.record().compacted
    start, end = (f'{{"{rows.streams.name}": "{render_offset(place)}"}}' for place in (dense, rows.ends[-2]))
    given = rows.streams.by_http(startingOffsets=start, endingOffsets=end, **more)
    assert table_of(*plan_here(given), "value")
    assert [path for _, path in seen].count("/v1/times") == (2 if more else 0)


# --- trim ---------------------------------------------------------------------------


def trim(streams: Streams, stretches: list[Stretch]) -> TrimResult:
    options = parse_read_options(streams.by_table(), streaming=False)
    incarnation = load_head(streams.process.stores, streams.key()).record.incarnation
    return Trimmer(TrimPlan(options.connection)).run(streams.name, incarnation, stretches)


def pages_over_http(rows: Rows) -> list[Stretch]:
    """What the lake has once they are archived."""
    pages: dict[tuple[int, int], int] = {}
    for row in table_of(*plan_here(rows.streams.by_http()), "offset,end_offset,value"):
        place = max(0, int(row["offset"])), int(row["end_offset"])
        pages[place] = pages.get(place, 0) + len(row["value"]) + 1
    return [(begin, end, stored) for (begin, end), stored in pages.items()]


def test_a_compacted_stream_is_trimmed_up_to_the_first_message_that_the_lake_lacks(rows: Rows) -> None:
    """It was archived when it was compacted already."""
    archived = [(int(begin), int(end)) for begin, end, _ in read_here(rows.streams.by_table())]
    stretches = [(begin, end, end - begin) for begin, end in archived]
    compacted = rows.record().compacted
    left = [each for each in archived if each[1] <= compacted]
    for lacking in range(len(archived)):
        found = stretches[:lacking] + stretches[lacking + 1 :]
        assert archived_end_of_compacted(0, compacted, left, found) == archived[lacking][0]
    expected = rows.rows()
    for lacking in (len(left) // 2, len(left) + 1, len(archived)):
        result = trim(rows.streams, stretches[:lacking])
        assert (result.outcome, rows.record().retained) == (
            TRIMMED,
            [*archived, (rows.ends[-1],)][lacking][0],
        )
        assert read_here(rows.streams.by_table()) == expected[lacking:]


@pytest.mark.usefixtures("small_pages")
def test_pages_of_a_compacted_stream_count_if_they_have_no_less_than_is_left(rows: Rows) -> None:
    pages, compacted = pages_over_http(rows), rows.record().compacted
    assert any(stored < end - begin for begin, end, stored in pages)
    within = [page for page in pages if page[1] <= compacted]
    (begin, end, stored), *others = within[::-1]
    assert stored < end - begin
    assert trim(rows.streams, [*others, (begin, end, stored - 1)]).outcome == TRIMMED
    assert begin <= rows.record().retained < end
    assert trim(rows.streams, pages).outcome == TRIMMED
    assert rows.record().retained >= end


def test_what_was_archived_before_it_was_compacted_is_trimmed(streams: Streams) -> None:
    rows = Rows(streams)
    rows.change(30)
    pages = pages_over_http(rows)
    assert sum(stored for _, _, stored in pages) == rows.ends[-1]
    rows.change(20)
    rows.compact()
    assert rows.record().compacted > pages[-1][1]
    expected = rows.rows(pages[-1][1])
    assert trim(streams, pages).outcome == TRIMMED
    assert rows.record().retained >= pages[-1][1]
    assert rows.rows(rows.record().retained) == expected


# --- jobs ---------------------------------------------------------------------------


def test_the_jobs_go_over_what_a_compaction_has_removed(
    jobs: Jobs, spark: Any, streams: Streams, tmp_path: Path
) -> None:
    """An archive that came too late for some of it lost nothing; `read_whole` goes on behind it, and `trim`
    lets go of it."""
    rows, lake = Rows(streams), Lake(tmp_path / "lake")
    archive = ["archive", *jobs.where, "--subscribe", streams.name, *lake.given]
    archive += ["--checkpoint", str(tmp_path / "c"), "--option", "failOnDataLoss=false"]
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
    trim = ["trim", *jobs.where, "--subscribe", streams.name, *lake.given, "--archived"]
    assert "trimmed=1" in jobs.run(*trim, "--keep-hours", "-1000000")
    assert rows.record().retained == int(second[-1][1])
    assert rows.rows(rows.record().retained) == tail


def test_what_was_not_retained_is_lost_to_the_archive_of_a_compacted_stream(rows: Rows) -> None:
    name, reader = rows.streams.name, plan_here(rows.streams.by_table())[0]
    heads, places = reader.heads([name]), [rows.ends[5], rows.ends[20]]
    start, middle = (heads[name].tail.at(render_offset(place)) for place in places)
    now = heads[name]
    for earliest, told in ((start, {}), (middle, {name: places[1] - places[0]})):
        then = {name: replace(now, earliest=earliest)}
        assert losses_beside_compaction({name: 99}, {name: start}, then, heads) == told
        assert losses_beside_compaction({name: 99}, {}, then, heads) == {}
    for head in (now, replace(now, compacted=0)):
        assert losses_beside_compaction({name: None}, {name: start}, heads, {name: head}) == {name: None}
    assert losses_beside_compaction({name: 99}, {name: start}, heads, {name: replace(now, compacted=0)}) == {
        name: 99
    }


@pytest.mark.parametrize("by", ["table", "http"])
def test_a_compacted_stream_is_told_apart_by_the_fold_job_and_others_are_folded(
    streams: Streams, by: str
) -> None:
    process, bucket = streams.process, streams.name
    create_bucket(process.stores, bucket)
    for name, compaction in (("compacted", AT_ONCE), ("plain", None)):
        process.create(StreamKey(bucket, name), content_type=JSON, compaction=compaction, body=b'[{"id":1}]')
    given = {"table": streams.by_table, "http": streams.by_http}[by](bucket=bucket, subscribePattern=".*")
    connection = parse_read_options(given, streaming=False).connection
    snapshotter = Snapshotter(SnapshotPlan(connection, "last-by-key", "id", skip_bad=False))
    results = [snapshotter.run(name) for name in ("compacted", "plain")]
    assert [result.outcome for result in results] == [CONFLICT, PUBLISHED]
    assert "A compacted stream takes no snapshot: it keeps the last message of each key" in results[0].detail
