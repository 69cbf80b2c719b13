"""Rows over HTTP have the offsets that the table has, and with `includeTimestamps` its times."""

import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import urllib3

from tests.spark.opaque import OpaqueServer
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Streams, plan_here, started, table_of
from tests.support import BYTES, JSON, append_request
from tidemark.janitor.sweep import sweep
from tidemark.log.due import Packing
from tidemark.service.append import append
from tidemark.service.retention import trim_below
from tidemark.spark.http_client import HttpFault
from tidemark.spark.options import InvalidOptions
from tidemark.spark.options.read import columns_of, parse_read_options
from tidemark.spark.queries import Driver, plan_partitions
from tidemark.spark.readers.http_page import HttpPage, PagePlaces, PlacesDoNotFit, rows_of
from tidemark.spark.readers.port import DataLoss, NoTimes, Reader

Timed = tuple[Any, ...]

TIMES = {"includeTimestamps": "true"}
SMALL = Packing(0, every_bytes=1, pack_bytes=400, min_batches=2, block_bytes=90)


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


PLACED = "offset,end_offset,position,value"


def timed(reader: Reader, parts: Any) -> list[Timed]:
    return [tuple(row.values()) for row in table_of(reader, parts, f"timestamp,{PLACED}")]


def read_timed(given: dict[str, str]) -> list[Timed]:
    return timed(*plan_here(given))


def fill_at_random(streams: Streams, chance: random.Random, content_type: Any) -> None:
    """Appends of some messages, some committed together, some large, and time between some of them."""
    process = streams.process
    process.stores.packing = SMALL
    streams.fill(content_type=content_type)
    for number in range(chance.randrange(20, 60)):
        bodies = []
        for _ in range(chance.choice((1, 1, 1, 3))):
            values = [b"%d" % chance.randrange(10**6) for _ in range(chance.choice((1, 1, 2, 5)))]
            values += [b'"%s"' % (b"x" * 70_000)] if chance.random() < 0.04 else []
            bodies.append(b"[" + b",".join([b"%d" % number, *values]) + b"]")
        append(
            process.stores,
            streams.key(),
            [append_request(body, content_type=content_type) for body in bodies],
        )
        streams.world.clock.advance(chance.choice((0, 0, 1, 1000, 86_400_000)))


def message_ends(streams: Streams, name: str) -> list[int]:
    rows = table_of(*plan_here(streams.by_table(subscribe=name)), "end_offset")
    return [int(row["end_offset"]) for row in rows]


def shape(streams: Streams, kind: str, chance: random.Random, content_type: Any) -> str:
    """Make packs of some of it, remove some from its beginning, or fork it; the stream to read."""
    ends, process = message_ends(streams, streams.name), streams.process
    if "packed" in kind:
        process.stores.packing = SMALL
        assert sweep(process.stores).packed
    if "trimmed" in kind:
        assert trim_below(process.stores, streams.key(), chance.choice(ends[: len(ends) // 2]))
    if "fork" not in kind:
        return streams.name
    fork = streams.key("-fork")
    process.fork(fork, streams.key(), chance.choice(ends[len(ends) // 2 :]))
    for number in range(3):
        streams.world.clock.advance(10)
        process.append(fork, b"[%d,%d]" % (number, number), content_type=content_type)
    return fork.stream_id


@pytest.mark.parametrize("kind", ["plain", "packed", "trimmed", "fork", "packed fork", "packed and trimmed"])
@pytest.mark.parametrize("content_type", [JSON, BYTES], ids=["json", "bytes"])
@pytest.mark.usefixtures("small_pages")
def test_each_message_has_the_place_and_time_that_the_table_has(
    streams: Streams, kind: str, content_type: Any
) -> None:
    """From any message end to any other, whatever the pages are, and though the tail has moved since; and in
    each batch of a query with a limit."""
    chance, world = random.Random(kind), streams.world
    fill_at_random(streams, chance, content_type)
    name = shape(streams, kind, chance, content_type)
    key = streams.key(name.removeprefix(streams.name))
    everything = read_timed(streams.by_table(subscribe=name, **TIMES))
    ends = message_ends(streams, name)
    over_http = streams.by_http(subscribe=name, **TIMES)
    assert read_timed(over_http) == everything
    if content_type is JSON:
        untimed = table_of(*plan_here(streams.by_http(subscribe=name)), PLACED)
        assert [tuple(row.values()) for row in untimed] == [row[1:] for row in everything]
    for _ in range(6):
        first, last = sorted(chance.choices(range(len(ends)), k=2))
        starting, ending = (f'{{"{name}": "{ends[each]:016}"}}' for each in (first, last))
        reader, parts = plan_here(over_http, startingOffsets=starting, endingOffsets=ending)
        world.clock.advance(1)
        world.process().append(key, b"[7,8]", content_type=content_type)
        assert timed(reader, parts) == everything[first + 1 : last + 1]

    options = parse_read_options(over_http, streaming=True)
    driver = Driver(options)
    reached, found = driver.initial().positions[name], list[Timed]()
    while (tail := driver.look(fresh=True).heads[name].tail).offset != reached.offset:
        end = driver.reader.limit(name, reached, tail, chance.randrange(1, 700))
        world.clock.advance(3)
        if chance.random() < 0.1:
            world.process().append(key, b"[1,2]", content_type=content_type)
        parts = plan_partitions(options, driver.reader, {name: reached}, {name: end})
        found += timed(driver.reader, parts)
        reached = end
    assert found == read_timed(streams.by_table(subscribe=name))


@pytest.mark.usefixtures("small_pages")
def test_a_piece_of_bytes_has_the_time_of_its_first_byte(streams: Streams) -> None:
    """A row is a page here, and pages end where appends do; a read may begin inside of an append."""
    begins: list[tuple[int, int]] = []
    streams.fill(content_type=BYTES)
    place = 0
    for size in (100, 100, 20, 300, 40, 200, 10, 5):
        streams.world.clock.advance(1000)
        begins.append((place, streams.world.clock.now_ms))
        streams.append(bytes(size))
        place += size
    for start in (0, 1, 99, 100, 215, 230, 600, 774):
        starting = f'{{"{streams.name}": "{start:016}"}}'
        rows = table_of(
            *plan_here(streams.by_http(**TIMES), startingOffsets=starting), "offset,value,timestamp"
        )
        for row in rows:
            first = max(0, int(row["offset"]))
            of_first_byte = max(ms for begin, ms in begins if begin <= first)
            assert row["timestamp"] == datetime.fromtimestamp(of_first_byte / 1000, UTC)
        assert sum(len(row["value"]) for row in rows) == place - start


def test_without_the_option_there_are_no_times_and_no_requests_for_them(streams: Streams) -> None:
    """A column of nulls would make a watermark wait for ever, and say nothing."""
    asked, seen = streams.by_http(), streams.server.seen
    assert "timestamp" not in columns_of(asked)
    assert "timestamp" in columns_of(asked | TIMES)
    assert columns_of(asked | {"columns": "value,offset"}) == ("value", "offset")
    with pytest.raises(InvalidOptions, match="only with includeTimestamps=true"):
        parse_read_options(asked | {"columns": "value,timestamp"}, streaming=True)
    streams.fill(b"[1,2]", content_type=JSON)
    seen.clear()
    assert len(table_of(*plan_here(asked | TIMES, columns="value"), "value")) == 2
    assert not [path for _, path in seen if path == "/v1/times"]
    assert len(read_timed(asked | TIMES)) == 2
    # Whether the server tells them, and the page's.
    assert [path for _, path in seen].count("/v1/times") == 2


def test_a_server_that_does_not_tell_times_is_refused_when_the_read_is_planned(streams: Streams) -> None:
    what = "includeTimestamps: s: this server .*GET /v1/times"
    with OpaqueServer(is_json=True) as other:
        other.append(b"1")
        given = {"url": other.url, "subscribe": "s"}
        with pytest.raises(InvalidOptions, match=what):
            plan_here(given, **TIMES)
        with pytest.raises(InvalidOptions, match=what):
            Driver(parse_read_options(given | TIMES, streaming=True)).initial()
        assert len(table_of(*plan_here(given), "value")) == 1
    odd = f"{streams.name} é/x"
    streams.fill(b"[1]", suffix=" é/x", content_type=JSON)
    assert len(read_timed(streams.by_http(subscribe=odd, **TIMES))) == 1


def test_a_server_without_times_is_no_loss_of_data(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """With failOnDataLoss=false what is lost is passed over; here nothing is."""
    streams.fill(b"[1,2]", content_type=JSON)
    reader, parts = plan_here(streams.by_http(**TIMES), failOnDataLoss="false")
    ask = reader._ask  # type: ignore[attr-defined]
    monkeypatch.setattr(reader, "_ask", lambda _path, *more: ask("/v1/nothing", *more))
    with pytest.raises(HttpFault, match="404"):
        timed(reader, parts)
    with pytest.raises(NoTimes, match="does not tell when messages were appended"):
        reader.check_times(reader.heads([streams.name])[streams.name])


@pytest.mark.parametrize("bodies", [[b"[7,8]", b"9"], [b"[7,8]"], []], ids=["as long", "shorter", "gone"])
@pytest.mark.parametrize("strict", [True, False])
def test_times_of_a_stream_that_was_created_again_meanwhile_are_never_taken(
    streams: Streams, at_request: Callable[..., None], bodies: list[bytes], strict: bool
) -> None:
    """The page is of the old one, and the times would be those of the new one."""
    streams.fill(b"[1,2]", b"3", content_type=JSON)
    reader, parts = plan_here(streams.by_http(**TIMES), failOnDataLoss=str(strict))

    def delete_or_create_again() -> None:
        streams.delete()
        streams.world.clock.advance(1000)
        if bodies:
            streams.fill(*bodies, content_type=JSON)

    at_request("/v1/times", delete_or_create_again)
    if strict:
        with pytest.raises(DataLoss, match="before its times were read"):
            timed(reader, parts)
    else:
        assert timed(reader, parts) == []


@pytest.mark.usefixtures("small_pages")
def test_what_is_trimmed_before_its_times_is_lost(streams: Streams, at_request: Callable[..., None]) -> None:
    streams.fill(*[b'["%s"]' % (b"x" * 90) for _ in range(9)], content_type=JSON)
    everything = read_timed(streams.by_table())
    trim = partial(trim_below, streams.process.stores, streams.key())
    reader, parts = plan_here(streams.by_http(**TIMES), failOnDataLoss="false")
    at_request("/v1/times", partial(trim, 93 * 3))
    assert timed(reader, parts) == everything[3:]
    reader, parts = plan_here(streams.by_http(**TIMES))
    at_request("/v1/times", partial(trim, 93 * 6))
    with pytest.raises(DataLoss):
        timed(reader, parts)


@pytest.mark.usefixtures("small_pages")
def test_a_tail_that_moves_changes_no_row(streams: Streams, at_request: Callable[..., None]) -> None:
    streams.fill(b"[1,2]", b"3", content_type=JSON)

    def write_on() -> None:
        streams.world.clock.advance(1000)
        streams.append(b"[4,5]")

    for path in ("/v1/times", f"/v1/stream/{streams.name}"):
        expected = read_timed(streams.by_table())
        reader, parts = plan_here(streams.by_http(**TIMES))
        at_request(path, write_on)
        assert timed(reader, parts) == expected


BODY = b'["a","bc",1]'


def page_of(body: bytes, start: int, end: int) -> HttpPage:
    response = urllib3.HTTPResponse(
        io.BytesIO(body), {"Content-Length": str(len(body))}, preload_content=False
    )
    return HttpPage(f"{start:016}", f"{end:016}", "i", True, body[:1] == b"[", response, Mock())


def answer(end: int, *sizes: int, ends: Sequence[int] = ()) -> dict[str, Any]:
    """Of writes of one message each."""
    each = {"times_ms": [1000 * number for number in range(len(sizes))], "messages": [1] * len(sizes)}
    return each | {"bytes": list(sizes), "end_offset": f"{end:016}", "message_ends": list(ends)}


@pytest.mark.parametrize(
    ("body", "answers", "fits"),
    [
        (BODY, [answer(31, 4, 5, 2)], True),
        (BODY, [answer(29, 4, 5), answer(31, 2)], True),
        (BODY, [answer(40, 4, 5, 2, 9)], True),
        (BODY, [answer(31, 4, 7)], True),
        (BODY, [answer(31, 4, 5, ends=[24, 29])], False),
        (BODY, [answer(31, 4, 5, 3)], False),
        (BODY, [answer(29, 4, 5), answer(31, 2, ends=[31])], False),
        (b"abcdefghijk", [answer(31, 4, 5, 2)], True),
        (b"abcdefghijk", [answer(31, 4, 5)], False),
        (b"[]", [answer(31)], True),
        (b"[]", [answer(31, 4, ends=[24])], False),
    ],
)
def test_times_of_other_messages_are_an_error(body: bytes, answers: list[Any], fits: bool) -> None:
    """Never a time of another message: rather none."""
    places = PagePlaces(page_of(body, 20, 31), f"{31:016}")
    with nullcontext() if fits else pytest.raises(PlacesDoNotFit):
        for each in answers:
            places.add(each)
        places.check()


def test_a_page_that_has_fewer_bytes_than_its_offsets_span_is_an_error() -> None:
    """With as many bytes as the offsets span, but with blanks, so that its offsets are not places."""
    page = page_of(b'["a", "bc"]', 20, 30)
    places = PagePlaces(page, page.end)
    with pytest.raises(PlacesDoNotFit):
        list(rows_of(page, places, places.pieces(), ["offset"], {}))


def test_windows_over_http_close_as_the_watermark_passes(spark: Any, streams: Streams, tmp_path: Any) -> None:
    """Through Spark, with a restart from the checkpoint: eight messages in three minutes; the last window
    stays open."""
    from pyspark.sql import functions

    clock = streams.world.clock
    began = clock.now_ms = clock.now_ms - clock.now_ms % 60_000 + 60_000
    streams.fill(content_type=JSON)

    def run() -> None:
        source = spark.readStream.format("tidemark").options(**streams.by_http(**TIMES)).load()
        windows = source.withWatermark("timestamp", "10 seconds").groupBy(
            functions.window("timestamp", "1 minute")
        )
        writing = windows.count().select("window.start", "count").writeStream.format("parquet")
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(900)

    for second in (0, 10, 59, 60, 90, 119, 120, 150):
        clock.now_ms = began + second * 1000
        streams.append(b"[%d]" % second)
    started(run)
    streams.append(b"[0]")
    started(run)
    found = spark.read.schema("start TIMESTAMP, count BIGINT").parquet(str(tmp_path / "out")).collect()
    first = datetime.fromtimestamp(began / 1000, UTC).replace(tzinfo=None)
    counts = sorted((row["start"], row["count"]) for row in found)
    assert counts == [(first, 3), (first + timedelta(minutes=1), 3)]
