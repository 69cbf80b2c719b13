"""Compacted streams: both transports read what the server's own read has, at the same offsets."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import orjson
import pytest

from tests.spark.changes import Rows, compacted_rows
from tests.spark.streams import Streams, plan_here, read_here, rows_of, table_of
from tidemark.janitor.compact import load_packs
from tidemark.janitor.sweep import sweep
from tidemark.log.schema import batch_key, log_pk
from tidemark.protocol.offset import render_offset
from tidemark.spark.options import InvalidOptions
from tidemark.spark.readers.http_page import PlacesDoNotFit
from tidemark.spark.readers.port import DataLoss

COLUMNS = "offset,end_offset,value,key,timestamp"


@pytest.fixture
def rows(streams: Streams) -> Rows:
    return compacted_rows(streams)


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


def test_a_limit_goes_through_a_compacted_stream(rows: Rows) -> None:
    reader, _ = plan_here(rows.streams.by_table())
    head = reader.heads([rows.streams.name])[rows.streams.name]
    expected = rows.rows()
    place, found = head.earliest, list[Any]()
    while place.offset != head.tail.offset:
        end = reader.limit(rows.streams.name, place, head.tail, 100)
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
    columns = "offset,end_offset,position,value" + (",timestamp" if more else "")
    everything = table_of(*plan_here(rows.streams.by_table()), columns)
    for offset in (0, *rows.ends):
        until = values_until(rows, offset)
        place = f'{{"{name}": "{render_offset(offset)}"}}'
        before = table_of(*plan_here(given, endingOffsets=place), columns)
        behind = table_of(*plan_here(given, startingOffsets=place), columns)
        assert [row["value"] for row in before] == until
        assert before + behind == everything


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


def test_a_compaction_between_a_page_and_its_times_gives_no_wrong_time(rows: Rows) -> None:
    """The task fails, and Spark repeats it."""
    rows.change(40)
    given, server = rows.streams.by_http(**TIMED), rows.streams.server
    reader, parts = plan_here(given)

    def compact_once(_method: str, path: str, _headers: Any) -> None:
        if path == "/v1/times":
            server.spoil = lambda *_: None
            rows.compact()

    server.spoil = compact_once
    with pytest.raises(PlacesDoNotFit):
        table_of(reader, parts, "value,timestamp")
    expected = table_of(*plan_here(rows.streams.by_table()), "value,timestamp")
    assert table_of(reader, parts, "value,timestamp") == expected


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("by", ["table", "http"])
def test_a_query_that_goes_on_ends_with_the_state_of_a_new_one(streams: Streams, by: str, seed: int) -> None:
    """Batch by batch, each of them up to a limit that is planned before some more is removed."""
    rows, found = Rows(streams, seed), list[bytes]()
    rows.change(20)
    given = streams.by_table() if by == "table" else streams.by_http(**TIMED)
    reader, _ = plan_here(given)
    reached = reader.heads([streams.name])[streams.name].earliest
    for turn in count():
        tail = reader.heads([streams.name])[streams.name].tail
        if turn > 12 and reached.offset == tail.offset:
            break
        end = reader.limit(streams.name, reached, tail, rows.chance.randrange(1, 1500))
        if turn < 12:
            rows.change(rows.chance.randrange(8))
        if turn % 3 == 2:
            sweep(streams.process.stores)
        parts = reader.partitions(streams.name, reached, end, 300)
        found += [row["value"] for row in table_of(reader, parts, "value")]
        reached = end
    assert rows.record().compacted
    assert len(found) == len(set(found)), "each message once"
    assert state(found) == state(body for _, body in rows.read())


def state(bodies: Iterable[bytes]) -> dict[str, int]:
    return {change["key"]: change["value"] for change in map(orjson.loads, bodies)}


@pytest.mark.parametrize("more", [{}, TIMED], ids=["without times", "with times"])
def test_a_dense_page_is_not_asked_about_again(rows: Rows, more: dict[str, str]) -> None:
    rows.streams.server.seen.clear()
    seen, dense = rows.streams.server.seen, rows.record().compacted
    start, end = (f'{{"{rows.streams.name}": "{render_offset(place)}"}}' for place in (dense, rows.ends[-2]))
    given = rows.streams.by_http(startingOffsets=start, endingOffsets=end, **more)
    assert table_of(*plan_here(given), "value")
    assert [path for _, path in seen].count("/v1/times") == (2 if more else 0)
