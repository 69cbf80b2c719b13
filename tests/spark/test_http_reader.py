"""The reader over HTTP, against this server and against one whose offsets mean nothing to us."""

import io
import time
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import urllib3

from tests.buckets import key_in_new_bucket
from tests.spark.opaque import OpaqueServer
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Streams, plan_here, read_here, rows_of, table_of, table_options, values_of
from tests.support import BYTES, JSON, World, before
from tidemark.aws.clock import CLOCK
from tidemark.log.schema import batch_key, log_pk
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.delete import delete
from tidemark.service.retention import trim_below
from tidemark.spark.http_client import HttpClient
from tidemark.spark.options import ConnectionOptions, InvalidOptions
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.progress import Positions
from tidemark.spark.queries import Driver, load_heads, plan_partitions
from tidemark.spark.readers import connect, http_page
from tidemark.spark.readers.columns import json_arrays
from tidemark.spark.readers.port import DataLoss, Position, Reader


def of_foreign(foreign: OpaqueServer) -> dict[str, str]:
    return {"url": foreign.url, "subscribe": "s"}


def reader_of(given: dict[str, str]) -> Reader:
    return connect(parse_read_options(given, streaming=True).connection)


@pytest.mark.parametrize("length", [True, False])
def test_json_of_another_server_is_rows_with_the_offsets_of_their_page(*, length: bool) -> None:
    """Also beside a proxy that removes the length."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.has_length = length
        for body in (b'{"a": 1.0}', b'"two"', b"3"):
            foreign.append(body)
        columns = "bucket,stream,value,offset,end_offset,position,content_type"
        found = [tuple(row.values()) for row in table_of(*plan_here(of_foreign(foreign)), columns)]
        assert found == [
            ("v1", "s", value, "-1", foreign.tail, position, "application/json")
            for position, value in enumerate([b'{"a": 1.0}', b'"two"', b"3"])
        ]


def test_a_page_without_its_length_has_the_places_of_its_messages() -> None:
    """A proxy has removed Content-Length."""
    for body, size in ((FIRST, len(FIRST) - 1), (b"abc", 3)):
        page = http_page.HttpPage.of(partial(broken, body, None, length=False), f"{0:016}")
        page = replace(page, end=f"{size:016}")
        assert not page.has_every_byte
        assert page.sized().has_every_byte
        page = http_page.HttpPage.of(partial(broken, body, None, length=False), f"{0:016}")
        assert b"".join(page.sized().chunks()) == body


CHANGES = b"""[{"type":"user","key":"1","headers":{"operation":"insert", "n": 1.0}}, {"key":2,"headers":null},
    {"type":null,"key":[1.0]}, ["key"], "key", {"value":{"key":"x"}}, {"key":"\\u00fc\\n","headers":"h"}]"""


def test_members_are_the_same_whatever_messages_are_decoded_with_them() -> None:
    """A batch of texts alone is decoded at once."""
    values = [
        b'{"type":"user","key":"a,\\u00fc","headers":{"n": 1.0}}',
        b'{"key":null}',
        b'{"x":[{"key":"y"}]}',
    ]
    columns = ("type", "key", "headers")
    alone, beside = json_arrays(columns, values), json_arrays(columns, [*values, b'{"key":1}', b'"key"'])
    assert alone["key"].to_pylist() == ["a,ü", None, None]
    for name in columns:
        assert beside[name].to_pylist()[:3] == alone[name].to_pylist()


def test_members_of_json_messages_are_columns_where_they_are_asked_for(streams: Streams) -> None:
    """Texts as they are, all else as JSON; over both transports, and null where a stream is not JSON."""
    streams.fill(CHANGES, content_type=JSON)
    streams.fill(b'{"key":"k"}', suffix="-bytes")
    none = (None, None, None)
    expected = [
        ('{"operation":"insert", "n": 1.0}', "user", "1"),
        (None, None, "2"),
        (None, None, "[1.0]"),
        *[none] * 3,
        ("h", None, "ü\n"),
        none,
    ]
    both = {"subscribe": f"{streams.name},{streams.name}-bytes"}
    for given in (streams.by_http(**both), streams.by_table(**both)):
        rows = table_of(*plan_here(given, columns="headers,type,key"), "headers,type,key")
        assert [tuple(row.values()) for row in rows] == expected


def test_bytes_are_rows_of_pages(streams: Streams) -> None:
    body = bytes(index * 7 % 256 for index in range(3_000_000))
    streams.fill(body, body, b"end")
    found = read_here(streams.by_http())
    assert b"".join(value for _, _, value in found) == body + body + b"end"
    assert [row[0] for row in found[1:]] == [row[1] for row in found[:-1]]
    assert (int(found[0][0]), int(found[-1][1])) == (0, 6_000_003)
    assert all(int(end) - int(begin) == len(value) for begin, end, value in found)
    assert max(len(value) for _, _, value in found) <= 1024 * 1024


@pytest.mark.parametrize(
    ("content_type", "bodies"), [(JSON, (b"[1,22]", b"3", b"[4,5]")), (BYTES, (b"ab", b"c", b"de"))]
)
def test_a_read_ends_at_a_pinned_end(streams: Streams, content_type: Any, bodies: tuple[bytes, ...]) -> None:
    """The page runs on beyond it, because more was written since; also of a foreign server."""
    streams.fill(*bodies, content_type=content_type)
    reader, parts = plan_here(streams.by_http())
    pinned = rows_of(reader, parts)
    streams.append(b"999")
    assert rows_of(reader, parts) == pinned
    assert b"999" in b"".join(values_of(*plan_here(streams.by_http())))
    with OpaqueServer(is_json=content_type is JSON) as foreign:
        foreign.append(b"1")
        foreign.append(b"1")
        reader, parts = plan_here(of_foreign(foreign))
        foreign.append(b"1")
        foreign.append(b"2")
        assert values_of(reader, parts) == ([b"1", b"1"] if content_type is JSON else [b"11"])


def test_an_offset_that_retention_removed_is_data_loss_or_is_skipped() -> None:
    with OpaqueServer(is_json=True) as foreign:
        for body in (b"1", b"2", b"3"):
            foreign.append(body)
        reader, (part,) = plan_here(of_foreign(foreign))
        foreign.retain_from(2)
        with pytest.raises(DataLoss, match="410"):
            rows_of(reader, [part])
        assert values_of(reader, [replace(part, fail_on_data_loss=False)]) == [b"3"]
        # Planned afterwards, `earliest` is what is retained.
        assert values_of(*plan_here(of_foreign(foreign))) == [b"3"]


@pytest.mark.parametrize("is_json", [True, False])
@pytest.mark.parametrize("retained", [2, 3])
def test_nothing_is_read_where_retention_has_passed_the_pinned_end(*, is_json: bool, retained: int) -> None:
    """What lies behind belongs to the next batch: of a stream that was planned, and of one that is new."""
    with OpaqueServer(is_json=is_json) as foreign:
        foreign.append(b"1")
        foreign.append(b"2")
        reader, (part,) = plan_here(of_foreign(foreign))
        foreign.append(b"345")
        foreign.append(b"6")
        foreign.retain_from(retained)
        assert values_of(reader, [replace(part, fail_on_data_loss=False)]) == []
        options = parse_read_options(of_foreign(foreign), streaming=True)
        assert values_of(reader, plan_partitions(options, reader, {}, {"s": Position(part.end)})) == []


@pytest.mark.parametrize("timed", [{}, {"includeTimestamps": "true"}])
def test_a_removed_beginning_is_data_loss_or_is_skipped(streams: Streams, timed: dict[str, str]) -> None:
    """Our server reads on from the earliest that is retained, and says where that is."""
    streams.fill(b"[1,22]", b"333", content_type=JSON)
    reader, (part,) = plan_here(streams.by_http(**timed))
    assert trim_below(streams.process.stores, streams.key(), 2)
    with pytest.raises(DataLoss, match="it begins at 0000000000000002 now"):
        rows_of(reader, [part])
    found = rows_of(reader, [replace(part, fail_on_data_loss=False)])
    assert [(offset, value) for offset, _, value in found] == [
        ("0000000000000002", b"22"),
        ("0000000000000005", b"333"),
    ]


def read_on(given: dict[str, str], starts: Positions, **options: str) -> tuple[Positions, list[bytes]]:
    """What a query that has read to `starts` reads next, and to where."""
    parsed = parse_read_options(given | options, streaming=True)
    driver = Driver(parsed)
    ends = {name: head.tail for name, head in driver.look().heads.items()}
    return ends, values_of(driver.reader, plan_partitions(parsed, driver.reader, starts, ends))


@pytest.mark.parametrize(
    ("incarnation", "bodies"), [("some-id", [b"4"]), ("some-id", [b"4", b"5", b"6"]), ("", [b"4"])]
)
def test_a_stream_created_again_is_told_apart_if_possible(incarnation: str, bodies: list[bytes]) -> None:
    """By the entity tag, however long the new stream is; without one, where it is shorter than
    what was read of the old one."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = incarnation
        foreign.append(b"1")
        foreign.append(b"2")
        taken, _ = read_on(of_foreign(foreign), {})
        assert taken["s"].incarnation == incarnation
        assert read_on(of_foreign(foreign), taken) == (taken, [])
        foreign.create_again()
        for body in bodies:
            foreign.append(body)
        with pytest.raises(DataLoss, match="deleted and created again"):
            read_on(of_foreign(foreign), taken)
        assert read_on(of_foreign(foreign), taken, failOnDataLoss="false")[1] == bodies
        if not incarnation:
            # What cannot be told is not made up either: by offsets alone, a longer one goes on.
            foreign.append(b"5")
            foreign.append(b"6")
            assert read_on(of_foreign(foreign), taken)[1] == [b"6"]


def test_a_stream_that_is_created_again_while_it_is_read_is_not_taken_for_the_old_one() -> None:
    """Between planning and reading; a task sees it by the page's entity tag."""
    with OpaqueServer(is_json=True) as foreign:
        foreign.incarnation = "some-id"
        foreign.append(b"1")
        reader, (part,) = plan_here(of_foreign(foreign))
        foreign.create_again()
        foreign.append(b"2")
        with pytest.raises(DataLoss, match="deleted and created again"):
            rows_of(reader, [part])
        assert rows_of(reader, [replace(part, fail_on_data_loss=False)]) == []


def test_an_incarnation_is_read_from_a_tag_of_the_protocols_form_alone() -> None:
    for tag, incarnation in {'"i:0:7"': "i", '"i:0:7:c"': "i", 'W/"a:b:0:7"': "a:b"}.items():
        assert http_page.incarnation_in(tag, "7") == incarnation
    for tag in ('"i:0:8"', '"7"', '":0:7"', '"i:7"', "", "i:0:7"):
        assert http_page.incarnation_in(tag, "7") == "", tag
    ours = f"{7:016}"
    for tag in (f'"i:{ours}"', f'"i:{ours}:c"', f'"i:{0:016}.0a1b2c3d:{ours}"'):
        assert http_page.incarnation_in(tag, ours) == "i", tag


def test_a_look_at_a_stream_that_is_named_is_one_request(streams: Streams) -> None:
    """Whatever came since: nothing, a message, its closure."""
    streams.fill(b"one")
    options = parse_read_options(streams.by_http(), streaming=True)
    over_http, over_table = (
        connect(parse_read_options(given, streaming=True).connection)
        for given in (streams.by_http(), streams.by_table())
    )
    for bodies, close in [((), False), ((b"two",), False), ((b"three",), True)]:
        streams.append(*bodies, close=close)
        streams.server.seen.clear()
        head = load_heads(options, over_http)[streams.name]
        assert [method for method, _ in streams.server.seen] == ["HEAD"]
        assert head.tail == over_table.heads([streams.name])[streams.name].tail


@pytest.mark.usefixtures("small_pages")
def test_a_limit_over_http_ends_where_a_page_does(streams: Streams) -> None:
    """A page has one of these appends; at least one is taken. A foreign server's may have everything."""
    streams.fill(*[bytes(200)] * 3)
    reader = reader_of(streams.by_http())
    head = reader.heads([streams.name])[streams.name]
    assert reader.backlog(head.earliest, head.tail) == 600
    reached = [head.earliest]
    while reached[-1].offset != head.tail.offset:
        reached.append(reader.limit(streams.name, reached[-1], head.tail, 250))
    assert [int(position.offset) for position in reached[1:]] == [200, 400, 600]
    assert int(reader.limit(streams.name, head.earliest, head.tail, 450).offset) == 400
    with OpaqueServer(is_json=False) as foreign:
        for body in (b"one", b"two"):
            foreign.append(body)
        other = reader_of(of_foreign(foreign))
        head = other.heads(["s"])["s"]
        assert other.limit("s", head.earliest, head.tail, 1) == head.tail


def test_a_read_over_http_begins_and_ends_by_time(streams: Streams) -> None:
    """The server finds the offset; one of another make cannot."""
    began, suffix = streams.world.clock.now_ms, "/a b"
    streams.fill(b"[0]", suffix=suffix, content_type=JSON)
    for number in range(1, 5):
        streams.world.clock.advance(1000)
        streams.append(b"[%d]" % number, suffix=suffix)
    for first, last in ((0, 9), (2, 4), (3, 3), (9, 9)):
        found = read_here(
            streams.by_http(subscribe=streams.name + suffix),
            startingTimestamp=str(began + 1000 * first),
            endingTimestamp=str(began + 1000 * last),
        )
        assert [value for _, _, value in found] == [b"%d" % number for number in range(first, min(last, 5))]
    with OpaqueServer(is_json=True) as other:
        other.append(b"1")
        with pytest.raises(InvalidOptions, match="startingTimestamp: s: this server finds no offset"):
            plan_here(of_foreign(other), startingTimestamp="1", retrySeconds="0")


def test_a_closed_stream_is_known_and_is_not_asked_for_again(server: ThreadedServer, world: World) -> None:
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
        assert connect(options.connection).heads([stream])[stream].tail.closed, "without a listing as well"
        server.seen.clear()
        asked: list[str] = []
        if hasattr(reader, "_table"):
            before(reader._table.dynamodb, asked.append)
        assert load_heads(options, reader)[stream] == closed
        assert [path for method, path in server.seen if method == "HEAD"] == []
        assert len(asked) <= 1, "the listing"
        delete(process.stores, place)
        assert load_heads(options, reader) == {}
        world.clock.advance(1000)
        process.create(place)
        again = load_heads(options, reader)[stream]
        assert again.tail.is_of_another(head.tail)
        assert (again.tail.closed, again.created_ms) == (False, created_ms + 1000)
        delete(process.stores, place)
        world.clock.advance(1000)


@pytest.mark.parametrize("transport", ["http", "dynamodb"])
def test_a_look_has_the_time_of_the_server_and_not_of_the_driver(
    streams: Streams, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a server an hour behind: by its own clock the driver would forget streams that are new."""
    streams.fill(b"1")
    behind, ask = 3600, urllib3.PoolManager.request

    def dated(*given: Any, **more: Any) -> Any:
        answer = ask(*given, **more)
        answer.headers["Date"] = formatdate(time.time() - behind, usegmt=True)
        return answer

    monkeypatch.setattr(urllib3.PoolManager, "request", dated)
    monkeypatch.setattr(CLOCK, "ahead_seconds", float(behind))
    monkeypatch.setattr(CLOCK, "_next_look", float("inf"))
    given = streams.by_http() if transport == "http" else streams.by_table()
    began = time.time()
    look = Driver(parse_read_options(given, streaming=True)).look()
    assert began - 60 < look.at_ms / 1000 + behind <= time.time()


def test_a_server_without_a_date_is_of_an_unknown_time() -> None:
    client = HttpClient(ConnectionOptions(retry_seconds=0))
    client._note_date("")
    assert client.now_ms() == 0


def test_streams_of_a_bucket_by_pattern() -> None:
    with OpaqueServer(is_json=True) as foreign:
        foreign.append(b"1")
        given = {"url": foreign.url, "bucket": "some-bucket", "subscribePattern": "s.*"}
        assert values_of(*plan_here(given)) == [b"1"]


def test_a_missing_stream_and_an_invalid_offset_are_refused(streams: Streams) -> None:
    with pytest.raises(InvalidOptions, match=f"no such stream in v1: {streams.name}"):
        plan_here(streams.by_http())
    streams.fill(b"[1,2]", content_type=JSON)
    with pytest.raises(InvalidOptions, match="the server refuses offset '0000000000000001'"):
        plan_here(streams.by_http(), startingOffsets=f'{{"{streams.name}":"0000000000000001"}}')


@pytest.mark.parametrize("bucket", [{}, {"bucket": "some-bucket", "subscribe": "", "subscribePattern": ".*"}])
def test_an_address_of_something_else_is_told(bucket: dict[str, str]) -> None:
    """Such as a web site, which answers every path with its page."""

    async def site(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/html"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with ThreadedServer(site) as server, pytest.raises(InvalidOptions, match="the root of a Durable Streams"):
        plan_here({"url": server.url, "subscribe": "a"} | bucket)


def test_a_request_is_retried_if_the_server_is_busy(streams: Streams, spoiling: Callable[..., None]) -> None:
    streams.fill(b"[1,2]", content_type=JSON)
    spoiling(lambda _method, path, _: "before" if streams.name in path else None, times=4)
    assert values_of(*plan_here(streams.by_http())) == [b"1", b"2"]


ARRAYS = [
    b"[]",
    b"[1]",
    b'[{"a":1},{"b":[{},{}]}]',
    b'[ {"a":"},{"} , "x,y",\n[1,[2,3]] ,null]',
    b'["\\"},{", {"k":"\\\\"}]',
    b"[" + b",".join([b'{"n":[[1,2],[3,{"d":",,,"}]]}'] * 50) + b"]",
    rb'["\ud83d",{"t":"\uDE00,"}, [1]]',
]


@pytest.mark.parametrize("array", ARRAYS)
def test_an_array_in_chunks_is_split_as_a_whole_one(monkeypatch: pytest.MonkeyPatch, array: bytes) -> None:
    for piece in (3, 16, 64):
        monkeypatch.setattr(http_page, "PIECE_BYTES", piece)
        for size in (1, 2, 7, 1000):
            chunks = [array[start : start + size] for start in range(0, len(array), size)]
            found = [each for part in http_page.split_arriving(chunks) for each in part.to_pylist()]
            assert found == http_page.split_array(array), (piece, size)


def test_members_of_a_message_with_half_of_an_emoji_are_read() -> None:
    """JavaScript writes such a text as an escape, the server takes it, and msgspec refuses it."""
    values = [rb'{"key":"a\ud83d"}', rb'{"text":"\ud83d","key":"k","headers":{"h":"\ud83d"}}', rb'["\ud83d"]']
    found = json_arrays(("key", "headers"), values)
    assert found["key"].to_pylist() == ["a\ufffd", "k", None]
    assert found["headers"].to_pylist() == [None, r'{"h":"\ud83d"}', None]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("length", "size", "sizes"), [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (10, 4, [4, 4, 2]), (9, 100, [9])]
)
def test_a_page_comes_in_chunks_of_a_size(length: int, size: int, sizes: list[int], told: bool) -> None:
    """Also where the server does not tell its length; a page that is shorter comes as one."""
    headers = {"Content-Length": str(length)} if told else {}
    response = urllib3.HTTPResponse(io.BytesIO(b"x" * length), headers, preload_content=False)
    page = http_page.HttpPage("0", "1", "", True, False, response, Mock())
    assert list(map(len, page.chunks(size))) == sizes


def broken(body: bytes, breaks: int | None, tag: str = "a", length: bool = True) -> urllib3.HTTPResponse:
    """A page with this body, which breaks off."""
    headers = {"Stream-Next-Offset": f"{len(body):016}", "ETag": f'"{tag}:0:{len(body):016}"'}
    headers |= {"Content-Type": "application/json" if body[:1] == b"[" else "image/png"}
    headers |= {"Content-Length": str(len(body))} if length else {"Transfer-Encoding": "chunked"}
    return urllib3.HTTPResponse(io.BytesIO(body[:breaks]), headers, preload_content=False)


FIRST, GROWN = b'["a","bc",1]', b'["a","bc",1,"later"]'


@pytest.mark.parametrize(("first", "grown"), [(FIRST, FIRST), (FIRST, GROWN), (b"abcdef", b"abcdefgh")])
def test_a_page_that_breaks_off_is_read_again_and_gone_on_with(first: bytes, grown: bytes) -> None:
    """At each byte, twice, in chunks of each size. Messages that followed meanwhile are of the next page."""
    for place in range(1, len(first)):
        for size in (1, 2, 5, 100):
            answers = [broken(first, place), broken(grown, place // 2), broken(grown, None)]
            page = http_page.HttpPage.of(partial(answers.pop, 0), "0")
            assert b"".join(page.chunks(size)) == first


@pytest.mark.parametrize(
    "again",
    [(b'["A","bc",1]', None), (FIRST, None, "b"), (FIRST, 5), (b'["a"]', None), (b'["a","bc"]', None)],
)
def test_a_page_that_broke_off_and_changed_is_not_gone_on_with(again: Any) -> None:
    """Another message, another stream, a break at the same place each time, and pages that are shorter."""
    answers = iter([broken(FIRST, 7)])
    page = http_page.HttpPage.of(lambda: next(answers, None) or broken(*again), "0")
    with pytest.raises(urllib3.exceptions.HTTPError):
        list(page.chunks(1))


@pytest.mark.parametrize(
    "elements",
    [[], [b"1"], [b"1", b'"a,b"', b"[2,3]", b"{}", b'""'], [b"12", b"345"] * 9, [rb'"\ud83d"', b"2"]],
)
def test_a_column_of_elements_has_the_same_as_a_list(elements: list[bytes]) -> None:
    """Also with blanks in one place alone, so that one element is moved against the others."""
    plain = b"[%s]" % b",".join(elements)
    spread = [b"[%s]" % separator.join(elements) for separator in (b" ,", b",\n", b" , ")]
    for body in (plain, *spread, b" " + plain, plain + b"\n", b"[ %s]" % plain[1:-1]):
        column = http_page.split_column(body)
        column.validate(full=True)
        assert column.to_pylist() == elements == http_page.split_array(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1", b"[1,]", b"[1]x", b"[1 2]", b'[{"a"}]', rb'["\ud83d"'])
def test_a_body_that_is_not_a_json_array_is_refused(body: bytes) -> None:
    for split in (http_page.split_array, http_page.split_column):
        with pytest.raises(http_page.NotAnArray):
            split(body)


def test_plain_streams_are_listed_too(streams: Streams) -> None:
    streams.fill(b"a", suffix="-a")
    given = streams.by_http(subscribePattern=f"{streams.name}-.")
    assert [row[2] for row in read_here(given)] == [b"a"]
    with pytest.raises(InvalidOptions, match="without a list of streams"):
        read_here(given | {"streamPath": "/nowhere/stream"})


@pytest.mark.parametrize("by", ["http", "table"])
@pytest.mark.parametrize("edge", [(3, 9), (6, 9), (6, 6), (9, 9), (3, 3)])
def test_a_reader_counts_the_bytes_that_it_passes_over(
    streams: Streams, by: str, edge: tuple[int, int]
) -> None:
    """Before the first retained message, up to the end of the read; and all of a stream that is gone."""
    retained, end = edge
    streams.fill(*[b"%d" % number for number in range(10, 16)], content_type=JSON)
    given = streams.by_http() if by == "http" else streams.by_table()
    ending = f'{{"{streams.name}": "{end:016}"}}'
    reader, (part,) = plan_here(given, endingOffsets=ending, failOnDataLoss="false")
    stores = streams.process.stores
    assert trim_below(stores, streams.key(), retained)
    for place in range(0, retained, 3):
        stores.table.delete(batch_key(log_pk(streams.key(), part.incarnation), place))
    assert len(values_of(reader, [part])) == (end - retained) // 3
    assert reader.lost == {(streams.name, part.incarnation): retained}
    streams.delete()
    if by == "http":
        assert values_of(reader, [part]) == []
        assert reader.lost == {(streams.name, part.incarnation): retained + end}
