"""Buckets over HTTP: every status of extensions §1, and other requests that a client may send."""

import pytest

from tests.http.asgi import TEXT, Door, Make


@pytest.fixture
def bucket(make_bucket: Make) -> str:
    return make_bucket()


def test_a_bucket_is_created_described_and_deleted(door: Door, bucket: str) -> None:
    assert door.put(bucket).status == 409
    answer = door.get(bucket)
    assert (answer.status, answer["cache-control"]) == (200, "no-store")
    now = door.process.stores.clock_ms()
    assert answer.json == {"bucket_id": bucket[1:], "streams": 0, "created_at_ms": now}
    assert door.put(f"{bucket}/north", TEXT).status == 201
    assert door.get(bucket).json["streams"] == 1
    assert door.delete(bucket).status == 409
    assert door.delete(f"{bucket}/north").status == 204
    assert door.delete(bucket).status == 204
    gone = [door.get(bucket), door.delete(bucket), door.get(f"{bucket}/streams")]
    assert [answer.status for answer in gone] == [404] * 3
    assert door.put(bucket).status == 201


ALLOWED = {
    "": "GET, HEAD, PUT, DELETE, OPTIONS",
    "/streams": "GET, HEAD, OPTIONS",
    "/a": "GET, HEAD, PUT, POST, DELETE, OPTIONS",
    "/a/snapshot": "GET, HEAD, OPTIONS",
    "/a/snapshot/0000000000000000": "GET, HEAD, PUT, DELETE, OPTIONS",
    "/a/snapshot/0000000000000000/upload": "POST, OPTIONS",
    "/a/bootstrap": "GET, HEAD, OPTIONS",
    "/v1/stream/a": "GET, HEAD, PUT, POST, DELETE, OPTIONS",
    **dict.fromkeys(("/v1/health", "/v1/streams", "/v1/buckets"), "GET, HEAD, OPTIONS"),
}


@pytest.mark.parametrize(("place", "allowed"), ALLOWED.items())
def test_unknown_methods_get_405_with_allowed_ones(door: Door, bucket: str, place: str, allowed: str) -> None:
    target = place if place.startswith("/v1/") else f"{bucket}{place}"
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "TRACE", "CONNECT", "X", "get"):
        answer = door(method, target, TEXT)
        if method in allowed.split(", "):
            assert answer.status != 405
        elif place == "/streams" and method in {"PUT", "POST", "DELETE"}:
            assert answer.status == 400, "a stream was meant, and its id is reserved"
        else:
            assert (answer.status, answer["allow"]) == (405, allowed)
    preflight = door("OPTIONS", target)
    assert preflight.status == 204
    assert "Snapshot-Upload" in (preflight["access-control-allow-headers"] or "")
    assert "Stream-Snapshot-Offset" in (preflight["access-control-expose-headers"] or "")


# --- listings -----------------------------------------------------------------------


def test_a_stream_in_a_bucket_can_be_forked(door: Door, bucket: str) -> None:
    door.put(f"{bucket}/a", TEXT, b"abc")
    forked = door.put(f"{bucket}/b", {"Stream-Forked-From": f"{bucket}/a"})
    assert forked.status == 201
    assert door.get(f"{bucket}/b").body == b"abc"
    assert door.get(bucket).json["streams"] == 2
    assert door.delete(f"{bucket}/a").status == 204
    assert door.get(bucket).json["streams"] == 1, "what only its forks keep is there no more"
    assert [each["stream_id"] for each in door.get(f"{bucket}/streams").json["streams"]] == ["b"]
    assert door.put(f"{bucket}/c", {"Stream-Forked-From": f"{bucket}/b/snapshot"}).status == 400
