"""Which operation a path means, as it was sent, and which paths mean none: no handler is called for
those, and no storage. Every invalid name is in `protocol/test_stream_key.py`."""

from typing import Any

import pytest

from tests.http.published import application
from tidemark.http.requests import STREAM
from tidemark.protocol.errors import Malformed, RouteNotFound, StreamNotFound, SubscriptionNotFound


def find(path: str) -> tuple[str, list[str]]:
    """The path of the endpoint, and the names in it."""
    scope: dict[str, Any] = {"type": "http", "path": path, "raw_path": path.encode(errors="surrogateescape")}
    endpoint = application().look_up(scope).path
    if STREAM in scope and "path_params" not in scope:
        return endpoint, [scope[STREAM].stream_id]
    return endpoint, list(scope.get("path_params", {}).values())


@pytest.mark.parametrize(
    ("path", "endpoint", "names"),
    [
        ("/", "/", []),
        ("/v1/stream/a/b%20c", "/v1/stream/{path}", ["a/b c"]),
        ("/v1/streams", "/v1/streams", []),
        ("/v1/streams/a", "/v1/streams/{path}", ["a"]),
        ("/v1/console/a.js", "/v1/console/{file}", ["a.js"]),
        ("/tides", "/{bucket}", ["tides"]),
        ("/%74ides", "/{bucket}", ["tides"]),
        ("/tides/streams", "/{bucket}/streams", ["tides"]),
        ("/tides/%73treams", "/{bucket}/streams", ["tides"]),
        ("/tides/Streams", "/{bucket}/{stream}", ["tides", "Streams"]),
        ("/tides/snapshot", "/{bucket}/{stream}", ["tides", "snapshot"]),
        ("/tides/v1", "/{bucket}/{stream}", ["tides", "v1"]),
        ("/tides/%E2%82%AC%20%0A%2525", "/{bucket}/{stream}", ["tides", "€ \n%25"]),
        ("/tides/snapshot/snapshot", "/{bucket}/{stream}/snapshot", ["tides", "snapshot"]),
        ("/tides/north/snapshot/%31%2F2", "/{bucket}/{stream}/snapshot/{at}", ["tides", "north", "1/2"]),
        ("/tides/north/snapshot/", "/{bucket}/{stream}/snapshot/{at}", ["tides", "north", ""]),
        ("/tides/a/snapshot/1/upload", "/{bucket}/{stream}/snapshot/{at}/upload", ["tides", "a", "1"]),
        ("/tides/bootstrap/bootstrap", "/{bucket}/{stream}/bootstrap", ["tides", "bootstrap"]),
        ("/v1/stream/__ds/subscriptions/a%25b/ack", "/v1/stream/__ds/subscriptions/{id}/ack", ["a%b"]),
        (
            "/v1/streams/__ds/subscriptions/a/streams/b/c",
            "/v1/stream/__ds/subscriptions/{id}/streams/{path}",
            ["a", "b/c"],
        ),
    ],
)
def test_a_path_means_one_endpoint(path: str, endpoint: str, names: list[str]) -> None:
    assert find(path) == (endpoint, names)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1", RouteNotFound), *((f"/v1{rest}", RouteNotFound) for rest in ("/", "/stream", "/nothing")),
        ("/v1%2Fstream%2Fa", RouteNotFound), ("/tides/north/", RouteNotFound),
        ("/tides/north/x", RouteNotFound), ("/tides/north/Snapshot", RouteNotFound),
        ("/tides/north/bootstrap/x", RouteNotFound), ("/tides/north/snapshot/1/", RouteNotFound),
        ("/tides/streams/snapshot", RouteNotFound), ("/v1/stream/__ds/nothing", SubscriptionNotFound),
        ("/v1/stream/__ds/subscriptions/", SubscriptionNotFound), ("/abc/a/b/c", Malformed),
        ("*", Malformed), ("", Malformed), ("/tides/%FF", Malformed), ("/tides/%", Malformed),
        *((f"/v1/stream/{name}", Malformed) for name in ("a%2Fb", "%FF", "\udcff", "%2e%2e/a", "x" * 1001)),
        *((f"/v1/streams/{name}", Malformed) for name in ("a//b", "..", "", "a%2Fb")),
        *((f"/{bucket}{rest}", Malformed) for bucket in ("abc", "Tides") for rest in ("", "/streams", "/a")),
        *((f"/tides/{name}/bootstrap", Malformed) for name in ("", "a..b", "a%2Fb", "%00", "x" * 122)),
        ("/tides/a..b/snapshot/1/upload", Malformed), ("/tides/a..b/snapshot", Malformed),
        ("/tides/a%2Fb", Malformed), ("/v1/stream/%5F_ds/a", StreamNotFound),
    ],
)  # fmt: skip
def test_a_path_that_no_resource_has_is_refused(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        find(path)
