"""Bulk reads (`POST /v1/read`): each page is the page of its own read."""

import json
from base64 import b64decode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.asgi import CLOSE, JSON, TEXT, Door
from tidemark.http import bulk_read

FIRST = f"{0:016}"


def ask(door: Door, *reads: tuple[str, str], **more: Any) -> list[Any]:
    asked = [{"stream": stream, "offset": offset} for stream, offset in reads]
    answer = door.post("/v1/read", JSON, json.dumps({"reads": asked, **more}).encode())
    assert (answer.status, answer["cache-control"]) == (200, "no-store"), answer
    pages: list[Any] = answer.json["pages"]
    return pages


def test_each_page_is_that_of_its_own_read(door: Door, path: str, make_bucket: Callable[..., str]) -> None:
    bucket = make_bucket()
    door.put(f"{path}/a", JSON, b'[{"a": 1.0}, "two"]')
    door.post(f"{path}/a", JSON, b"3")
    door.put(f"{path}/é b", TEXT, b"12345")
    door.put(f"{path}/closed", JSON | CLOSE, b"[1]")
    door.put(f"{path}/empty", JSON)
    door.put(f"{bucket}/run", JSON, b"[1,2]")
    places = [*(f"{path}/{quote(name)}" for name in ("a", "é b", "closed", "empty", "none")), f"{bucket}/run"]
    reads = [
        (place, offset) for place in places for offset in ("-1", FIRST, f"{1:016}", f"{2:016}", f"{99:016}")
    ]
    for (place, offset), page in zip(reads, ask(door, *reads, times=True), strict=True):
        alone = door.get(f"{place}?offset={offset}")
        assert page["status"] == alone.status
        if alone.status != 200:
            assert page == {"status": alone.status, "error": alone.json["error"]}
            continue
        assert (page["content_type"], page["etag"]) == (alone["content-type"], alone["etag"])
        assert (page["next_offset"], page["closed"]) == (alone.next_offset, "stream-closed" in alone.headers)
        assert page["up_to_date"] == (alone["stream-up-to-date"] == "true")
        assert page.get("messages", page.get("base64")) == (
            alone.json if "messages" in page else page["base64"]
        )
        assert "messages" in page or b64decode(page["base64"]) == alone.body
        assert page["times"] == door.get(f"/v1/times?stream={quote(place)}&offset={offset}").json
    assert "times" not in ask(door, reads[0])[0]


def test_an_answer_ends_before_it_is_too_large(
    door: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again for the rest, the client has each page once. A page that fits none is refused alone."""
    monkeypatch.setattr(bulk_read, "ANSWER_BYTES", 700)
    sizes = [10, 400, 10, 900, 10, 10, 400, 400, 10]
    for number, size in enumerate(sizes):
        door.put(f"{path}/{number}", JSON, json.dumps(["x" * size]).encode())
    left, found = [(f"{path}/{number}", "-1") for number in range(len(sizes))], list[Any]()
    while left:
        pages = ask(door, *left)
        assert pages
        found, left = found + pages, left[len(pages) :]
    assert [page["status"] for page in found] == [413 if size == 900 else 200 for size in sizes]
    assert "GET the stream" in found[3]["error"]
    assert [len(page["messages"][0]) for page in found if page["status"] == 200] == [
        size for size in sizes if size != 900
    ]


def test_a_large_page_goes_on_behind_it(door: Door, path: str) -> None:
    """A page has 256 KB, or one larger message."""
    door.put(path, JSON)
    sent = [str(number) * size for number, size in enumerate((100_000, 100_000, 500_000, 100, 100))]
    for text in sent:
        door.post(path, JSON, json.dumps(text).encode())
    offset, found = "-1", list[list[str]]()
    while not found or offset != door.head(path).next_offset:
        [page] = ask(door, (path, offset))
        offset = page["next_offset"]
        found.append(page["messages"])
    assert [len(messages) for messages in found] == [2, 1, 2]
    assert [text for messages in found for text in messages] == sent


@pytest.mark.parametrize("count", [1, 16, 40])
def test_it_costs_a_call_for_sixteen_items_and_a_query_for_each_stream(
    door: Door, path: str, count: int
) -> None:
    for number in range(count):
        door.put(f"{path}/{number}", JSON, b"[1]")
    door.process.calls.taken()
    assert len(ask(door, *((f"{path}/{number}", "-1") for number in range(count)))) == count
    assert door.process.calls.taken() == {"BatchGetItem": -(-count // 16), "Query": count}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Invalid JSON"),
        (b"[]", "The body: Input should be"),
        (b'{"reads":[]}', "reads: List should have at least 1"),
        (b'{"reads":[{"stream":"x"}]}', "stream must be a stream's path"),
        (b'{"reads":[{"offset":"-1"}]}', "reads.0.stream: Field required"),
        (b'{"reads":[{"stream":"/v1/stream/a","offset":"now"}]}', "offset must be -1, or"),
        (
            b'{"reads":[{"stream":"/v1/stream/a","offset":1}]}',
            "reads.0.offset: Input should be a valid string",
        ),
        (json.dumps({"reads": [{"stream": "/v1/stream/a"}] * 1001}).encode(), "at most 1000 items"),
        (b'{"reads":[{"stream":"/v1/stream/a"}],"times":1}', "times: Input should be a valid boolean"),
    ],
)
def test_bad_input_is_refused_with_the_reason(door: Door, body: bytes, reason: str) -> None:
    refused = door.post("/v1/read", JSON, body)
    assert (refused.status, reason in refused.json["error"]) == (400, True), refused
    assert door.get("/v1/read").status == 405
