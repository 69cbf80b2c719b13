"""Requests get the same responses from a server, through an HTTP API and through a function URL."""

import itertools
import json
import os
from collections.abc import Iterator

import pytest

from tests.authorization.ways import WAYS, Way, in_environment
from tests.http.published import openapi_document
from tests.stack.engines import LocalServices
from tidemark.settings import Settings

TEXT = {"Content-Type": "text/plain"}
_serial = itertools.count(1)


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, services: LocalServices) -> Iterator[Way]:
    with in_environment(services), WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


@pytest.fixture
def stream(way: Way) -> str:
    path = f"/v1/stream/every-way/{next(_serial)}"
    assert way("PUT", path, TEXT, b"a").status == 201
    return path


def test_the_alias_is_the_same_stream(way: Way, stream: str) -> None:
    """`@durable-streams/proxy` uses the longer path."""
    alias = stream.replace("/v1/stream/", "/v1/streams/")
    assert way("POST", alias, TEXT, b"b").status == 204
    assert way("GET", alias).body == b"ab"
    assert way("PUT", f"{stream}/fork", {"Stream-Forked-From": alias}).status == 201
    assert way("GET", f"{stream}/fork").body == b"ab"
    assert way("DELETE", f"{alias}/fork").status == 204
    assert way("HEAD", alias).status == 200
    assert way("DELETE", alias).status == 204
    assert way("GET", stream).status == 404
    created = way("PUT", f"{alias}/new", TEXT)
    assert (created.status, created.headers["location"].endswith(f"{alias}/new")) == (201, True)


def test_a_stream_is_created_by_its_first_append(way: Way) -> None:
    path = f"/v1/stream/every-way/{next(_serial)}"
    first = TEXT | {"Stream-Create": "", "Stream-TTL": "60", "If-None-Match": "*"}
    assert way("POST", path, TEXT, b"a").status == 404
    assert [way("POST", path, first, b"a").status for _ in range(2)] == [204, 412]
    assert (way("HEAD", path).headers["stream-ttl"], way("GET", path).body) == ("60", b"a")


@pytest.fixture
def bucket_stream(way: Way) -> str:
    bucket = f"/every-way-{next(_serial)}"
    assert way("PUT", bucket).status == 201
    assert way("PUT", f"{bucket}/run", TEXT, b"a").status == 201
    return f"{bucket}/run"


#: Every GET beside a stream's own, for which HEAD has a meaning of its own (§5.5).
GETS = (
    "/", "/favicon.ico", "/v1/health", "/v1/openapi.json", "/v1/console", "/v1/console/console.js",
    "/v1/console/nothing.js", "/v1/docs", "/v1/socket", "/v1/socket.js", "/v1/proxy.js",
    "/v1/streams?prefix=every-way/&limit=1", "/v1/streams?limit=0", "/v1/buckets?limit=1",
    "/v1/stats?stream={stream}", "/v1/stats", "/v1/start?stream={stream}&last=1",
    "/v1/times?stream={stream}", "/v1/times?stream={stream}&offset=now", "/v1/me", "/v1/nothing",
    "/v1/stream/__ds/jwks.json", "/v1/stream/__ds/subscriptions", "/v1/stream/__ds/subscriptions/nothing",
    "{bucket_stream}/bootstrap", "{bucket_stream}/snapshot",
)  # fmt: skip


@pytest.mark.parametrize("target", GETS)
def test_head_gets_what_get_gets_without_body(way: Way, stream: str, bucket_stream: str, target: str) -> None:
    """RFC 9110 §9.3.2."""
    target = target.format(stream=stream, bucket_stream=bucket_stream)
    get, head = way("GET", target), way("HEAD", target)
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers == get.headers


def test_every_get_of_the_document_is_among_those_that_head_is_tried_with(way: Way) -> None:
    answer = way("GET", "/v1/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    document = json.loads(answer.body)
    assert document == openapi_document()
    named = {
        "/v1/console/{file}": "/v1/console/console.js",
        "/v1/stream/__ds/subscriptions/{id}": "/v1/stream/__ds/subscriptions/nothing",
        "/{bucket}/{stream}/bootstrap": "{bucket_stream}/bootstrap",
        "/{bucket}/{stream}/snapshot": "{bucket_stream}/snapshot",
    }
    tried = {target.partition("?")[0] for target in GETS}
    gets = {path for path, part in document["paths"].items() if "get" in part and "head" not in part}
    assert {path for path in gets if named.get(path, path) not in tried} == set()
