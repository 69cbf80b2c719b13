"""Event time over HTTP: the times that `includeTimestamps` gets are those of the table."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.spark.opaque import OpaqueServer
from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled, key, plan_here, started, table_options
from tests.support import BYTES, JSON, World, append_request
from tidemark.janitor.sweep import sweep
from tidemark.log.read import read_page
from tidemark.protocol.pack import Packing
from tidemark.service.append import append
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.spark.clients.http import HttpFault
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import columns_of, parse_read_options
from tidemark.spark.queries.plan import Driver, plan_partitions
from tidemark.spark.readers.http_page import PageTimes, TimesDoNotFit
from tidemark.spark.readers.port import BEGINNING, DataLoss, NoTimes, Reader

Timed = tuple[bytes, datetime]

TIMES = {"includeTimestamps": "true"}
SMALL = Packing(0, every_bytes=1, pack_bytes=400, min_batches=2, block_bytes=90)
SHAPES = ("plain", "packed", "trimmed", "fork", "packed fork", "packed and trimmed")


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the test's own server, so that short streams have many."""
    defaults: Any = read_page.__kwdefaults__
    monkeypatch.setitem(defaults, "limit_bytes", 250)


@pytest.fixture
def at_request(server: ThreadedServer) -> Iterator[Callable[..., None]]:
    """Let something happen just before the server gets a request for this path, once."""

    def arrange(path: str, act: Callable[[], object]) -> None:
        waiting = [act]

        def happen(_method: str, asked: str, _headers: dict[str, str]) -> None:
            if asked == path and waiting:
                waiting.pop()()

        server.spoil = happen

    yield arrange
    server.spoil = lambda _method, _path, _headers: None


def timed(reader: Reader, parts: Any, columns: str = "value,timestamp") -> list[Timed]:
    batches = (batch for part in parts for batch in reader.read(part, columns.split(",")))
    return [(row["value"], row["timestamp"]) for batch in batches for row in batch.to_pylist()]


def read_timed(origin: dict[str, str], **options: str) -> list[Timed]:
    reader, parts = plan_here(parse_read_options(origin | options, streaming=False))
    return timed(reader, parts)


def fill_at_random(world: World, name: str, chance: random.Random) -> list[int]:
    """Appends of some messages, some of them committed together, some large, and time between some of them.
    Where its messages end."""
    process = world.process()
    process.stores.packing = SMALL
    process.create(key(name), content_type=JSON)
    for number in range(chance.randrange(20, 60)):
        bodies = []
        for _ in range(chance.choice((1, 1, 1, 3))):
            values = [b"%d" % chance.randrange(10**6) for _ in range(chance.choice((1, 1, 2, 5)))]
            values += [b'"%s"' % (b"x" * 70_000)] if chance.random() < 0.04 else []
            bodies.append(b"[" + b",".join([b"%d" % number, *values]) + b"]")
        append(process.stores, key(name), [append_request(body, content_type=JSON) for body in bodies])
        world.clock.advance(chance.choice((0, 0, 1, 1000, 86_400_000)))
    return message_ends(world, name)


def message_ends(world: World, name: str) -> list[int]:
    options = parse_read_options(table_options(world) | {"subscribe": name}, streaming=False)
    reader, parts = plan_here(options)
    batches = [batch for part in parts for batch in reader.read(part, ["end_offset"])]
    return [int(row["end_offset"]) for batch in batches for row in batch.to_pylist()]


def shape(world: World, name: str, ends: list[int], kind: str, chance: random.Random) -> str:
    """Make packs of some of it, remove some from its beginning, or fork it; the stream to read."""
    if "packed" in kind:
        process = world.process()
        process.stores.packing = SMALL
        assert sweep(process.stores).packed
    if "trimmed" in kind:
        assert trim_below(world.process().stores, key(name), chance.choice(ends[: len(ends) // 2]))
    if "fork" in kind:
        fork = f"{name}-fork"
        process = world.process()
        process.fork(key(fork), key(name), chance.choice(ends[len(ends) // 2 :]))
        for number in range(3):
            world.clock.advance(10)
            process.append(key(fork), b"[%d,%d]" % (number, number), content_type=JSON)
        return fork
    return name


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.usefixtures("small_pages")
def test_each_message_has_the_time_that_the_table_has(
    server: ThreadedServer, world: World, name: str, kind: str
) -> None:
    """From any message end to any other, whatever the pages are, and though the tail has moved since."""
    chance = random.Random(kind)
    stream = shape(world, name, fill_at_random(world, name, chance), kind, chance)
    everything = read_timed(table_options(world), subscribe=stream)
    ends = message_ends(world, stream)
    assert read_timed({"url": server.url}, subscribe=stream, **TIMES) == everything
    for _ in range(8):
        first, last = sorted(chance.choices(range(len(ends)), k=2))
        bounds = {
            "startingOffsets": f'{{"{stream}": "{ends[first]:016}"}}',
            "endingOffsets": f'{{"{stream}": "{ends[last]:016}"}}',
        }
        given = {"url": server.url, "subscribe": stream} | bounds | TIMES
        reader, parts = plan_here(parse_read_options(given, streaming=False))
        world.clock.advance(1)
        world.process().append(key(stream), b"[7,8]", content_type=JSON)
        assert timed(reader, parts) == everything[first + 1 : last + 1]


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.usefixtures("small_pages")
def test_each_batch_of_a_limited_query_has_the_times_of_the_table(
    server: ThreadedServer, world: World, name: str, kind: str
) -> None:
    chance = random.Random(kind)
    stream = shape(world, name, fill_at_random(world, name, chance), kind, chance)
    options = parse_read_options({"url": server.url, "subscribe": stream} | TIMES, streaming=True)
    driver = Driver(options)
    reached = driver.initial().positions[stream]
    found: list[Timed] = []
    while True:
        tail = driver.look(fresh=True).heads[stream].tail
        if reached.offset == tail.offset:
            break
        end = driver.reader.limit(stream, reached, tail, chance.randrange(1, 700))
        world.clock.advance(3)
        if chance.random() < 0.1:
            world.process().append(key(stream), b"[1,2]", content_type=JSON)
        parts = plan_partitions(options, driver.reader, {stream: reached}, {stream: end})
        found += timed(driver.reader, parts)
        reached = end
    assert found == read_timed(table_options(world), subscribe=stream)


@pytest.mark.usefixtures("small_pages")
def test_a_piece_of_bytes_has_the_time_of_its_first_byte(
    server: ThreadedServer, world: World, name: str
) -> None:
    """A row is a page here, and pages end where appends do; a read may begin inside of an append."""
    begins: list[tuple[int, int]] = []
    process = world.process()
    process.create(key(name), content_type=BYTES)
    place = 0
    for size in (100, 100, 20, 300, 40, 200, 10, 5):
        world.clock.advance(1000)
        begins.append((place, world.clock.now_ms))
        process.append(key(name), bytes(size), content_type=BYTES)
        place += size
    for start in (0, 1, 99, 100, 215, 230, 600, 774):
        bounds = {"startingOffsets": f'{{"{name}": "{start:016}"}}'}
        given = {"url": server.url, "subscribe": name} | bounds | TIMES
        reader, parts = plan_here(parse_read_options(given, streaming=False))
        columns = ["offset", "value", "timestamp"]
        rows = [row for part in parts for batch in reader.read(part, columns) for row in batch.to_pylist()]
        for row in rows:
            first = max(0, int(row["offset"]))
            of_first_byte = max(ms for begin, ms in begins if begin <= first)
            assert row["timestamp"] == datetime.fromtimestamp(of_first_byte / 1000, UTC)
        assert sum(len(row["value"]) for row in rows) == place - start


def test_who_does_not_ask_for_times_makes_no_request_for_them(
    server: ThreadedServer, world: World, name: str
) -> None:
    filled(world, name, b"[1,2]", content_type=JSON)
    asked = {"url": server.url, "subscribe": name}
    server.seen.clear()
    reader, parts = plan_here(parse_read_options(asked | TIMES | {"columns": "value"}, streaming=False))
    assert [batch.num_rows for part in parts for batch in reader.read(part, ["value"])] == [2]
    assert not [path for _, path in server.seen if path == "/v1/times"]
    assert None not in [ms for _, ms in read_timed(asked | TIMES)]
    # Whether the server tells them, and the page's.
    assert [path for _, path in server.seen].count("/v1/times") == 2


def test_without_the_option_there_is_no_timestamp(server: ThreadedServer, name: str) -> None:
    """A column of nulls would make a watermark wait for ever, and say nothing."""
    asked = {"url": server.url, "subscribe": name}
    assert "timestamp" not in columns_of(asked)
    assert "timestamp" in columns_of(asked | TIMES)
    assert columns_of(asked | {"columns": "value,offset"}) == ("value", "offset")
    with pytest.raises(InvalidOptions, match="only with includeTimestamps=true"):
        parse_read_options(asked | {"columns": "value,timestamp"}, streaming=True)


def test_over_the_table_the_option_changes_nothing(world: World, name: str) -> None:
    filled(world, name, b"[1,2]", content_type=JSON)
    asked = table_options(world) | {"subscribe": name}
    assert read_timed(asked) == read_timed(asked | TIMES)


def test_a_server_that_does_not_tell_times_is_refused_when_the_read_is_planned(
    world: World, name: str, server: ThreadedServer
) -> None:
    what = "includeTimestamps: s: this server .*GET /v1/times"
    with OpaqueServer(is_json=True) as other:
        other.append(b"1")
        with pytest.raises(InvalidOptions, match=what):
            read_timed({"url": other.url}, subscribe="s", **TIMES)
        with pytest.raises(InvalidOptions, match=what):
            Driver(parse_read_options({"url": other.url, "subscribe": "s"} | TIMES, streaming=True)).initial()
        assert len(read_timed({"url": other.url}, subscribe="s")) == 1
    filled(world, f"{name} é/x", b"[1]", content_type=JSON)
    assert len(read_timed({"url": server.url}, subscribe=f"{name} é/x", **TIMES)) == 1


def test_a_server_that_tells_no_times_any_more_is_an_error_and_no_loss_of_data(
    server: ThreadedServer, world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With failOnDataLoss=false what is lost is passed over; here nothing is."""
    filled(world, name, b"[1,2]", content_type=JSON)
    given = {"url": server.url, "subscribe": name, "failOnDataLoss": "false"} | TIMES
    reader, parts = plan_here(parse_read_options(given, streaming=False))
    ask = reader._ask  # type: ignore[attr-defined]
    monkeypatch.setattr(reader, "_ask", lambda _path, *more: ask("/v1/nothing", *more))
    with pytest.raises(HttpFault, match="404"):
        timed(reader, parts)


@pytest.mark.parametrize("keeps_size", [True, False])
def test_times_of_a_stream_that_was_created_again_meanwhile_are_never_taken(
    server: ThreadedServer, world: World, name: str, at_request: Callable[..., None], keeps_size: bool
) -> None:
    """The page is of the old one, and the times would be those of the new one."""
    given = {"url": server.url, "subscribe": name} | TIMES
    for strict in (True, False):
        filled(world, name, b"[1,2]", b"3", content_type=JSON)
        options = parse_read_options(given | {"failOnDataLoss": str(strict)}, streaming=False)
        reader, parts = plan_here(options)

        def create_again() -> None:
            delete(world.process().stores, key(name))
            world.clock.advance(1000)
            filled(world, name, b"[7,8]", *([b"9"] if keeps_size else []), content_type=JSON)

        at_request("/v1/times", create_again)
        if strict:
            with pytest.raises(DataLoss, match="before its times were read"):
                timed(reader, parts)
        else:
            assert timed(reader, parts) == []
        delete(world.process().stores, key(name))
        world.clock.advance(1000)


def test_a_stream_that_is_deleted_before_its_times_are_read_is_lost(
    server: ThreadedServer, world: World, name: str, at_request: Callable[..., None]
) -> None:
    filled(world, name, b"[1,2]", content_type=JSON)
    given = {"url": server.url, "subscribe": name} | TIMES
    reader, parts = plan_here(parse_read_options(given, streaming=False))
    at_request("/v1/times", lambda: delete(world.process().stores, key(name)))
    with pytest.raises(DataLoss, match="before its times were read"):
        timed(reader, parts)


@pytest.mark.usefixtures("small_pages")
def test_what_is_trimmed_before_its_times_are_read_is_lost_and_the_rest_is_read(
    server: ThreadedServer, world: World, name: str, at_request: Callable[..., None]
) -> None:
    bodies = [b'["%s"]' % (b"x" * 90) for _ in range(9)]
    filled(world, name, *bodies, content_type=JSON)
    everything = read_timed(table_options(world), subscribe=name)
    given = {"url": server.url, "subscribe": name, "failOnDataLoss": "false"} | TIMES
    reader, parts = plan_here(parse_read_options(given, streaming=False))
    trim = partial(trim_below, world.process().stores, key(name), 93 * 3)
    at_request("/v1/times", trim)
    assert timed(reader, parts) == everything[3:]
    reader, parts = plan_here(parse_read_options(given | {"failOnDataLoss": "true"}, streaming=False))
    trim = partial(trim_below, world.process().stores, key(name), 93 * 6)
    at_request("/v1/times", trim)
    with pytest.raises(DataLoss):
        timed(reader, parts)


@pytest.mark.usefixtures("small_pages")
def test_a_tail_that_moves_between_page_and_times_changes_no_row(
    server: ThreadedServer, world: World, name: str, at_request: Callable[..., None]
) -> None:
    filled(world, name, b"[1,2]", b"3", content_type=JSON)
    expected = read_timed(table_options(world), subscribe=name)
    given = {"url": server.url, "subscribe": name} | TIMES

    def write_on() -> None:
        world.clock.advance(1000)
        world.process().append(key(name), b"[4,5]", content_type=JSON)

    for path in ("/v1/times", f"/v1/stream/{name}"):
        reader, parts = plan_here(parse_read_options(given, streaming=False))
        at_request(path, write_on)
        assert timed(reader, parts) == expected
        expected = read_timed(table_options(world), subscribe=name)


def test_times_of_another_number_of_messages_are_an_error() -> None:
    """Never a time of another message: rather none."""
    told = {"times_ms": [1000, 2000], "messages": [1, 2], "bytes": [5, 10], "end_offset": f"{15:016}"}
    for taken in range(5):
        times = PageTimes(BEGINNING, is_json=True)
        times.add(told)
        if taken > 3:
            with pytest.raises(TimesDoNotFit):
                times.take([b"1"] * taken)
            continue
        times.take([b"1"] * taken)
        for end, expected in ((0, 0), (5, 1), (15, 3)):
            if taken == expected:
                times.check(f"{end:016}")
            else:
                with pytest.raises(TimesDoNotFit):
                    times.check(f"{end:016}")
    pieces = PageTimes(f"{3:016}", is_json=False)
    pieces.add(told | {"end_offset": f"{18:016}"})
    assert [each.second for each in pieces.take([b"12345", b"1"]).to_pylist()] == [1, 2]
    pieces.check(f"{9:016}")
    with pytest.raises(TimesDoNotFit):
        pieces.check(f"{18:016}")
    with pytest.raises(TimesDoNotFit):
        pieces.take([b"1" * 10])


def test_an_answer_without_times_is_named() -> None:
    with OpaqueServer(is_json=True) as other:
        other.append(b"1")
        options = parse_read_options({"url": other.url, "subscribe": "s"}, streaming=False)
        reader, _ = plan_here(options)
        with pytest.raises(NoTimes, match="with no times"):
            reader.check_times(reader.head("s"))


def test_windows_of_event_time_over_http_close_as_the_watermark_passes(
    spark: Any, server: ThreadedServer, world: World, name: str, tmp_path: Any
) -> None:
    """Ten messages in three minutes; the last window stays open."""
    from pyspark.sql import functions

    began = world.clock.now_ms - world.clock.now_ms % 60_000 + 60_000
    world.clock.now_ms = began
    filled(world, name, content_type=JSON)

    def run() -> None:
        source = (
            spark.readStream.format("tidemark")
            .options(url=server.url, subscribe=name)
            .options(**TIMES)
            .load()
        )
        counts = (
            source.withWatermark("timestamp", "10 seconds")
            .groupBy(functions.window("timestamp", "1 minute"))
            .count()
        )
        query = (
            counts.select("window.start", "count")
            .writeStream.format("parquet")
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(900)

    for second in (0, 10, 59, 60, 90, 119, 120, 130, 150, 179):
        world.clock.now_ms = began + second * 1000
        world.process().append(key(name), b"[%d]" % second, content_type=JSON)
    started(run)
    world.process().append(key(name), b"[0]", content_type=JSON)
    started(run)
    found = spark.read.schema("start TIMESTAMP, count BIGINT").parquet(str(tmp_path / "out")).collect()
    first = datetime.fromtimestamp(began / 1000, UTC).replace(tzinfo=None)
    counts = sorted((row["start"], row["count"]) for row in found)
    assert counts == [(first, 3), (first + timedelta(minutes=1), 3)]
