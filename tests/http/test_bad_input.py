"""Bad input gets 4xx and `{"error": …}`, and the stream stays byte for byte as it was.

The client checks the form of every error (`asgi.check_any_answer`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.answers import Answer
from tests.http.asgi import CLOSE, JSON, TEXT, Door
from tidemark.http.requests import MAX_BODY_BYTES

COMPACT: Final = {"Stream-Compact": "last-by-key"}
PRODUCER: Final = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "0"}
NEXT: Final = {"Producer-Id": "p", "Producer-Epoch": "1", "Producer-Seq": "1", "Stream-Seq": "6"}
TOO_BIG: Final = 2**53
READS: Final = {"GetItem", "Query", "GetObject"}


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


NUMBER: Final = {"empty": "", "too large": str(TOO_BIG)}

#: Every form of a wrong value is in `protocol/`; these show which headers are looked at.
APPENDS = cases(
    Case("no body", headers=JSON, body=b""),
    Case("no body, not closing", headers=JSON | {"Stream-Closed": "false"}, body=b""),
    Case("no type"),
    Case("empty type", headers={"Content-Type": ""}),
    Case("another type", headers=TEXT, status=409),
    Case("no Producer-Id", headers=producer(Producer_Id=None)),
    Case("no Producer-Seq, closing", headers=producer(Producer_Seq=None, Stream_Closed="true"), body=b""),
    Case("Producer-Id in Latin-1", headers=producer(Producer_Id="\xe9")),
    *(Case(f"{name} Producer-Epoch", headers=producer(Producer_Epoch=text)) for name, text in NUMBER.items()),
    *(Case(f"{name} Producer-Seq", headers=producer(Producer_Seq=text)) for name, text in NUMBER.items()),
    Case("stale epoch", headers=producer(Producer_Epoch="0"), status=403),
    Case("new epoch, not from 0", headers=producer(Producer_Epoch="2")),
    Case("unknown producer, not from 0", headers=producer(Producer_Id="q"), status=409),
    Case("Stream-Seq in Latin-1", headers=JSON | {"Stream-Seq": "\xff"}),
    Case("Stream-Seq going back", headers=JSON | {"Stream-Seq": "10"}, status=409),
    Case("Stream-Seq back, closing", headers=CLOSE | {"Stream-Seq": "5"}, body=b"", status=409),
    Case("Stream-Seq back, producer going on", headers=producer(Stream_Seq="5"), status=409),
)


@pytest.mark.parametrize("case", APPENDS)
def test_a_bad_append_is_refused_and_changes_nothing(door: Door, stream: str, case: Case) -> None:
    check_refused(door, stream, case)


@pytest.mark.parametrize("body", [b"[]", b'[{"a":1},{b:2}]', b'"\xe2\x82"', b"[" * 100_000], ids=len)
def test_invalid_json_is_refused_before_the_producer_advances(door: Door, stream: str, body: bytes) -> None:
    for headers in (JSON, JSON | NEXT, JSON | CLOSE):
        check_refused(door, stream, Case("", headers=headers, body=body))


# --- creation -----------------------------------------------------------------------

CREATIONS = cases(
    Case("type without subtype", headers={"Content-Type": "json"}),
    Case("type in Latin-1", headers={"Content-Type": "text/pl\xe4in"}),
    Case("invalid JSON", headers=JSON, body=b"{"),
    *(
        Case(f"{name} {header}", headers={header: text})
        for header in ("Stream-TTL", "Stream-Retain-Seconds", "Stream-Retain-Bytes")
        for name, text in NUMBER.items()
    ),
    *(
        Case(f"{name} {header}", headers=JSON | COMPACT | {header: text})
        for header in ("Stream-Compact-After", "Stream-Compact-Tombstones")
        for name, text in NUMBER.items()
    ),
    Case("unknown compaction", headers=JSON | {"Stream-Compact": "first-by-key"}),
    Case("compaction of text", headers=TEXT | COMPACT),
    Case("no pointer", headers=JSON | COMPACT | {"Stream-Compact-Key": "id"}),
    Case("pointer without a mode", headers=JSON | {"Stream-Compact-Key": "/id"}),
    Case("TTL and Expires-At", headers={"Stream-TTL": "60", "Stream-Expires-At": "2040-01-01T00:00:00Z"}),
    Case("Expires-At without a zone", headers={"Stream-Expires-At": "2040-01-01T00:00:00"}),
)


@pytest.mark.parametrize("case", CREATIONS)
def test_a_bad_creation_creates_nothing_and_leaves_an_existing_stream_as_it_was(
    door: Door, stream: str, case: Case
) -> None:
    for path in (stream, f"{stream}/new"):
        check_refused(door, path, Case(case.id, "PUT", case.headers, case.body))
    assert door.head(f"{stream}/new").status == 404


# --- size ---------------------------------------------------------------------------

OVERSIZED: Final = b'"' + b"x" * (MAX_BODY_BYTES - 1) + b'"'


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("chunk_bytes", [len(OVERSIZED), 1024 * 1024], ids=["at once", "in chunks"])
def test_a_body_over_the_limit_gets_413_before_any_storage_call(
    door: Door, stream: str, method: str, chunk_bytes: int
) -> None:
    before = everything(door, stream)
    door.process.calls.taken()
    chunks = [OVERSIZED[at : at + chunk_bytes] for at in range(0, len(OVERSIZED), chunk_bytes)]
    answer = door(method, stream, JSON, chunks)
    assert answer.status == 413
    assert str(MAX_BODY_BYTES) in answer.json["error"]
    assert door.process.calls.taken() == {}
    assert everything(door, stream) == before


# --- reads --------------------------------------------------------------------------

#: Every form of a wrong offset is in `protocol/test_offset.py`; the last one is inside a message.
BAD_OFFSETS = ["", "0000000000000000,0000000000000008", "0000000000000000%20", "0", "%00", "%ff", f"{1:016}"]
LIVE = {"catch-up": "", "long-poll": "&live=long-poll", "sse": "&live=sse"}


@pytest.mark.parametrize("offset", BAD_OFFSETS)
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


#: Every form of a wrong cursor is in `protocol/test_caching.py`.
QUERIES = ["offset=-1&offset=-1", "live=long-poll", "live=sse", "live=x", "offset=-1&live=", "last=1"]
QUERIES += ["offset=-1&live=sse&live=long-poll", "offset=-1&live=sse&cursor=1&cursor=2", "offset=-1&live=SSE"]
QUERIES += ["offset=-1&live=long-poll&cursor=%201", "offset=-1&last=1", "offset=now&live=sse&last=1"]
QUERIES += [f"offset=now&last={last}" for last in ("0", "10001", "x", "")] + [f"offset={1:016}&last=1"]


@pytest.mark.parametrize("query", QUERIES)
def test_an_invalid_query_is_refused(door: Door, stream: str, query: str) -> None:
    check_refused(door, stream, Case("", "GET", query=f"?{query}", body=b""))


def test_head_ignores_the_query(door: Door, stream: str) -> None:
    """HEAD answers for the stream as a whole; what a cache adds to the URL does not matter."""
    for query in ("offset=&live=sse", "offset=x", "live=x", "cursor=x"):
        assert door.head(f"{stream}?{query}") == door.head(stream)


# --- methods, places ----------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "GET", "HEAD", "DELETE"])
def test_a_missing_stream_gets_404_in_every_mode(door: Door, path: str, method: str) -> None:
    for query in ("", "?offset=-1&live=sse", "?offset=now&live=long-poll", "?offset=now"):
        assert door(method, path + query, TEXT, b"x").status == 404


@pytest.mark.parametrize("query", ["%6fffset=-1", "offset=-1&%63ursor=1", "offset=-1&%", "li%76e"])
def test_an_encoded_name_of_a_parameter_gets_400(door: Door, query: str) -> None:
    """A cache in front would keep the answer for a request without that parameter."""
    for path in ("/v1/stream/encoded", "/", "/v1/streams"):
        answer = door.get(f"{path}?{query}")
        assert (answer.status, answer["cache-control"]) == (400, "no-store")
        assert "percent-encoded" in answer.json["error"]
