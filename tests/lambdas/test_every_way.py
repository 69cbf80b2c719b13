"""What requests get is the same on every way in: a server of one's own, an HTTP API, a function's URL."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator

import pytest

from tests.authorization.ways import WAYS, Way, in_environment
from tidemark import __version__
from tidemark.local.engines import LocalServices
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


@pytest.mark.parametrize(
    "headers",
    [
        {"Stream-Seq": "a,b"},
        {"Producer-Id": "p,p", "Producer-Epoch": "0", "Producer-Seq": "0"},
        {"Producer-Id": "p", "Producer-Epoch": "0,0", "Producer-Seq": "0"},
        {"Stream-Closed": "true,true"},
        {"Content-Type": "text/plain;a=b,text/plain"},
    ],
)
def test_a_header_sent_twice_gets_400_also_where_a_gateway_has_joined_it(
    way: Way, stream: str, headers: dict[str, str]
) -> None:
    assert way("POST", stream, TEXT | headers, b"b").status == 400
    assert way("GET", stream).body == b"a"


def test_an_encoded_body_gets_415(way: Way, stream: str) -> None:
    refused = way("POST", stream, TEXT | {"Content-Encoding": "gzip"}, b"\x1f\x8b")
    assert (refused.status, refused.headers["accept-encoding"]) == (415, "identity")


def test_if_match_holds_back_an_append_to_another_tail(way: Way, stream: str) -> None:
    etag = way("HEAD", stream).headers["etag"]
    assert way("POST", stream, TEXT | {"If-Match": etag}, b"b").status == 204
    refused = way("POST", stream, TEXT | {"If-Match": etag}, b"c")
    assert refused.status == 412
    assert refused.headers["etag"] == way("HEAD", stream).headers["etag"]


def test_the_alias_is_the_same_stream(way: Way, stream: str) -> None:
    alias = stream.replace("/v1/stream/", "/v1/streams/")
    assert way("POST", alias, TEXT, b"b").status == 204
    assert way("GET", alias).body == b"ab"
    assert way("HEAD", alias).status == 200
    assert way("DELETE", alias).status == 204
    assert way("GET", stream).status == 404
    assert way("PUT", alias, TEXT).status == 201


def test_misplaced_requests_hear_where_streams_live(way: Way) -> None:
    appended = way("POST", "/chat", TEXT, b"x")
    assert appended.status == 405
    assert "/v1/stream/chat" in appended.error
    created = way("PUT", "/chat", TEXT)
    assert created.status == 400
    assert "/v1/stream/chat" in created.error
    assert "'streams' is reserved" in way("PUT", "/chat/streams", TEXT).error


def test_the_front_page_is_served(way: Way) -> None:
    page = way("GET", "/", {"Accept": "text/html"})
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert json.loads(way("GET", "/").body)["version"] == __version__
    assert way("GET", "/favicon.ico").status == 204
    assert json.loads(way("GET", "/v1/health").body)["version"] == __version__
