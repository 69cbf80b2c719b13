"""Offsets by difference: whatever happens to a query, each offset that it was given says where it was."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.bucket import Bucket, Stream
from tests.support import World
from tidemark.spark import bases
from tidemark.spark.bases import BESIDE, Bases, MissingBase, whole_offset
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Progress
from tidemark.spark.queries import Driver, within_limit


def kept(offset: Any) -> Any:
    """As the checkpoint has it."""
    return json.loads(json.dumps(offset))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "MOST_NAMED", 5)


def streams(count: int, at: int = 0) -> dict[str, Any]:
    return {f"s{number:03}": [f"{at:016}", "i", "json"] for number in range(count)}


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_an_offset_names_what_has_moved_since_its_base_and_what_is_gone(tmp_path: Path) -> None:
    writer, whole = Bases(str(tmp_path)), {BESIDE: {"b/.*": 7}} | streams(20)
    first = kept(writer.shorten(whole))
    assert list(first) == [BESIDE]
    moved = whole | {"s003": ["1".zfill(16), "i", "json"], "new": ["2".zfill(16), "j"]}
    del moved["s004"]
    second = kept(writer.shorten(moved))
    assert sorted(second) == [BESIDE, "new", "s003"]
    assert (whole_offset(first), whole_offset(second)) == (whole, moved)
    assert len(files(tmp_path)) == 1
    # By the query after a restart too.
    again = Bases(str(tmp_path))
    again.see(second)
    assert kept(again.shorten(moved)) == second


def test_a_new_base_is_written_when_many_have_moved_beside_the_earlier_ones(tmp_path: Path) -> None:
    writer = Bases(str(tmp_path))
    first, second = (kept(writer.shorten(streams(20, at))) for at in (1, 2))
    assert (list(first), list(second)) == ([BESIDE], [BESIDE])
    assert (whole_offset(first), whole_offset(second)) == (streams(20, 1), streams(20, 2))
    assert len({path.parent for path in files(tmp_path)}) == 1
    Bases(str(tmp_path)).shorten(streams(20, 3))
    assert len({path.parent for path in files(tmp_path)}) == 2, "another query has its own"


def test_few_streams_need_no_base_and_an_offset_is_whole_again_without_the_option(tmp_path: Path) -> None:
    assert Bases(str(tmp_path)).shorten(streams(5)) == streams(5)
    short = Bases(str(tmp_path)).shorten(streams(20))
    without = Bases("")
    without.see(short)
    assert without.shorten(dict(whole_offset(short))) == streams(20)
    assert without.difference(streams(20)) == streams(20)


def test_old_bases_go_but_for_the_one_before(tmp_path: Path) -> None:
    writer, week = Bases(str(tmp_path)), 8 * 24 * 3600
    first, second = (kept(writer.shorten(streams(20, at))) for at in (1, 2))
    for path in files(tmp_path):
        os.utime(path, (time.time() - week,) * 2)
    third = kept(writer.shorten(streams(20, 3)))
    bases._read_base.cache_clear()
    assert (whole_offset(second), whole_offset(third)) == (streams(20, 2), streams(20, 3))
    with pytest.raises(MissingBase, match=r"put it back, or begin a new checkpoint"):
        whole_offset(first)


def test_bases_may_lie_in_s3(world: World) -> None:
    place = f"s3://{world.bucket_name}/offsets"
    writer = Bases(place)
    assert len(writer.shorten(streams(20))) == 1
    short = kept(writer.shorten(streams(20, 1)))
    bases._read_base.cache_clear()
    assert whole_offset(short) == streams(20, 1)


def test_a_base_that_was_changed_is_refused(tmp_path: Path) -> None:
    short = Bases(str(tmp_path)).shorten(streams(20))
    bases._read_base.cache_clear()
    files(tmp_path)[0].write_bytes(b"?")
    with pytest.raises(MissingBase):
        whole_offset(short)


@pytest.mark.parametrize("seed", range(20))
def test_a_query_over_many_streams_is_the_same_with_bases_as_without(seed: int, tmp_path: Path) -> None:
    """Streams are written to, created, closed and deleted; the query is limited, restarts, and goes back to
    earlier offsets."""
    chance, now = random.Random(seed), [10**12]
    bucket = Bucket(clock_ms=lambda: now[0])
    given = {"subscribePattern": ".*", "failOnDataLoss": "false", "maxBytesPerTrigger": "100"}

    def driver(**more: str) -> Driver:
        options = parse_read_options(given | more, streaming=True, environment={})
        made = Driver(options, clock=lambda: 0.0)
        made._connected = bucket
        return made

    def change() -> None:
        name = f"s{chance.randrange(30):02}"
        stream = bucket.streams.get(name)
        if stream is None or chance.random() < 0.1:
            bucket.streams[name] = Stream(f"i{chance.randrange(10**9)}", now[0])
        elif chance.random() < 0.1:
            del bucket.streams[name]
        elif not stream.closed:
            stream.messages += chance.randrange(20)
            stream.closed = chance.random() < 0.1

    plain, short = driver(), driver(offsetsDir=str(tmp_path))
    told = [(kept(plain.encode(Progress({}))), kept(short.encode(Progress({}))))]
    for _ in range(60):
        now[0] += chance.choice((1_000, 600_000))
        for _ in range(chance.choice((0, 1, 1, 8))):
            change()
        if chance.random() < 0.2:
            plain, short = driver(), driver(offsetsDir=str(tmp_path))
            told = told[: max(1, len(told) - chance.randrange(3))]
        ends = []
        for each, start in zip((plain, short), told[-1], strict=True):
            begin = each.decode(start)
            end = each.everything_from(begin, each.look(fresh=True))
            end = begin if end is begin else within_limit(each.options, bucket, begin, end)
            ends.append(start if end is begin else kept(each.encode(end)))
        told.append((ends[0], ends[1]))
        assert whole_offset(ends[1]) == ends[0]
    assert files(tmp_path)
