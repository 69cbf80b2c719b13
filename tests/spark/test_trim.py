"""`trim --archived`: streams let go of what the lake has committed, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.buckets import publish
from tests.spark.lakes import Lake
from tests.spark.streams import Start, filled, key
from tests.support import BYTES, HOUR_MS, JSON, World
from tidemark.janitor.sweep import sweep
from tidemark.log.read import load_stream
from tidemark.protocol.errors import RetentionGone
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.buckets import create_bucket
from tidemark.service.delete import delete
from tidemark.service.read import read
from tidemark.spark.failures import Exit
from tidemark.spark.lake import LakeTable
from tidemark.spark.lake_files import SPARK_SCHEMA
from tidemark.spark.trim import archived_stretches


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def run(start: Start, where: list[str], name: str, lake: Lake, tmp_path: Path) -> Callable[..., Any]:
    """`run("archive")` or `run("trim")`, for the streams of this test."""
    given = {
        "archive": ["--checkpoint", str(tmp_path / "checkpoint")],
        # The clock of these tests is ahead of the machine's: no message is old.
        "trim": ["--archived", "--keep-hours", "-1000000"],
    }

    def run_job(job: str, *more: str) -> tuple[int, str, str]:
        return start(job, *where, "--pattern", f"{name}-.*", *lake.given, *given[job], *more)

    return run_job


def retained(world: World, stream: StreamKey) -> int:
    record = load_stream(world.process().stores.table, stream)
    assert record is not None
    return record.retained


def later(world: World) -> None:
    world.clock.advance(2 * HOUR_MS)
    sweep(world.process().stores)


def test_what_is_gone_from_the_table_is_in_the_lake_whatever_was_killed(
    start: Start,
    world: World,
    name: str,
    run: Callable[..., Any],
    lake: Lake,
    where: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The archive is killed before its commit: nothing of the batch goes. It is killed behind it: all of it
    goes, though the archive does not know of its commit yet, and goes on all the same."""
    json, large = f"{name}-json", f"{name}-bytes"
    filled(world, json, b'[{"key":"k"}, "x"]', content_type=JSON)
    filled(world, large, b"one", bytes(range(256)) * 400)
    assert run("archive")[0] == 0
    commit = LakeTable._commit

    def dies_before(_lake: LakeTable, _change: Any) -> bool:
        raise RuntimeError("killed")

    def dies_after(lake: LakeTable, change: Any) -> bool:
        commit(lake, change)
        raise RuntimeError("killed")

    places = {json: [16], large: [102403]}
    for number, dies in enumerate((dies_before, dies_after)):
        for stream, body in ((json, b"[%d]" % number), (large, b"more")):
            content_type = JSON if stream == json else BYTES
            outcome = world.process().append(key(stream), body, content_type=content_type)
            places[stream].append(outcome.next_offset)
        monkeypatch.setattr(LakeTable, "_commit", dies)
        assert run("archive")[0] == Exit.FAILED
        monkeypatch.setattr(LakeTable, "_commit", commit)
        code, said, err = run("trim")
        assert code == 0, err
        if number:
            # The second run's batch began with what the first one had staged: its end was fixed by then.
            assert " trimmed=2" in said
        later(world)
        for stream in (json, large):
            gone = retained(world, key(stream))
            assert gone == max(int(row["end_offset"]) for row in lake.rows() if row["stream"] == stream)
            with pytest.raises(RetentionGone):
                read(world.process().stores, key(stream), 0)
            rest = read(world.process().stores, key(stream), gone)
            assert rest.page.end == places[stream][-1]
    code, _, err = run("archive")
    assert code == 0, err
    assert " trimmed=2" in run("trim")[1]
    assert "unchanged=2" in run("trim")[1]
    for stream in (json, large):
        assert retained(world, key(stream)) == places[stream][-1]
        replay = ["replay", *where, *lake.given, "--stream", stream, "--to", f"again-{stream}"]
        code, _, err = start(*replay, "--staging", str(tmp_path / "staging"), "--id", stream)
        assert code == 0, err
    assert world.process().read_all(key(f"again-{json}")) == b'{"key":"k"},"x",0,1,'
    assert world.process().read_all(key(f"again-{large}")) == b"one" + bytes(range(256)) * 400 + b"moremore"


def test_a_stream_that_the_lake_has_with_a_gap_is_kept_from_the_gap_on(
    world: World, name: str, run: Callable[..., Any], lake: Lake
) -> None:
    """The second of three files is none of the table's any more."""
    filled(world, f"{name}-a", b"one")
    for body in (b"two", b"three", b""):
        assert run("archive")[0] == 0
        if body:
            world.process().append(key(f"{name}-a"), body)
    lake.table.delete("offset = '0000000000000003'")
    assert len(lake.files) == 2
    code, said, err = run("trim")
    assert (code, "trimmed=1" in said, "bytes=3 " in said) == (0, True, True), err
    assert retained(world, key(f"{name}-a")) == 3


def test_what_is_young_or_not_taken_by_a_consumer_or_only_looked_at_stays(
    start: Start, world: World, name: str, run: Callable[..., Any], where: list[str], tmp_path: Path
) -> None:
    filled(world, f"{name}-a", b"one")
    filled(world, f"{name}-b", b"one")
    other_lake, taken = Lake(tmp_path / "other"), str(tmp_path / "taken")
    other = ["archive", *where, "--subscribe", f"{name}-a", *other_lake.given, "--checkpoint", taken]
    assert start(*other)[0] == 0
    world.process().append(key(f"{name}-a"), b"two")
    assert run("archive")[0] == 0
    assert "streams=0 " in run("trim", "--keep-hours", "1")[1]
    code, said, err = run("trim", "--dry-run", "--consumer", f"other={taken}")
    assert (code, "would_trim=1" in said, "unchanged=1" in said) == (0, True, True), err
    assert [retained(world, key(f"{name}-{each}")) for each in "ab"] == [0, 0]
    assert "trimmed=1" in run("trim", "--consumer", f"other={taken}")[1]
    assert [retained(world, key(f"{name}-{each}")) for each in "ab"] == [3, 0]


def test_a_stream_that_was_created_again_or_has_a_snapshot_is_left_alone(
    start: Start, world: World, name: str, lake: Lake, where: list[str], tmp_path: Path
) -> None:
    process = world.process()
    create_bucket(process.stores, name)
    again, folded = StreamKey(name, "again"), StreamKey(name, "folded")
    for each in (again, folded):
        process.create(each, body=b"one")
        process.append(each, b"two")
    common = [*where, "--bucket", name, "--pattern", ".*", *lake.given]
    assert start("archive", *common, "--checkpoint", str(tmp_path / "checkpoint"))[0] == 0
    delete(process.stores, again)
    world.clock.advance(1)
    process.create(again, body=b"onetwo")
    publish(process, folded, 3)
    code, said, err = start("trim", *common, "--archived", "--keep-hours", "-1000000")
    assert (code, "gone=1" in said, "kept=1" in said) == (0, True, True), err
    assert "folded: kept Stream has a snapshot at 0000000000000003" in err
    assert [retained(world, each) for each in (again, folded)] == [0, 3]


def test_rows_count_once_and_only_where_all_bytes_are_there(spark: Any) -> None:
    """Pages as they come over HTTP, the same message in two archives, and copies that differ."""
    unsaid = [None] * 4  # the key and the producer

    def row(
        stream: str, start: str, end: int, position: int, size: int | None, kind: str = "text/plain"
    ) -> Any:
        offset = start if start == "-1" else f"{int(start):016}"
        return ("v1", stream, "i", offset, f"{end:016}", position, None, kind, None, size, *unsaid)

    json = "Application/JSON; charset=utf-8"
    rows = [
        *(row("page", "-1", 10, place, 4, json) for place in range(2)),
        row("page", "10", 20, 0, 9, json),
        row("torn", "-1", 10, 0, 4, json),
        row("torn", "10", 12, 0, 2),
        *(row("twice", "0", 5, 0, 5) for _ in range(2)),
        row("twice", "5", 7, 0, 2),
        row("differs", "0", 5, 0, 5),
        row("differs", "0", 5, 0, 4),
        row("old", "0", 5, 0, None),
        *(row("overlaps", str(begin), begin + 6, 0, 6) for begin in (0, 3, 6, 15)),
        # Of a compacted stream: a page of which all rows are there, and one of which the first is not.
        *(row("short", "0", 20, place, 4, json) for place in (0, 1)),
        *(row("short", "20", 40, place, 4, json) for place in (1, 2)),
        (*row("foreign", "0", 5, 0, 5)[:3], "a-token", "b-token", 0, None, "text/plain", None, 1, *unsaid),
    ]
    found = archived_stretches(spark.createDataFrame(rows, SPARK_SCHEMA)).collect()
    stretches = {each["stream"]: sorted(tuple(place) for place in each["stretches"]) for each in found}
    assert stretches == {
        "page": [(0, 20, 20)],
        "torn": [(0, 10, 5), (10, 12, 2)],
        "twice": [(0, 7, 7)],
        "overlaps": [(0, 12, 12), (15, 21, 6)],
        "short": [(0, 20, 10)],
    }


def test_a_trimmed_stream_is_read_from_what_it_retains_by_both_ways(
    world: World, name: str, server: Any, read: Callable[..., Any], spark: Any, run: Callable[..., Any]
) -> None:
    filled(world, f"{name}-a", b"[1]", b"[22]", content_type=JSON)
    assert run("archive")[0] == 0
    assert "trimmed=1" in run("trim")[1]
    world.process().append(key(f"{name}-a"), b"[333]", content_type=JSON)
    by_http = spark.read.format("tidemark").options(url=server.url, subscribe=f"{name}-a").load()
    for frame in (read(subscribe=f"{name}-a"), by_http):
        assert [bytes(row["value"]) for row in frame.select("value").collect()] == [b"333"]


def test_trim_says_what_it_needs(run: Callable[..., Any], start: Start, where: list[str], lake: Lake) -> None:
    code, _, err = start("trim", *where, "--pattern", ".*", *lake.given)
    assert (code, "give --archived" in err) == (Exit.YOUR_INPUT, True)
    by_url = ["--url", "http://127.0.0.1:9", "--bucket", "some-bucket", "--pattern", ".*"]
    code, _, err = start("trim", *by_url, *lake.given, "--archived")
    assert (code, "give --table in place of --url" in err) == (Exit.YOUR_INPUT, True)
