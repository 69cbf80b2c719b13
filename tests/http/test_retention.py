"""Retention over HTTP: the headers of a creation, and what HEAD and a read tell of what is gone."""

from __future__ import annotations

from tests.http.asgi import Door
from tests.support import World
from tidemark.protocol.stream_key import parse_plain_path
from tidemark.service.trim import trim_below

JSON = {"Content-Type": "application/json"}


def test_limits_are_told_as_they_were_asked_for(door: Door, path: str) -> None:
    asked = {"Stream-Retain-Seconds": "86400", "Stream-Retain-Bytes": "1000000"}
    assert door.put(path, JSON | asked).status == 201
    answer = door.head(path)
    assert {name: answer[name] for name in asked} == asked
    assert answer["Stream-Retained-Offset"] is None


def test_a_read_below_what_is_retained_is_410_with_the_way_on(door: Door, world: World, path: str) -> None:
    door.put(path, JSON, b"[1,22]")
    key = parse_plain_path(path.removeprefix("/v1/stream/"), encoded=True)
    assert trim_below(world.process().stores, key, 2)
    answer = door.get(f"{path}?offset=-1")
    assert (answer.status, answer["cache-control"]) == (410, "no-store")
    assert b"Offsets below 0000000000000002 are no longer retained: read on from there" in answer.body
    assert answer.next_offset == door.head(path)["Stream-Retained-Offset"] == "0000000000000002"
    assert door.get(f"{path}?offset={answer.next_offset}").body == b"[22]"
