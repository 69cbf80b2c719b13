"""The jobs over compacted streams: what is gone is not lost, and what is lost is not taken for gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark.changes import Rows, compacted_rows
from tests.spark.jobs import Jobs
from tests.spark.lakes import Lake
from tests.spark.streams import Streams, plan_here, read_here, table_of
from tidemark.protocol.offset import render_offset
from tidemark.service.load import load_head
from tidemark.spark.gaps import losses_beside_compaction
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.trim import TRIMMED, Stretch, Trimmer, TrimPlan, TrimResult, archived_end_of_compacted
from tidemark.spark.whole import read_whole


@pytest.fixture
def rows(streams: Streams) -> Rows:
    return compacted_rows(streams)


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
