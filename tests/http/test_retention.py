"""Retention over HTTP: the headers of a creation, and what HEAD and a read tell of what is gone."""

import pytest

from tests.http.asgi import JSON, Door, Make
from tests.support import World
from tidemark.protocol.offset import render_offset
from tidemark.protocol.stream_key import parse_plain_path
from tidemark.service.retention import trim_below


def trim(world: World, path: str) -> None:
    key = parse_plain_path(path.removeprefix("/v1/stream/"), encoded=True)
    assert trim_below(world.process().stores, key, 2)


def test_a_read_below_what_is_retained_is_410_with_the_way_on(door: Door, world: World, path: str) -> None:
    door.put(path, JSON, b"[1,22]")
    trim(world, path)
    answer = door.get(f"{path}?offset=0000000000000000")
    assert (answer.status, answer["cache-control"]) == (410, "no-store")
    assert b"Offsets below 0000000000000002 are no longer retained: read on from there" in answer.body
    assert answer.next_offset == door.head(path)["Stream-Retained-Offset"] == "0000000000000002"
    assert door.get(f"{path}?offset={answer.next_offset}").body == b"[22]"


def test_a_reader_of_an_earlier_stream_goes_on_in_no_later_one(door: Door, world: World, path: str) -> None:
    door.put(path, JSON, b"[1]")
    place = f"{path}?offset={(old := door.get(path)).next_offset}&cursor={old['stream-cursor']}"
    door.delete(path)
    door.put(path, JSON, b"[3,44]")
    trim(world, path)
    assert door.head(path)["Stream-Retained-Offset"] == old.next_offset
    assert door.get(place).status == 410


@pytest.mark.parametrize("query", ["", "?offset=-1", "?offset=-1&live=long-poll", "?offset=-1&live=sse"])
def test_the_beginning_is_the_earliest_retained(door: Door, world: World, path: str, query: str) -> None:
    """Official clients begin there, and take a 410 for the end of the stream. The first time the server
    remembers the stream as it was, the second time as it is."""
    door.put(path, JSON, b"[1,22]")
    door.post(path, JSON | {"Stream-Closed": "true"})
    trim(world, path)
    for _ in range(2):
        answer = door.get(f"{path}{query}")
        assert (answer.status, b"[22]" in answer.body) == (200, True)
        assert answer["Stream-Retained-Offset"] == render_offset(2)
        assert answer["Stream-Next-Offset"] == (None if "sse" in query else render_offset(5))
    assert door.get(f"{path}?offset=0000000000000002")["Stream-Retained-Offset"] is None


LIMITS = {"Stream-Retain-Seconds": "86400", "Stream-Retain-Bytes": "1000000"}
LIMITED = ("Stream-Retain-Seconds", "Stream-Retain-Bytes")


def limits(door: Door, path: str) -> tuple[str | None, ...]:
    answer = door.head(path)
    assert answer.status == 200
    return tuple(answer[name] for name in LIMITED)


def test_a_buckets_limits_are_those_of_streams_without_their_own(door: Door, make_bucket: Make) -> None:
    """So that a repeated creation is the same one, whether it names them or not."""
    bucket = make_bucket(**LIMITS)
    assert limits(door, bucket) == ("86400", "1000000")
    described = door.get(bucket).json
    assert (described["retain_seconds"], described["retain_bytes"], described["streams"]) == (86400, 10**6, 0)
    assert door.put(f"{bucket}/a", JSON).status == 201
    assert limits(door, f"{bucket}/a") == ("86400", "1000000")
    assert [door.put(f"{bucket}/a", JSON | named).status for named in ({}, LIMITS)] == [200, 200]
    other = {"Stream-Retain-Seconds": "60"}
    assert door.put(f"{bucket}/a", JSON | other).status == 409
    assert door.put(f"{bucket}/b", JSON | other).status == 201
    assert limits(door, f"{bucket}/b") == ("60", None)
    assert [door.put(f"{bucket}/b", JSON | named).status for named in (other, {})] == [200, 409]
    source = {"Stream-Forked-From": f"{bucket}/b"}
    assert door.put(f"{bucket}/fork", source).status == 201
    assert limits(door, f"{bucket}/fork") == ("86400", "1000000")
    assert door.get(bucket).json["streams"] == 3


@pytest.mark.parametrize("name", LIMITED)
def test_a_bucket_with_an_invalid_limit_is_refused(door: Door, name: str) -> None:
    """Every invalid one is in `protocol/test_retention.py`."""
    bucket = "/not-made"
    for value in ("0", "a day", ""):
        answer = door.put(bucket, {name: value})
        assert (answer.status, name in answer.json["error"]) == (400, True)
    assert door.get(bucket).status == 404
