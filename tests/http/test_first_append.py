"""A stream by its first append (an extension): `Stream-Create` on POST."""

import asyncio
from typing import Any

import pytest

from tests.http.asgi import CLOSE, JSON, PRODUCER, TEXT, Door, Make
from tests.support import Clock
from tidemark.service.append import INLINE_BYTES

CREATE = {"Stream-Create": ""}
NEW = TEXT | CREATE
ONLY_NEW = NEW | {"If-None-Match": "*"}
LATER = PRODUCER | {"Producer-Seq": "1"}
ANY_ETAG = {"etag": "any"}
each_way = pytest.mark.each_way


@each_way
@pytest.mark.parametrize(
    ("settings", "append", "body"),
    [
        (TEXT, PRODUCER, b"x"),
        (TEXT, CLOSE, b"x"),
        (TEXT, PRODUCER | CLOSE | {"Producer-Epoch": "7"}, b""),
        (TEXT | {"Stream-TTL": "60"}, {"Stream-Seq": "5"}, b"x" * (INLINE_BYTES + 1)),
        (TEXT | {"Stream-Expires-At": "2040-01-01T00:00:00Z", "Stream-Retain-Bytes": "9"}, {}, b"x"),
        (JSON | {"Stream-Compact": "last-by-key", "Stream-Retain-Seconds": "86400"}, {}, b'[{"a":1},[2]]'),
        # Refused, and no stream is made.
        (TEXT, LATER, b"x"),
        (TEXT, JSON, b"{}"),
        (JSON, {}, b"{"),
        (TEXT, {"If-Match": '"other"'}, b"x"),
    ],
)
def test_a_first_append_gets_the_answer_of_a_creation_and_an_append(
    door: Door, path: str, settings: dict[str, str], append: dict[str, str], body: bytes
) -> None:
    creation = settings | {"Stream-Create": settings["Content-Type"]}
    answer = door.post(path, creation | append, body)
    assert door.put(f"{path}/two", settings).status == 201
    expected = door.post(f"{path}/two", {"Content-Type": settings["Content-Type"]} | append, body)
    assert answer.status == expected.status
    found, two = door.head(path), door.head(f"{path}/two")
    if answer.status >= 300:
        assert found.status == 404
        assert answer["producer-expected-seq"] == expected["producer-expected-seq"]
        return
    for own, other in ((answer, expected), (found, two)):
        assert own.headers | ANY_ETAG == other.headers | ANY_ETAG
    assert answer["etag"] == found["etag"]
    assert door.get(path).body == door.get(f"{path}/two").body
    again, expected = (door.post(each, creation | append, body) for each in (path, f"{path}/two"))
    assert (again.status, again["stream-next-offset"]) == (expected.status, expected["stream-next-offset"])


@each_way
def test_an_existing_stream_keeps_its_settings_and_takes_the_append(door: Door, make_stream: Make) -> None:
    path = make_stream(body=b"a", Stream_TTL="60")
    other = {"Stream-Create": "application/json", "Stream-TTL": "5", "Stream-Forked-From": "/v1/stream/x"}
    assert door.post(path, TEXT | other, b"b").status == 204
    assert door.head(path)["stream-ttl"] == "60"
    refused = door.post(path, JSON | other, b"1")
    assert (refused.status, "text/plain" in refused.json["error"]) == (409, True)
    assert door.post(path, CLOSE).status == 204
    assert door.post(path, NEW, b"c")["stream-closed"] == "true"
    assert door.get(path).body == b"ab"


@each_way
def test_with_if_none_match_only_one_append_creates_the_stream(door: Door, path: str) -> None:
    assert door.post(path, TEXT | {"If-None-Match": "*"}, b"x").status == 404
    first = door.post(path, ONLY_NEW | PRODUCER, b"a")
    assert first.status == 200
    refused = door.post(path, ONLY_NEW, b"b")
    assert (refused.status, refused["etag"]) == (412, first["etag"])
    assert "If-None-Match" in refused.json["error"]
    assert door.post(path, ONLY_NEW | PRODUCER, b"a").status == 204, "a duplicate"
    assert door.get(path).body == b"a"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Stream-Create": "text"}, "'text'"),
        ({"Stream-Create": "text/plain, text/plain"}, "Stream-Create must be sent once"),
        ({"Stream-Create": "application/x-www-form-urlencoded"}, "form's type"),
        (CREATE | {"Content-Type": ""}, "Stream-Create is empty and Content-Type is missing"),
        (CREATE | {"Stream-Forked-From": "/v1/stream/a"}, "with PUT"),
        (CREATE | {"Stream-TTL": "soon"}, "Stream-TTL"),
        (CREATE | {"Stream-Compact": "last-by-key"}, "needs a stream of application/json"),
        (CREATE | {"If-None-Match": '"a"'}, "If-None-Match of an append must be *"),
        (ONLY_NEW | {"If-Match": "*"}, "without If-Match"),
    ],
)
def test_a_creation_that_is_malformed_is_400_with_the_reason(
    door: Door, path: str, headers: dict[str, str], said: str
) -> None:
    refused = door.post(path, TEXT | headers, b"x")
    assert (refused.status, door.head(path).status) == (400, 404), refused
    assert said in refused.json["error"]


@each_way
def test_the_next_stream_of_a_name_has_its_own_messages(door: Door, clock: Clock, make_stream: Make) -> None:
    path = make_stream(body=b"old", Stream_TTL="60")
    assert door.delete(path).status == 204
    assert door.post(path, NEW | PRODUCER | {"Stream-TTL": "60"}, b"new").status == 200
    assert door.get(path).body == b"new"
    clock.advance(64_000)  # A twentieth late.
    assert door.post(path, TEXT | LATER, b"late").status == 404
    assert door.post(path, NEW | PRODUCER, b"newer").status == 200
    assert door.get(path).body == b"newer"
    assert door.put(f"{path}/fork", {"Stream-Forked-From": path}).status == 201
    assert door.delete(path).status == 204
    assert door.post(path, TEXT, b"x").status == 410
    assert (door.post(path, NEW, b"x").status, door.put(path, TEXT).status) == (409, 409)


def test_a_bucket_gives_its_settings_and_a_name_or_bucket_that_put_refuses_is_refused(
    door: Door, path: str, make_bucket: Any
) -> None:
    bucket = make_bucket(Stream_Retain_Seconds="86400")
    assert door.post(f"{bucket}/run", NEW, b"x").status == 204
    assert door.head(f"{bucket}/run")["stream-retain-seconds"] == "86400"
    assert "Bucket does not exist" in door.post("/no-such-bucket/run", NEW, b"x").json["error"]
    assert door.post(f"{path}/a%E2%80%AEb", NEW, b"x").status == 400


# --- calls and races ----------------------------------------------------------------


def test_a_first_append_is_a_read_and_a_conditional_write_and_no_more_later(door: Door, path: str) -> None:
    door.process.calls.taken()
    assert door.post(path, NEW | PRODUCER, b"a").status == 200
    assert door.process.calls.taken() == {"GetItem": 1, "TransactWriteItems": 1}
    assert door.post(path, NEW | LATER, b"b").status == 200
    assert door.process.calls.taken() == {"PutItem": 1}


def test_many_first_appends_at_once_make_one_stream_with_all_of_them(door: Door, path: str) -> None:
    async def scenario() -> list[Any]:
        asking = (door.ask("POST", path, NEW, b"%02d," % number) for number in range(24))
        return await asyncio.gather(*asking)

    answers = door.run(scenario())
    assert {answer.status for answer in answers} == {204}
    assert len({answer["etag"].partition(":")[0] for answer in answers}) == 1
    assert sorted(door.get(path).body.split(b",")) == sorted([b"", *(b"%02d" % n for n in range(24))])
