"""`/v1/streams/{id}` names the same stream as `/v1/stream/{id}`: `@durable-streams/proxy` uses the longer
path."""

from __future__ import annotations

from tests.http.asgi import HOST, Door

TEXT = {"Content-Type": "text/plain"}


def test_both_paths_are_one_stream(door: Door, path: str) -> None:
    alias = path.replace("/v1/stream/", "/v1/streams/")
    created = door.put(alias, TEXT, b"a")
    assert (created.status, created["Location"]) == (201, f"http://{HOST}{alias}")
    assert door.post(path, TEXT, b"b").status == 204
    assert door.get(alias).body == door.get(path).body == b"ab"
    assert door.put(f"{path}/fork", {"Stream-Forked-From": alias}).status == 201
    assert door.get(f"{path}/fork").body == b"ab"
    assert door("PATCH", alias)["Allow"] == door("PATCH", path)["Allow"]
    for name in ("a//b", "..", "", "a%2Fb"):
        assert door.get(f"/v1/streams/{name}").status == door.get(f"/v1/stream/{name}").status == 400
