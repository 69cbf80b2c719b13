"""Bad input gets 4xx and `{"error": …}`, and the stream stays byte for byte as it was.

The client checks the form of every error (`asgi.check_any_answer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.http.asgi import Answer, Door
from tidemark.http.requests import MAX_BODY_BYTES
from tidemark.protocol.messages import MAX_MESSAGES

JSON: Final = {"Content-Type": "application/json"}
PRODUCER: Final = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "0"}
NEXT: Final = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "1", "Stream-Seq": "6"}
TOO_BIG: Final = 2**53
READS: Final = {
    "GetItem",
    "Query",
    "GetObject",
}


@dataclass(frozen=True)
class Case:
    """`query` is appended to the stream's path."""

    id: str
    method: str = "POST"
    headers: dict[str, str] | list[tuple[str, str]] = field(default_factory=dict)
    body: bytes = b'{"c":3}'
    query: str = ""
    status: int = 400


def cases(*given: Case) -> list[object]:
    return [pytest.param(case, id=case.id) for case in given]


@pytest.fixture
def stream(door: Door, path: str) -> Iterator[str]:
    """A JSON stream with a producer and a Stream-Seq. Afterwards the next values of both must still be
    accepted."""
    assert door.put(path, JSON, b'[{"a":1}]').status == 201
    assert door.post(path, JSON | PRODUCER | {"Stream-Seq": "5"}, b'{"b":2}').status == 200
    yield path
    assert door.post(path, JSON | NEXT, b'{"c":3}').status == 200


def everything(door: Door, path: str) -> tuple[Answer, Answer]:
    return door.get(path), door.head(path)


def check_refused(door: Door, path: str, case: Case) -> Answer:
    before = everything(door, path)
    door.process.calls.taken()
    answer = door(case.method, path + case.query, case.headers, case.body)
    calls = door.process.calls.taken()
    assert answer.status == case.status, answer
    assert calls.keys() <= READS, "nothing is written, not even for a moment"
    assert everything(door, path) == before
    return answer


# --- appends ------------------------------------------------------------------------


def producer(**changes: str | None) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in (JSON | NEXT | named).items() if value is not None}


#: Every form of a wrong integer is in `protocol/test_header_values.py`; these show which headers are checked.
NOT_INTEGERS = {"empty": "", "two": "1, 1", "too large": str(TOO_BIG)}

APPENDS = cases(
    Case("no body", headers=JSON, body=b""),
    Case("no body, not closing", headers=JSON | {"Stream-Closed": "false"}, body=b""),
    Case("no body and no type", body=b""),
    Case("no type"),
    Case("empty type", headers={"Content-Type": ""}),
    Case("type without subtype", headers={"Content-Type": "json"}),
    Case("two types", headers={"Content-Type": "application/json, application/json"}),
    Case("type twice", headers=[("Content-Type", "application/json"), ("Content-Type", "application/json")]),
    Case("another type", headers={"Content-Type": "text/plain"}, status=409),
    Case("the type's sibling", headers={"Content-Type": "application/ndjson"}, status=409),
    Case("only Producer-Id", headers=producer(Producer_Epoch=None, Producer_Seq=None)),
    Case("only Producer-Epoch", headers=producer(Producer_Id=None, Producer_Seq=None)),
    Case("only Producer-Seq", headers=producer(Producer_Id=None, Producer_Epoch=None)),
    Case("no Producer-Id", headers=producer(Producer_Id=None)),
    Case("no Producer-Epoch", headers=producer(Producer_Epoch=None)),
    Case("no Producer-Seq", headers=producer(Producer_Seq=None)),
    Case("no Producer-Seq, closing", headers=producer(Producer_Seq=None, Stream_Closed="true"), body=b""),
    Case("empty Producer-Id", headers=producer(Producer_Id="")),
    Case("long Producer-Id", headers=producer(Producer_Id="p" * 257)),
    Case("Producer-Id in Latin-1", headers=producer(Producer_Id="\xe9")),
    *(
        Case(f"Producer-Epoch: {name}", headers=producer(Producer_Epoch=value))
        for name, value in NOT_INTEGERS.items()
    ),
    *(
        Case(f"Producer-Seq: {name}", headers=producer(Producer_Seq=value))
        for name, value in NOT_INTEGERS.items()
    ),
    Case("Producer-Seq twice", headers=[*producer().items(), ("Producer-Seq", "1")]),
    Case("stale epoch", headers=producer(Producer_Epoch="0"), status=403),
    Case("new epoch, not from 0", headers=producer(Producer_Epoch="2")),
    Case("gap", headers=producer(Producer_Seq="2"), status=409),
    Case("largest gap", headers=producer(Producer_Seq=str(TOO_BIG - 1)), status=409),
    Case("unknown producer, not from 0", headers=producer(Producer_Id="q"), status=409),
    Case("empty Stream-Seq", headers=JSON | {"Stream-Seq": ""}),
    Case("long Stream-Seq", headers=JSON | {"Stream-Seq": "9" * 257}),
    Case("Stream-Seq in Latin-1", headers=JSON | {"Stream-Seq": "\xff"}),
    Case("Stream-Seq repeated", headers=JSON | {"Stream-Seq": "5"}, status=409),
    Case("Stream-Seq going back", headers=JSON | {"Stream-Seq": "10"}, status=409),
    Case(
        "Stream-Seq going back, closing",
        headers={"Stream-Seq": "5", "Stream-Closed": "true"},
        body=b"",
        status=409,
    ),
    Case("Stream-Seq going back, producer going on", headers=producer(Stream_Seq="5"), status=409),
)


@pytest.mark.parametrize("case", APPENDS)
def test_a_bad_append_is_refused_and_changes_nothing(door: Door, stream: str, case: Case) -> None:
    check_refused(door, stream, case)


#: Every form of invalid JSON is in `protocol/test_messages.py`.
INVALID_JSON = {
    "empty array": b"[]",
    "cut short": b'{"a":',
    "one good, one bad": b'[{"a":1},{b:2}]',
    "half a character": b'"\xe2\x82"',
    "deep and unclosed": b"[" * 100_000,
}


@pytest.mark.parametrize("body", INVALID_JSON.values(), ids=INVALID_JSON.keys())
def test_invalid_json_is_refused_before_the_producer_advances(door: Door, stream: str, body: bytes) -> None:
    """The refused request neither advances the producer nor closes the stream."""
    for headers in (JSON, JSON | NEXT, JSON | {"Stream-Closed": "true"}):
        check_refused(door, stream, Case("", headers=headers, body=body))


# --- creation -----------------------------------------------------------------------

CREATIONS = cases(
    Case("type without subtype", headers={"Content-Type": "json"}),
    Case("two types", headers={"Content-Type": "text/plain, text/plain"}),
    Case("type with a control character", headers={"Content-Type": "text/plain; a=\x01"}),
    Case("type in Latin-1", headers={"Content-Type": "text/pl\xe4in"}),
    Case("long type", headers={"Content-Type": "text/plain; a=" + "b" * 300}),
    Case("invalid JSON", headers=JSON, body=b"{"),
    Case("deep JSON", headers=JSON, body=b"[" * 10_000),
    Case("invalid UTF-8", headers=JSON, body=b'"\xff"'),
    *(Case(f"TTL: {name}", headers={"Stream-TTL": value}) for name, value in NOT_INTEGERS.items()),
    *(
        Case(f"{header}: {name}", headers={header: value})
        for header in ("Stream-Retain-Seconds", "Stream-Retain-Bytes")
        for name, value in (NOT_INTEGERS | {"zero": "0"}).items()
    ),
    Case("TTL twice", headers=[("Stream-TTL", "60"), ("Stream-TTL", "60")]),
    Case("TTL and Expires-At", headers={"Stream-TTL": "60", "Stream-Expires-At": "2040-01-01T00:00:00Z"}),
    Case("bad TTL and bad Expires-At", headers={"Stream-TTL": "x", "Stream-Expires-At": ""}),
    Case("empty Expires-At", headers={"Stream-Expires-At": ""}),
    Case("Expires-At without a zone", headers={"Stream-Expires-At": "2040-01-01T00:00:00"}),
    Case("Expires-At on no day", headers={"Stream-Expires-At": "2040-02-30T00:00:00Z"}),
)


@pytest.mark.parametrize("case", CREATIONS)
def test_a_bad_creation_creates_nothing_and_leaves_an_existing_stream_as_it_was(
    door: Door, stream: str, case: Case
) -> None:
    for path in (stream, f"{stream}/new"):
        check_refused(door, path, Case(case.id, "PUT", case.headers, case.body))
    assert door.head(f"{stream}/new").status == 404


CONFLICTS = cases(
    Case("no type", status=409),
    Case("another type", headers={"Content-Type": "text/plain"}, status=409),
    Case("a TTL", headers=JSON | {"Stream-TTL": "60"}, status=409),
    Case("an Expires-At", headers=JSON | {"Stream-Expires-At": "2040-01-01T00:00:00Z"}, status=409),
    Case("closed", headers=JSON | {"Stream-Closed": "true"}, status=409),
)


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_creation_that_differs_from_the_existing_stream_gets_409_and_changes_nothing(
    door: Door, stream: str, case: Case
) -> None:
    """The refused creation itself is a conditional write, so writes are not counted here."""
    before = everything(door, stream)
    answer = door.put(stream, case.headers, case.body)
    assert answer.status == 409
    assert everything(door, stream) == before


# --- size ---------------------------------------------------------------------------

OVERSIZED: Final = b'"' + b"x" * (MAX_BODY_BYTES - 1) + b'"'


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("chunk_bytes", [len(OVERSIZED), 1024 * 1024], ids=["at once", "in chunks"])
def test_a_body_over_the_limit_gets_413_before_any_storage_call(
    door: Door, stream: str, method: str, chunk_bytes: int
) -> None:
    """Nothing is written to the table or to S3, and nothing is read."""
    before = everything(door, stream)
    door.process.calls.taken()
    chunks = [OVERSIZED[at : at + chunk_bytes] for at in range(0, len(OVERSIZED), chunk_bytes)]
    answer = door(method, stream, JSON, chunks)
    assert answer.status == 413
    assert str(MAX_BODY_BYTES) in answer.json["error"]
    assert door.process.calls.taken() == {}
    assert everything(door, stream) == before


def test_a_body_over_the_limit_creates_nothing(door: Door, path: str) -> None:
    assert door.put(path, JSON, OVERSIZED).status == 413
    assert door.head(path).status == 404


def test_a_body_at_the_limit_is_stored_and_read_back(door: Door, stream: str) -> None:
    """The limit itself is allowed, and the stored body can be read back."""
    body = b'"' + b"x" * (MAX_BODY_BYTES - 2) + b'"'
    tail = door.head(stream).next_offset
    assert door.post(stream, JSON, body).status == 204
    assert door.get(f"{stream}?offset={tail}").json == [json.loads(body)]


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize(
    "count", [MAX_MESSAGES + 1, pytest.param((MAX_BODY_BYTES - 2) // 2, marks=pytest.mark.slow)]
)
def test_too_many_messages_in_one_append_are_refused(
    door: Door, stream: str, method: str, count: int
) -> None:
    """The body is within the limit of bytes, but has more messages than a batch can record the ends of."""
    before = everything(door, stream)
    body = b"[" + b",".join([b"1"] * count) + b"]"
    assert door(method, stream, JSON, body).status == 413
    assert everything(door, stream) == before


@pytest.mark.parametrize("element", ["1", '"' + "x" * 10 + '"'])
def test_an_append_with_the_maximum_number_of_messages_is_accepted(
    door: Door, stream: str, element: str
) -> None:
    tail = door.head(stream).next_offset
    body = f"[{','.join([element] * MAX_MESSAGES)}]".encode()
    assert door.post(stream, JSON, body).status == 204
    assert len(door.get(f"{stream}?offset={tail}").json) == MAX_MESSAGES


# --- reads --------------------------------------------------------------------------

#: Every form of a wrong offset is in `protocol/test_offset.py`.
BAD_OFFSETS = {
    "empty": "",
    "encoded comma": "%2C",
    "two tokens": "0000000000000000,0000000000000008",
    "plus": "+",
    "token and blank": "0000000000000000%20",
    "zero": "0",
    "slash": "a/b",
    "NUL": "%00",
    "invalid UTF-8": "%ff",
    "other digits": "%D9%A0" * 16,
    "very long": "0" * 10_000,
    "inside a message": "0000000000000001",
}
LIVE = {"catch-up": "", "long-poll": "&live=long-poll", "sse": "&live=sse"}


@pytest.mark.parametrize("offset", BAD_OFFSETS.values(), ids=BAD_OFFSETS.keys())
def test_an_invalid_offset_gets_400_in_every_mode(door: Door, stream: str, offset: str) -> None:
    """With `live=sse` too: the event stream does not begin before the offset is checked."""
    for live in LIVE.values():
        answer = check_refused(door, stream, Case("", "GET", query=f"?offset={offset}{live}", body=b""))
        assert "ffset" in answer.json["error"]


@pytest.mark.parametrize("offset", ["0000000000000017", "9999999999999999"])
@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE.keys())
def test_an_offset_beyond_the_end_gets_410_and_where_to_start_over(
    door: Door, stream: str, offset: str, live: str
) -> None:
    answer = door.get(f"{stream}?offset={offset}{live}")
    assert (answer.status, answer.headers["stream-next-offset"]) == (410, "0" * 16)
    assert answer.headers["cache-control"] == "no-store"
    assert "beyond the end" in answer.json["error"]


QUERIES = {
    "offset twice": "offset=-1&offset=-1",
    "two offsets": "offset=-1&offset=0000000000000008",
    "long-poll without offset": "live=long-poll",
    "sse without offset": "live=sse",
    "empty live": "offset=-1&live=",
    "unknown live": "offset=-1&live=websocket",
    "live in capitals": "offset=-1&live=SSE",
    "live=true": "offset=-1&live=true",
    "live twice": "offset=-1&live=sse&live=sse",
    "two lives": "offset=-1&live=sse&live=long-poll",
    "unknown live without offset": "live=x",
    # Every form of a wrong cursor is in `protocol/test_caching.py`.
    **{
        f"{live} with cursor {name}": f"offset=-1&live={live}&cursor={value}"
        for live in ("long-poll", "sse")
        for name, value in {"empty": "", "blank": "%201", "twice": "1&cursor=2"}.items()
    },
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_an_invalid_query_is_refused(door: Door, stream: str, query: str) -> None:
    check_refused(door, stream, Case("", "GET", query=f"?{query}", body=b""))


@pytest.mark.parametrize("query", ["offset=&live=sse", "offset=x", "live=x", "cursor=x"])
def test_head_ignores_the_query(door: Door, stream: str, query: str) -> None:
    """HEAD answers for the stream as a whole; what a cache adds to the URL does not matter."""
    assert door.head(f"{stream}?{query}") == door.head(stream)


# --- names --------------------------------------------------------------------------

BAD_NAMES = {
    "empty": "",
    "slash": "/",
    "empty segment": "a//b",
    "slash behind": "a/",
    "dot": ".",
    "dots": "..",
    "dots inside": "a/../b",
    "encoded dots": "%2e%2e/a",
    "half encoded dots": "a/.%2E/b",
    "encoded slash": "a%2Fb",
    "encoded slash, small": "a%2fb",
    "dots behind an encoded slash": "a%2F..%2Fb",
    "NUL": "a%00b",
    "line feed": "a%0Ab",
    "line feed behind": "a%0A",
    "carriage return": "a%0Db",
    "delete": "%7F",
    "invalid UTF-8": "%FF",
    "cut UTF-8": "a%E2%82",
    "overlong slash": "%C0%AF",
    "surrogate": "%ED%A0%80",
    "raw bytes that are no UTF-8": "\udcff",
    "too long": "x" * 1001,
    "too long in UTF-8": "%C3%A9" * 501,
    "too long in segments": "/".join("x" * 501),
    "reserved": "__ds",
    "reserved, below": "__ds/x",
    "reserved, encoded": "%5F%5fds/x",
}
METHODS = {
    "PUT": ({"Content-Type": "text/plain"}, b"x"),
    "POST": ({"Content-Type": "text/plain"}, b"x"),
    "GET": ({}, b""),
    "HEAD": ({}, b""),
    "DELETE": ({}, b""),
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_an_invalid_stream_name_is_refused_before_any_storage_call(door: Door, name: str) -> None:
    door.process.calls.taken()
    for method, (headers, body) in METHODS.items():
        answer = door(method, f"/v1/stream/{name}", headers, body)
        assert answer.status in ({404} if "ds" in name else {400, 404}), (method, answer)
    assert door.process.calls.taken() == {}


@pytest.mark.parametrize("query", ["?live=sse&offset=-1", "?live=long-poll&offset=now"])
def test_a_live_read_of_an_invalid_name_gets_400(door: Door, query: str) -> None:
    assert door.get(f"/v1/stream/a%2Fb{query}").status == 400


@pytest.mark.parametrize(
    "name", ["x" * 1000, "%C3%A9" * 500, "a/" * 499 + "bc"], ids=["ASCII", "UTF-8", "path"]
)
def test_the_longest_allowed_names_fit_every_key(door: Door, name: str) -> None:
    """A stream with the longest names can be created, written, read and deleted: every key that holds them
    fits DynamoDB's limit."""
    path = f"/v1/stream/{name}"
    assert door.put(path, JSON | {"Stream-TTL": "3600"}, b"1").status == 201
    assert door.post(path, JSON | PRODUCER, b"2").status == 200
    assert door.get(path).json == [1, 2]
    assert door.delete(path).status == 204


# --- methods, places ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "CONNECT", "PROPFIND", "LINK", "get", "Post", "X"])
def test_an_unknown_method_gets_405_with_the_allowed_ones(door: Door, stream: str, method: str) -> None:
    answer = check_refused(door, stream, Case("", method, JSON, status=405))
    allowed = {name.strip() for name in (answer["allow"] or "").split(",")}
    assert allowed == {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}


@pytest.mark.parametrize("place", ["/v1", "/v1/", "/v1/stream", "/v1/x/y", "/docs/x/y", "/docs/x/y/z"])
def test_an_unknown_path_gets_404(door: Door, place: str) -> None:
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH"):
        assert door(method, place).status == 404, method


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_the_health_check_gets_405_for_every_method_but_get(door: Door, method: str) -> None:
    answer = door(method, "/v1/health", {}, b"")
    assert answer.status == 405
    assert answer["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "DELETE"])
def test_a_missing_stream_gets_404_in_every_mode(door: Door, path: str, method: str) -> None:
    headers, body = METHODS[method]
    assert door(method, path, headers, body).status == 404
    assert door(method, path + "?offset=-1&live=sse", headers, body).status == 404
    assert door(method, path + "?offset=now&live=long-poll", headers, body).status == 404
    assert door(method, path + "?offset=now", headers, body).status == 404


@pytest.mark.parametrize("query", ["%6fffset=-1", "offset=-1&%63ursor=1", "offset=-1&%", "li%76e"])
def test_an_encoded_name_of_a_parameter_gets_400(door: Door, query: str) -> None:
    """A cache in front would keep the answer for a request without that parameter."""
    for path in ("/v1/stream/encoded", "/", "/v1/streams"):
        answer = door.get(f"{path}?{query}")
        assert (answer.status, answer["cache-control"]) == (400, "no-store")
        assert "percent-encoded" in answer.json["error"]


def test_an_encoded_value_is_decoded(door: Door) -> None:
    assert door.get("/v1/streams?prefix=%61").status == 200
