"""The reader over HTTP, against this server and against one whose offsets mean nothing to us."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
import urllib3

from tests.buckets import key_in_new_bucket
from tests.spark.opaque import OpaqueServer
from tests.spark.serving import ThreadedServer
from tests.spark.streams import filled, key, plan_here, read_here, rows, rows_of, started, table_options
from tests.support import BYTES, JSON, World
from tidemark.aws.clock import CLOCK
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.spark.clients.http import HttpClient
from tidemark.spark.options.connection import InvalidOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Positions
from tidemark.spark.queries.plan import Driver, load_heads, plan_partitions
from tidemark.spark.readers import http_page
from tidemark.spark.readers.connect import connect
from tidemark.spark.readers.http import incarnation_in
from tidemark.spark.readers.http_page import HttpPage, NotAnArray, split_array, split_arriving, split_column
from tidemark.spark.readers.port import DataLoss, Position


def test_json_is_a_row_for_each_message(spark: Any, server: ThreadedServer, world: World, name: str) -> None:
    filled(world, name, b'[{"a": 1.0}, "two"]', b"3", content_type=JSON)
    frame = spark.read.format("tidemark").options(url=server.url, subscribe=name).load()
    assert [value for _, _, value in rows(frame)] == [b'{"a": 1.0}', b'"two"', b"3"]
    found = frame.orderBy("position").collect()
    assert [(row.offset, row.end_offset, row.position) for row in found] == [
        ("-1", "0000000000000019", position) for position in range(3)
    ]
    assert found[0].content_type == "application/json"


CHANGES = b"""[{"type":"user","key":"1","headers":{"operation":"insert", "n": 1.0}}, {"key":2,"headers":null},
    {"type":null,"key":[1.0]}, ["key"], "key", {"value":{"key":"x"}}, {"key":"\\u00fc\\n","headers":"h"}]"""


def test_members_of_json_messages_are_columns_where_they_are_asked_for(
    server: ThreadedServer, world: World, name: str
) -> None:
    """Texts as they are, all else as JSON; over both transports, and null where a stream is not JSON."""
    filled(world, name, CHANGES, content_type=JSON)
    filled(world, f"{name}-bytes", b'{"key":"k"}')
    none = (None, None, None)
    expected = [
        ("user", "1", '{"operation":"insert", "n": 1.0}'),
        (None, "2", None),
        (None, "[1.0]", None),
        *[none] * 3,
        (None, "ü\n", "h"),
        none,
    ]
    columns = "headers,type,key"
    for origin in ({"url": server.url}, table_options(world)):
        given = origin | {"subscribe": f"{name},{name}-bytes", "columns": columns}
        options = parse_read_options(given, streaming=False)
        reader, parts = plan_here(options)
        batches = [batch for part in parts for batch in reader.read(part, options.columns)]
        assert [",".join(batch.schema.names) for batch in batches] == [columns] * 2
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["type"], row["key"], row["headers"]) for row in found] == expected


def test_bytes_are_rows_of_pages(server: ThreadedServer, world: World, name: str) -> None:
    body = bytes(index * 7 % 256 for index in range(3_000_000))
    filled(world, name, body, body, b"end")
    found = read_here({"url": server.url}, subscribe=name)
    assert b"".join(value for _, _, value in found) == body + body + b"end"
    assert [row[:2] for row in found[:1]] == [("-1", "0000000003000000")]
    assert max(len(value) for _, _, value in found) <= 1024 * 1024


@pytest.mark.parametrize(
    ("content_type", "bodies"), [(JSON, (b"[1,22]", b"3", b"[4,5]")), (BYTES, (b"ab", b"c", b"de"))]
)
def test_a_read_ends_at_its_pinned_end(
    server: ThreadedServer, world: World, name: str, content_type: Any, bodies: tuple[bytes, ...]
) -> None:
    """The page runs on beyond it, because more was written since."""
    filled(world, name, *bodies, content_type=content_type)
    options = parse_read_options({"url": server.url, "subscribe": name}, streaming=False)
    reader, parts = plan_here(options)
    pinned = [row for part in parts for row in rows_of(reader, part)]
    world.process().append(key(name), b"999", content_type=content_type)
    again = [row for part in parts for row in rows_of(reader, part)]
    assert again == pinned
    assert len(read_here({"url": server.url}, subscribe=name)) >= len(pinned)


@pytest.mark.parametrize("is_json", [True, False])
def test_a_foreign_server_is_cut_at_the_pinned_end_too(is_json: bool) -> None:
    with OpaqueServer(is_json=is_json) as foreign:
        foreign.append(b"1")
        foreign.append(b"1")
        options = parse_read_options({"url": foreign.url, "subscribe": "s"}, streaming=False)
        reader, parts = plan_here(options)
        foreign.append(b"1")
        foreign.append(b"2")
        found = [value for part in parts for _, _, value in rows_of(reader, part)]
        assert found == ([b"1", b"1"] if is_json else [b"11"])


def test_an_offset_that_retention_removed_is_data_loss_or_is_skipped() -> None:
    with OpaqueServer(is_json=True) as foreign:
        for body in (b"1", b"2", b"3"):
            foreign.append(body)
        loud = parse_read_options({"url": foreign.url, "subscribe": "s"}, streaming=False)
        quiet = parse_read_options(
            {"url": foreign.url, "subscribe": "s", "failOnDataLoss": "false"}, streaming=False
        )
        (reader, (part,)), (_, (lenient,)) = plan_here(loud), plan_here(quiet)
        foreign.retain_from(2)
        with pytest.raises(DataLoss, match="410"):
            rows_of(reader, part)
        assert [value for _, _, value in rows_of(reader, lenient)] == [b"3"]
        # Planned afterwards, `earliest` is what is retained.
        assert [value for _, _, value in read_here({"url": foreign.url}, subscribe="s")] == [b"3"]


@pytest.mark.parametrize("timed", [{}, {"includeTimestamps": "true"}])
def test_a_beginning_that_retention_removed_is_data_loss_or_is_skipped(
    server: ThreadedServer, world: World, name: str, timed: dict[str, str]
) -> None:
    """Our server reads on from the earliest that is retained, and says where that is."""
    filled(world, name, b"[1,22]", b"333", content_type=JSON)
    asked = timed | {"url": server.url, "subscribe": name}
    loud = parse_read_options(asked, streaming=False)
    quiet = parse_read_options(asked | {"failOnDataLoss": "false"}, streaming=False)
    (reader, (part,)), (_, (lenient,)) = plan_here(loud), plan_here(quiet)
    assert trim_below(world.process().stores, key(name), 2)
    with pytest.raises(DataLoss, match="it begins at 0000000000000002 now"):
        list(reader.read(part, loud.columns))
    found = [row for batch in reader.read(lenient, quiet.columns) for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in found] == [
        ("0000000000000002", b"22"),
        ("0000000000000002", b"333"),
    ]


def positions(url: str) -> dict[str, Position]:
    """Where the stream stands, as a streaming query would keep it."""
    heads = Driver(parse_read_options({"url": url, "subscribe": "s"}, streaming=True)).look().heads
    return {name: head.tail for name, head in heads.items()}


def parts_between(url: str, starts: Positions, **options: str) -> list[bytes]:
    """What a query that has read to `starts` reads next."""
    parsed = parse_read_options({"url": url, "subscribe": "s"} | options, streaming=True)
    driver = Driver(parsed)
    parts = plan_partitions(parsed, driver.reader, starts, {"s": driver.look().heads["s"].tail})
    return [value for part in parts for _, _, value in rows_of(driver.reader, part)]


@pytest.mark.parametrize("incarnation", ["", "some-id"])
@pytest.mark.parametrize("bodies", [[b"4"], [b"4", b"5"], [b"4", b"5", b"6"]])
def test_a_stream_that_was_created_again_is_told_apart_as_far_as_the_server_tells(
    incarnation: str, bodies: list[bytes]
) -> None:
    """By the entity tag, however long the new stream is; without one, where it is shorter than
    what was read of the old one."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = incarnation
        foreign.append(b"1")
        foreign.append(b"2")
        taken = positions(foreign.url)
        assert taken["s"].incarnation == incarnation
        assert parts_between(foreign.url, taken) == []
        foreign.create_again()
        for body in bodies:
            foreign.append(body)
        if not incarnation and len(bodies) >= 2:
            # What cannot be told is not made up either: offsets alone say that this is new.
            assert parts_between(foreign.url, taken) == bodies[2:]
            return
        with pytest.raises(DataLoss, match="deleted and created again"):
            parts_between(foreign.url, taken)
        assert parts_between(foreign.url, taken, failOnDataLoss="false") == bodies


def test_a_stream_that_is_created_again_while_it_is_read_is_not_taken_for_the_old_one() -> None:
    """Between planning and reading; a task sees it by the page's entity tag."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = "some-id"
        foreign.append(b"1")
        given = {"url": foreign.url, "subscribe": "s"}
        reader, (part,) = plan_here(parse_read_options(given, streaming=False))
        _, (lenient,) = plan_here(parse_read_options(given | {"failOnDataLoss": "false"}, streaming=False))
        foreign.create_again()
        foreign.append(b"2")
        with pytest.raises(DataLoss, match="deleted and created again"):
            rows_of(reader, part)
        assert rows_of(reader, lenient) == []


def test_this_server_tells_incarnations_apart(server: ThreadedServer, world: World, name: str) -> None:
    """And says the same of one however much is appended to it, closed or not."""
    reader = connect(parse_read_options({"url": server.url, "subscribe": name}, streaming=False).connection)
    filled(world, name, b"old")
    process = world.process()
    old = reader.head(name)
    process.append(key(name), b"more", close=True)
    assert reader.head(name).tail.incarnation == old.tail.incarnation != ""
    delete(process.stores, key(name))
    filled(world, name, b"a new one")
    assert reader.head(name).tail.is_of_another(old.tail)


@pytest.mark.parametrize(
    ("etag", "incarnation"),
    [
        ('"i:0:7"', "i"),
        ('"i:0:7:c"', "i"),
        ('W/"a:b:0:7"', "a:b"),
        ('"i:0:8"', ""),
        ('"7"', ""),
        ('":0:7"', ""),
        ("", ""),
        ("i:0:7", ""),
    ],
)
def test_an_incarnation_is_read_from_a_tag_of_the_protocols_form_alone(etag: str, incarnation: str) -> None:
    assert incarnation_in(etag, "7") == incarnation


def test_a_limit_over_http_ends_where_a_page_does(server: ThreadedServer, world: World, name: str) -> None:
    """A page has at most 4 MB; at least one is taken. A foreign server's may have everything."""
    filled(world, name, *[bytes(3 * 1024 * 1024)] * 3)
    reader = connect(parse_read_options({"url": server.url, "subscribe": name}, streaming=True).connection)
    head = reader.head(name)
    assert reader.backlog(head.earliest, head.tail) == 9 * 1024 * 1024
    reached = [head.earliest]
    while reached[-1].offset != head.tail.offset:
        reached.append(reader.limit(name, reached[-1], head.tail, 4 * 1024 * 1024))
    assert [position.offset for position in reached[1:]] == [f"{count * 3145728:016}" for count in (1, 2, 3)]
    assert reader.limit(name, head.earliest, head.tail, 7 * 1024 * 1024).offset == f"{2 * 3145728:016}"
    with OpaqueServer(is_json=False) as foreign:
        for body in (b"one", b"two"):
            foreign.append(body)
        options = parse_read_options({"url": foreign.url, "subscribe": "s"}, streaming=True)
        head = connect(options.connection).head("s")
        assert connect(options.connection).limit("s", head.earliest, head.tail, 1) == head.tail


def test_a_limit_of_messages_over_http_ends_where_a_page_does(
    server: ThreadedServer, world: World, name: str
) -> None:
    """Pages end before 4 MB: each has two of these three appends of two messages."""
    large = b'["%s",1]' % (b"x" * 1_900_000)
    filled(world, name, large, large, large, content_type=JSON)
    options = parse_read_options({"url": server.url, "subscribe": name}, streaming=True)
    reader = connect(options.connection)
    head = reader.head(name)
    first = reader.limit_messages(name, head.earliest, head.tail, 5)
    assert 0 < int(first.offset) < int(head.tail.offset)
    assert reader.limit_messages(name, head.earliest, head.tail, 1) == first
    assert reader.limit_messages(name, head.earliest, head.tail, 6) == head.tail
    assert reader.limit_messages(name, first, head.tail, 1) == head.tail


def test_a_read_over_http_begins_and_ends_by_time(server: ThreadedServer, world: World, name: str) -> None:
    """The server finds the offset; one of another make cannot."""
    stream, began = f"{name}/a b", world.clock.now_ms
    filled(world, stream, b"[0]", content_type=JSON)
    for number in range(1, 5):
        world.clock.advance(1000)
        world.process().append(key(stream), b"[%d]" % number, content_type=JSON)
    for first, last in ((0, 9), (2, 4), (3, 3), (9, 9)):
        between = {
            "startingTimestamp": str(began + 1000 * first),
            "endingTimestamp": str(began + 1000 * last),
        }
        found = read_here({"url": server.url}, subscribe=stream, **between)
        assert [value for _, _, value in found] == [b"%d" % number for number in range(first, min(last, 5))]
    with OpaqueServer(is_json=True) as other:
        other.append(b"1")
        with pytest.raises(InvalidOptions, match="startingTimestamp: s: this server finds no offset"):
            read_here({"url": other.url}, subscribe="s", startingTimestamp="1")


def test_a_closed_stream_is_known_as_such_and_is_not_asked_for_again(
    server: ThreadedServer, world: World
) -> None:
    """Over both transports: that it is closed, also by a request without data, and when it was created. Until
    it is created again, nothing but the listing is asked for it."""
    process = world.process()
    bucket, stream = key_in_new_bucket(process, "a").bucket, "a"
    place = StreamKey(bucket, stream)
    for origin in ({"url": server.url}, table_options(world)):
        given = origin | {"bucket": bucket, "subscribePattern": "a.*"}
        options = parse_read_options(given, streaming=True)
        reader = connect(options.connection)
        created_ms = world.clock.now_ms
        process.create(place)
        process.append(place, b"12345")
        head = load_heads(options, reader)[stream]
        assert (head.tail.offset[-1], head.tail.closed, head.created_ms) == ("5", False, created_ms)
        process.append(place, close=True)
        closed = load_heads(options, reader)[stream]
        assert closed == replace(head, tail=replace(head.tail, closed=True))
        assert connect(options.connection).head(stream).tail.closed, "without a listing as well"
        server.seen.clear()
        table = getattr(reader, "_table", None)
        counted = [] if table is None else count_queries(table)
        assert load_heads(options, reader)[stream] == closed
        asked = [path for method, path in server.seen if method == "HEAD"]
        assert asked == []
        assert len(counted) <= 1, "the listing"
        delete(process.stores, place)
        assert load_heads(options, reader) == {}
        world.clock.advance(1000)
        process.create(place)
        again = load_heads(options, reader)[stream]
        assert again.tail.is_of_another(head.tail) or head.tail.is_of_another(again.tail)
        assert (again.tail.closed, again.created_ms) == (False, created_ms + 1000)
        delete(process.stores, place)
        world.clock.advance(1000)


@pytest.mark.parametrize("transport", ["http", "dynamodb"])
def test_a_look_has_the_time_of_the_server_and_not_of_the_driver(
    server: ThreadedServer, world: World, name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a server an hour behind: by its own clock the driver would forget streams that are new."""
    filled(world, name, b"1")
    behind, ask = 3600, urllib3.PoolManager.request

    def dated(*given: Any, **more: Any) -> Any:
        answer = ask(*given, **more)
        answer.headers["Date"] = formatdate(time.time() - behind, usegmt=True)
        return answer

    monkeypatch.setattr(urllib3.PoolManager, "request", dated)
    monkeypatch.setattr(CLOCK, "ahead_seconds", float(behind))
    monkeypatch.setattr(CLOCK, "_next_look", float("inf"))
    origin = {"url": server.url} if transport == "http" else table_options(world)
    began = time.time()
    look = Driver(parse_read_options(origin | {"subscribe": name}, streaming=True)).look()
    assert began - 60 < look.at_ms / 1000 + behind <= time.time()


def test_a_server_without_a_date_is_of_an_unknown_time() -> None:
    client = HttpClient(None, retry_seconds=0)
    client._note_date("")
    assert client.now_ms() == 0


def count_queries(table: Any) -> list[str]:
    """What is asked of the table from now on."""
    asked: list[str] = []
    call = table.dynamodb.call

    def counting(operation: str, arguments: dict[str, Any]) -> Any:
        asked.append(operation)
        return call(operation, arguments)

    table.dynamodb.call = counting
    return asked


def test_streams_of_a_bucket_by_pattern() -> None:
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        found = read_here({"url": foreign.url, "bucket": "some-bucket"}, subscribePattern="s.*")
        assert [value for _, _, value in found] == [b"1"]


def test_a_missing_stream_and_an_invalid_offset_are_refused(
    server: ThreadedServer, world: World, name: str
) -> None:
    with pytest.raises(InvalidOptions, match=f"no such stream in v1: {name}"):
        read_here({"url": server.url}, subscribe=name)
    filled(world, name, b"[1,2]", content_type=JSON)
    with pytest.raises(InvalidOptions, match="the server refuses offset '0000000000000001'"):
        read_here({"url": server.url}, subscribe=name, startingOffsets=f'{{"{name}":"0000000000000001"}}')


def test_a_request_is_retried_when_the_server_is_busy(
    server: ThreadedServer, world: World, name: str, spoiling: Callable[..., Any]
) -> None:
    filled(world, name, b"[1,2]", content_type=JSON)
    spoiling(lambda method, path, _: "before" if name in path else None, times=4)
    assert [value for _, _, value in read_here({"url": server.url}, subscribe=name)] == [b"1", b"2"]


def test_streaming_over_http(
    spark: Any, server: ThreadedServer, world: World, name: str, tmp_path: Any
) -> None:
    filled(world, name, b"[1,2]", content_type=JSON)

    def run() -> None:
        source = spark.readStream.format("tidemark").options(url=server.url, subscribe=name).load()
        query = (
            source.select("value")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(900)

    started(run)
    world.process().append(key(name), b"[3]", content_type=JSON)
    started(run)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(bytes(row.value) for row in found) == [b"1", b"2", b"3"]


ARRAYS = [
    b"[]",
    b"[1]",
    b'[{"a":1},{"b":[{},{}]}]',
    b'[ {"a":"},{"} , "x,y",\n[1,[2,3]] ,null]',
    b'["\\"},{", {"k":"\\\\"}]',
    b"[" + b",".join([b'{"n":[[1,2],[3,{"d":",,,"}]]}'] * 50) + b"]",
]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("piece", [3, 16, 64])
def test_an_array_arriving_in_chunks_is_split_as_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, array: bytes, chunk: int, piece: int
) -> None:
    monkeypatch.setattr(http_page, "PIECE_BYTES", piece)
    chunks = [array[start : start + chunk] for start in range(0, len(array), chunk)]
    assert [each for part in split_arriving(chunks) for each in part.to_pylist()] == split_array(array)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("length", "size", "sizes"), [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (10, 4, [4, 4, 2]), (9, 100, [9])]
)
def test_a_page_comes_in_chunks_of_a_size(length: int, size: int, sizes: list[int], told: bool) -> None:
    """Also where the server does not tell its length; a page that is shorter comes as one."""
    headers = {"Content-Length": str(length)} if told else {}
    response = urllib3.HTTPResponse(io.BytesIO(b"x" * length), headers, preload_content=False)
    page = HttpPage("0", "1", "", True, False, response)
    assert list(map(len, page.chunks(size))) == sizes


@pytest.mark.parametrize("separator", [b",", b" ,", b",\n", b" , "])
@pytest.mark.parametrize(
    "elements", [[], [b"1"], [b"1", b'"a,b"', b"[2,3]", b"{}", b'""'], [b"12", b"345"] * 9]
)
def test_a_column_of_elements_has_the_same_as_a_list(elements: list[bytes], separator: bytes) -> None:
    """Also with blanks in one place alone, so that one element is moved against the others."""
    plain, spread = b"[%s]" % b",".join(elements), b"[%s]" % separator.join(elements)
    for body in (plain, spread, b" " + plain, plain + b"\n", b"[ %s]" % plain[1:-1]):
        column = split_column(body)
        column.validate(full=True)
        assert column.to_pylist() == elements == split_array(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1", b"[1,]", b"[1]x", b"[1 2]", b'[{"a"}]'])
def test_a_body_that_is_not_a_json_array_is_refused(body: bytes) -> None:
    with pytest.raises(NotAnArray):
        split_array(body)
    with pytest.raises(NotAnArray):
        split_column(body)
