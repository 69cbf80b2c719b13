"""`/v1/streams/{id}` names the same stream as `/v1/stream/{id}`: `@durable-streams/proxy` uses the longer
path."""

from __future__ import annotations

from tests.http.asgi import HOST, Door

TEXT = {"Content-Type": "text/plain"}


def alias(path: str) -> str:
    return path.replace("/v1/stream/", "/v1/streams/")


def test_both_paths_are_one_stream(door: Door, path: str) -> None:
    created = door.put(alias(path), TEXT, b"a")
    assert created.status == 201
    assert created["Location"] == f"http://{HOST}{alias(path)}"
    assert door.put(path, TEXT).status in {200, 409}
    assert door.post(path, TEXT, b"b").status == 204
    assert door.get(alias(path)).body == door.get(path).body == b"ab"
    assert door.head(alias(path))["Stream-Next-Offset"] == door.head(path)["Stream-Next-Offset"]
    assert door.delete(alias(path)).status == 204
    assert door.head(path).status == 404


def test_a_fork_may_name_its_source_by_either_path(door: Door, path: str) -> None:
    assert door.put(path, TEXT, b"abc").status == 201
    assert door.put(f"{path}/fork", {"Stream-Forked-From": alias(path)}).status == 201
    assert door.get(f"{path}/fork").body == b"abc"


def test_an_unknown_method_gets_405_with_the_methods_of_a_stream(door: Door, path: str) -> None:
    refused = door("PATCH", alias(path))
    assert refused.status == 405
    assert refused["Allow"] == door("PATCH", path)["Allow"]


def test_both_paths_refuse_an_invalid_name_with_400(door: Door) -> None:
    for name in ("a//b", "..", "", "a%2Fb"):
        assert door.get(f"/v1/streams/{name}").status == door.get(f"/v1/stream/{name}").status == 400
