"""`If-Match` on POST (an extension): an append is accepted only if the client knows the current tail."""

import asyncio

import pytest

from tests.http.asgi import PRODUCER, TEXT, Door
from tests.support import World
from tidemark.protocol.messages import parse_content_type
from tidemark.protocol.stream_key import StreamKey


@pytest.fixture
def stream(door: Door, path: str) -> str:
    assert door.put(path, TEXT, b"a").status == 201
    return path


def test_every_response_has_the_same_etag_for_the_same_tail(door: Door, path: str) -> None:
    created = door.put(path, TEXT, b"a")
    assert created["ETag"] == door.head(path)["ETag"] is not None
    appended = door.post(path, TEXT, b"b")
    assert appended["ETag"] == door.head(path)["ETag"] != created["ETag"]
    with_producer = door.post(path, TEXT | PRODUCER, b"c")
    assert with_producer.status == 200
    assert with_producer["ETag"] == door.head(path)["ETag"]
    closed = door.post(path, {"Stream-Closed": "true"})
    assert closed["ETag"] == door.head(path)["ETag"] != with_producer["ETag"], "closing changes the tail"


def test_an_append_with_another_etag_gets_412_with_the_current_tail(door: Door, stream: str) -> None:
    etag = door.head(stream).headers["etag"]
    assert door.post(stream, TEXT, b"b").status == 204
    refused = door.post(stream, TEXT | {"If-Match": etag}, b"c")
    assert refused.status == 412
    assert refused["ETag"] == door.head(stream)["ETag"]
    assert refused["Stream-Next-Offset"] == door.head(stream)["Stream-Next-Offset"]
    assert "If-Match" in refused.json["error"]
    assert door.get(stream).body == b"ab"
    assert door.post(stream, TEXT | {"If-Match": refused.headers["etag"]}, b"c").status == 204


def test_if_match_takes_strong_tags_of_this_incarnation_or_a_star(door: Door, stream: str) -> None:
    """RFC 9110 §13.1.1. Every form is in `protocol/test_caching.py`."""
    assert door.post(stream, TEXT | {"If-Match": "*"}, b"b").status == 204
    assert door.post(f"{stream}/none", TEXT | {"If-Match": "*"}, b"b").status == 404
    etag = door.head(stream).headers["etag"]
    assert door.post(stream, TEXT | {"If-Match": f"W/{etag}"}, b"b").status == 412
    refused = door.post(stream, TEXT | {"If-Match": "abc"}, b"b")
    assert (refused.status, "If-Match" in refused.json["error"]) == (400, True)
    assert door.delete(stream).status == 204
    assert door.put(stream, TEXT, b"ab").status == 201
    assert door.post(stream, TEXT | {"If-Match": etag}, b"b").status == 412


def test_a_duplicate_with_a_stale_etag_gets_204(door: Door, stream: str) -> None:
    etag = door.head(stream).headers["etag"]
    headers = TEXT | PRODUCER | {"If-Match": etag}
    first = door.post(stream, headers, b"b")
    assert first.status == 200
    again = door.post(stream, headers, b"b")
    assert (again.status, again["ETag"]) == (204, first["ETag"])
    assert door.get(stream).body == b"ab"


def test_a_close_can_have_if_match(door: Door, stream: str) -> None:
    etag = door.head(stream).headers["etag"]
    assert door.post(stream, TEXT, b"b").status == 204
    assert door.post(stream, {"Stream-Closed": "true", "If-Match": etag}).status == 412
    now = door.head(stream).headers["etag"]
    assert door.post(stream, {"Stream-Closed": "true", "If-Match": now}).status == 204
    assert door.post(stream, {"Stream-Closed": "true", "If-Match": etag}).status == 204, (
        "it is closed already"
    )
    refused = door.post(stream, TEXT | {"If-Match": now}, b"c")
    assert (refused.status, refused["Stream-Closed"]) == (409, "true")


def test_one_of_many_appends_with_the_same_etag_is_accepted(door: Door, stream: str) -> None:
    """Also if they share one write."""
    etag = door.head(stream).headers["etag"]

    async def scenario() -> list[int]:
        asking = (door.ask("POST", stream, TEXT | {"If-Match": etag}, b"b") for _ in range(8))
        return [answer.status for answer in await asyncio.gather(*asking)]

    assert sorted(door.run(scenario())) == [204] + [412] * 7
    assert door.get(stream).body == b"ab"


def test_if_match_is_not_decided_by_a_remembered_tail(door: Door, world: World, stream: str) -> None:
    """Another process has appended, so the remembered tail is a reason neither to accept nor to refuse."""
    key = StreamKey("v1", stream.removeprefix("/v1/stream/"))
    text = parse_content_type("text/plain")
    known = door.post(stream, TEXT, b"b").headers["etag"]
    world.process().append(key, b"c", content_type=text)
    assert door.post(stream, TEXT | {"If-Match": known}, b"d").status == 412
    assert door.get(stream).body == b"abc"
    latest = door.head(stream).headers["etag"]
    world.process().append(key, b"d", content_type=text)
    assert door.post(stream, TEXT | {"If-Match": latest}, b"e").status == 412
    latest = door.head(stream).headers["etag"]
    assert door.post(stream, TEXT | {"If-Match": latest}, b"e").status == 204
    assert door.get(stream).body == b"abcde"


def test_an_accepted_append_with_if_match_costs_one_write(door: Door, stream: str) -> None:
    etag = door.post(stream, TEXT, b"b").headers["etag"]
    door.process.calls.taken()
    assert door.post(stream, TEXT | {"If-Match": etag}, b"c").status == 204
    assert door.process.calls.taken() == {"PutItem": 1}
