"""Compaction over HTTP: the headers of a creation, what HEAD and listings tell, and what is refused. What a
reader gets is in `tests/log`."""

from tests.buckets import move_compacted
from tests.http.asgi import JSON, Door, Make
from tests.support import World
from tidemark.protocol.stream_key import StreamKey, parse_plain_path

COMPACT = JSON | {"Stream-Compact": "last-by-key"}
NAMES = ("Stream-Compact", "Stream-Compact-After", "Stream-Compact-Tombstones", "Stream-Compact-Key")
DEFAULTS = ("last-by-key", "3600", "86400", None)
NOT_COMPACTED = (None, None, None, None)


def compaction(door: Door, path: str) -> tuple[str | None, ...]:
    answer = door.head(path)
    assert answer.status == 200
    return tuple(answer[name] for name in NAMES)


def plain_key(path: str) -> StreamKey:
    return parse_plain_path(path.removeprefix("/v1/stream/"), encoded=True)


def test_head_tells_how_a_stream_is_compacted(door: Door, path: str) -> None:
    assert door.put(path, COMPACT).status == 201
    assert compaction(door, path) == DEFAULTS
    own = {"Stream-Compact-After": "0", "Stream-Compact-Tombstones": "60", "Stream-Compact-Key": "/id"}
    limited = {"Stream-Retain-Seconds": "86400"}
    assert door.put(f"{path}/own", COMPACT | own | limited).status == 201
    assert compaction(door, f"{path}/own") == ("last-by-key", "0", "60", "/id")
    door.put(f"{path}/none", JSON)
    assert compaction(door, f"{path}/none") == NOT_COMPACTED


def test_a_buckets_compaction_is_that_of_json_streams_that_name_none(door: Door, make_bucket: Make) -> None:
    bucket = make_bucket(Stream_Compact="last-by-key", Stream_Compact_Key="/id")
    told = door.get(bucket).json
    assert (told["compact"], told["compact_key"]) == ("last-by-key", "/id")
    assert (told["compact_after"], told["compact_tombstones"]) == (3600, 86400)
    assert compaction(door, bucket) == ("last-by-key", "3600", "86400", "/id")
    assert [door.put(f"{bucket}/a", JSON).status for _ in range(2)] == [201, 200]
    assert compaction(door, f"{bucket}/a") == ("last-by-key", "3600", "86400", "/id")
    own = COMPACT | {"Stream-Compact-After": "60"}
    assert [door.put(f"{bucket}/own", headers).status for headers in (own, own, JSON)] == [201, 200, 409]
    assert compaction(door, f"{bucket}/own") == ("last-by-key", "60", "86400", None)
    text = {"Content-Type": "text/plain"}
    assert [door.put(f"{bucket}/text", headers).status for headers in (text, text)] == [201, 200]
    assert compaction(door, f"{bucket}/text") == NOT_COMPACTED
    limited = JSON | {"Stream-Retain-Seconds": "60"}
    assert [door.put(f"{bucket}/limited", headers).status for headers in (limited, limited)] == [201, 200]
    assert compaction(door, f"{bucket}/limited")[0] == "last-by-key"
    assert door.head(f"{bucket}/limited")["Stream-Retain-Seconds"] == "60"
    fork = {"Stream-Forked-From": f"{bucket}/own"}
    assert [door.put(f"{bucket}/fork", headers).status for headers in (fork, fork)] == [201, 200]
    assert compaction(door, f"{bucket}/fork") == ("last-by-key", "3600", "86400", "/id")
    assert door.get(bucket).json["streams"] == 5


def test_a_fork_is_compacted_as_its_own_creation_says(door: Door, path: str) -> None:
    door.put(path, COMPACT, b"[1,2]")
    source = {"Stream-Forked-From": path}
    assert door.put(f"{path}/plain", source).status == 201
    assert compaction(door, f"{path}/plain") == NOT_COMPACTED
    assert door.put(f"{path}/compacted", source | {"Stream-Compact": "last-by-key"}).status == 201
    assert compaction(door, f"{path}/compacted") == DEFAULTS
    door.put(f"{path}/text", {"Content-Type": "text/plain"})
    refused = door.put(
        f"{path}/of-text", {"Stream-Forked-From": f"{path}/text", "Stream-Compact": "last-by-key"}
    )
    assert (refused.status, "this one is text/plain" in refused.json["error"]) == (400, True)


def test_a_stream_that_takes_the_place_of_an_expired_one_has_what_its_bucket_says(
    door: Door, make_bucket: Make, world: World
) -> None:
    bucket = make_bucket(Stream_Compact="last-by-key", Stream_Retain_Bytes="1000000")
    own = COMPACT | {"Stream-TTL": "10", "Stream-Compact-After": "60", "Stream-Retain-Bytes": "60"}
    for name in "ab":
        door.put(f"{bucket}/{name}", own)
    world.clock.advance(11_000)
    for name, given, limit in (("a", {}, "1000000"), ("b", {"Stream-Retain-Bytes": "70"}, "70")):
        assert door.put(f"{bucket}/{name}", JSON | given).status == 201
        assert compaction(door, f"{bucket}/{name}") == DEFAULTS
        assert door.head(f"{bucket}/{name}")["Stream-Retain-Bytes"] == limit


def test_what_is_compacted_is_told_and_no_fork_begins_below_it(door: Door, world: World, path: str) -> None:
    door.put(path, COMPACT, b"[1,22,333]")
    assert door.head(path)["Stream-Compacted-Offset"] is None
    move_compacted(world.process(), plain_key(path), 5)
    compacted = f"{5:016}"
    assert door.head(path)["Stream-Compacted-Offset"] == compacted
    source = {"Stream-Forked-From": path}
    refused = door.put(f"{path}/below", source | {"Stream-Fork-Offset": f"{2:016}"})
    assert (refused.status, refused["Stream-Compacted-Offset"]) == (409, compacted)
    assert compacted in refused.json["error"]
    assert door.put(f"{path}/fork", source | {"Stream-Fork-Offset": compacted}).status == 201
    assert door.head(f"{path}/fork")["Stream-Compacted-Offset"] == compacted
    stats = door.get(f"/v1/stats?stream={path}").json
    assert (stats["compact"], stats["compacted_offset"]) == ("last-by-key", compacted)


def test_listings_tell_what_is_compacted(door: Door, world: World, path: str, make_bucket: Make) -> None:
    bucket = make_bucket()
    door.put(f"{bucket}/a", COMPACT, b"[1,22]")
    door.put(f"{bucket}/b", JSON)
    move_compacted(world.process(), StreamKey(bucket[1:], "a"), 2)
    listed = door.get(f"{bucket}/streams").json["streams"]
    assert [(each["compact"], each["compacted_offset"]) for each in listed] == [
        ("last-by-key", f"{2:016}"),
        (None, None),
    ]
    door.put(path, COMPACT)
    [listed] = door.get(f"/v1/streams?prefix={path.removeprefix('/v1/stream/')}").json["streams"]
    assert (listed["compact"], listed["compacted_offset"]) == ("last-by-key", None)


def test_a_compacted_stream_takes_no_snapshot(door: Door, make_bucket: Make) -> None:
    bucket = make_bucket()
    door.put(f"{bucket}/a", COMPACT, b"[1]")
    place = f"{bucket}/a/snapshot/{2:016}"
    for refused in (door.put(place, JSON, b"{}"), door.post(f"{place}/upload", {})):
        assert refused.status == 409
        assert "A compacted stream takes no snapshot" in refused.json["error"]
    assert door.get(f"{bucket}/a/snapshot").status == 404
