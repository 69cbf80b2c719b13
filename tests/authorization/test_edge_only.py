"""Origins behind CloudFront: a request without the origin secret is refused, on every path, at the HTTP API
and at a function URL."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from tests.answers import Answer
from tests.authorization.tokens import ADMIN, bearer
from tests.authorization.ways import WAYS, Way
from tests.stack.gateway import written_path
from tidemark.http.security.origin import HEADER, TYPE_HEADER
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER
from tidemark.settings import InvalidSetting, Settings

WORD = "bb04cf3fc93f5becf7ae78e4f103f107f4b978b26c2c1fa78905fc0d0cd536cb"
#: As CloudFormation makes one, in its older form.
OLDER_WORD = "BqRBNgwWUEjDuvIAiLvc39GmFIY%3D"
THROUGH = {HEADER: WORD}
VERSION = {EDGE_VERSION_HEADER: EDGE_VERSION}
TEXT = {"Content-Type": "text/plain"}
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH")
PATHS = (
    "/v1/stream/edge/a", "/v1/stream/edge/a?offset=-1&live=long-poll",
    "/v1/stream/edge/a?offset=-1&live=sse", "/agents", "/agents/streams", "/agents/run",
    "/agents/run/snapshot/0000000000000000", "/agents/run/bootstrap", "/v1/metrics", "/v1/nothing", "/",
)  # fmt: skip


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Way]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_SECRET", WORD)
        with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
            yield opened


@pytest.mark.parametrize(
    "said", [{}, VERSION, *({HEADER: word} for word in ("", WORD[:-1], WORD.upper(), "é"))]
)
def test_a_request_past_the_edge_gets_403(way: Way, said: dict[str, str]) -> None:
    """Even with a token for everything: it would bypass the cache and the limits of the edge."""
    for method, path in itertools.product(METHODS, PATHS):
        answer = way(method, path, said | bearer(ADMIN) | TEXT)
        assert answer.status == 403, (method, path, answer)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["access-control-allow-origin"] == "*", "a browser's script may see why"
        assert WORD not in str(answer)
        if method != "HEAD":
            assert json.loads(answer.body) == {
                "error": "This address accepts only requests through CloudFront: "
                "use the distribution's address"
            }
    assert way("HEAD", PATHS[0], THROUGH | bearer(ADMIN)).status == 404, "nothing is changed"


def test_a_request_through_the_edge_is_authorized_as_usual(way: Way, name: str) -> None:
    """The origin secret says where a request came through, not whose it is."""
    path = f"/v1/stream/{name}"
    assert way("PUT", path, THROUGH | TEXT).status == 401
    assert way("PUT", path, THROUGH | TEXT | bearer("read:v1")).status == 403
    assert way("PUT", path, THROUGH | TEXT | bearer(ADMIN), b"x").status == 201
    assert way("GET", path, THROUGH | bearer(ADMIN)).body == b"x"
    assert way("OPTIONS", path, THROUGH).status == 204


def test_paths_without_streams_need_no_origin_secret(way: Way) -> None:
    """The adapter of the live function checks the health path, and has no secret."""
    for path in ("/v1/health", "/v1/openapi.json"):
        assert way("GET", path).status == 200


def through_the_edge(
    way: Way, method: str, path: str, headers: Mapping[str, str] = MappingProxyType({}), body: bytes = b""
) -> Answer:
    """The edge writes the path in characters that no origin changes."""
    return way(method, written(path), {**THROUGH, **VERSION, **bearer(ADMIN), **headers}, body)


def written(path: str) -> str:
    return written_path(path.encode()).decode()


def test_location_has_the_host_that_the_client_used(way: Way, name: str) -> None:
    """An origin's Host is its own name; the edge sends the client's in a header."""
    for path in (f"/v1/stream/{name}/%C3%A4%20b", f"/v1/stream/{name}/plain"):
        asked = TEXT | {"X-Tidemark-Host": "streams.example.org", "X-Forwarded-Proto": "https"}
        answer = through_the_edge(way, "PUT", path, asked)
        assert answer.status == 201
        assert answer.headers["location"].endswith(f"://streams.example.org{path}")


def test_what_a_token_may_not_read_is_not_told(way: Way, name: str) -> None:
    """Neither the source of a fork by its stats, nor the tail by a 412."""
    source, fork = f"/v1/stream/{name}/source", f"/v1/stream/{name}/fork"
    assert way("PUT", source, THROUGH | TEXT | bearer(ADMIN), b"x").status == 201
    made = way("PUT", fork, THROUGH | TEXT | bearer(ADMIN) | {"Stream-Forked-From": source})
    assert made.status == 201
    for scope, told in ((f"read:v1/{name}/fork", False), (ADMIN, True)):
        stats = json.loads(way("GET", f"/v1/stats?stream={fork}", THROUGH | bearer(scope)).body)
        assert (stats.get("forked_from") is not None) == told
    for scope, told in ((f"write:v1/{name}/fork", False), (ADMIN, True)):
        guess = THROUGH | TEXT | bearer(scope) | {"If-Match": '"guess"'}
        refused = way("POST", fork, guess, b"y")
        assert refused.status == 412, refused
        assert ("etag" in refused.headers, "stream-next-offset" in refused.headers) == (told, told)
        assert (made.headers["etag"].strip('"') in refused.error) == told


BYTES = {"Content-Type": "application/octet-stream", TYPE_HEADER: "application/json"}


def test_the_content_type_that_the_edge_sends_is_used(way: Way, name: str) -> None:
    path = f"/v1/stream/{name}"
    created = through_the_edge(way, "PUT", path, BYTES, b'["a"]')
    assert created.headers["content-type"] == "application/json"
    for body, status in ((b'["b"', 400), (b'["b"]', 204)):
        assert through_the_edge(way, "POST", path, BYTES, body).status == status
    assert through_the_edge(way, "GET", path).body == b'["a","b"]'
    two_types = BYTES | {TYPE_HEADER: "application/json,text/plain"}
    assert through_the_edge(way, "POST", path, two_types, b"[1]").status == 400


@pytest.mark.parametrize("version", [EDGE_VERSION, "3"])
@pytest.mark.parametrize("only", ["true", "false"])
def test_writes_through_the_edge_of_another_release(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, version: str, only: str
) -> None:
    """A JSON stream is one whether or not the secret is required, and while the secret is changed. Functions
    refuse the headers of a later edge."""
    monkeypatch.setenv("EDGE_SECRET", WORD)
    monkeypatch.setenv("EDGE_ONLY", only)
    path = f"/v1/stream/{name}%25/~.%2B+%3F"
    headers = BYTES | {EDGE_VERSION_HEADER: version, "X-Tidemark-Host": "streams.example.org"}
    with WAYS["HTTP API"](Settings.from_environment(os.environ)) as way:
        for word in (WORD, OLDER_WORD):
            created = through_the_edge(way, "PUT", path, headers | {HEADER: word}, b'["a"]')
            if word != WORD and only == "true":
                assert created.status == 403
            elif version != EDGE_VERSION:
                assert (created.status, created.headers["retry-after"]) == (503, "5")
            else:
                assert created.status == (201 if word == WORD else 200), created
                assert created.headers["content-type"] == "application/json"
                assert created.headers.get("location", "").endswith(
                    f"://streams.example.org{path}" if word == WORD else ""
                )


#: The part after a stream's name, or a whole path; and the status of its creation.
WRITTEN = {
    "/a%zz": 400, "/%FF": 400, "/a%2Fb": 400, "/../b": 400, "/%2E%2E/b": 400, "/a%00": 400,
    "/%7E~": 201, "/100%25": 201, "/a%3Fb+.c": 201, "%3Fb": 201, "%2525": 201, "%23c": 201,
    "/%761/stream/encoded": 404, "/v1%2Fstream%2Fencoded": 404,
}  # fmt: skip


def test_a_path_that_the_edge_has_written_is_the_one_that_was_sent(way: Way, name: str) -> None:
    """As if it had come by itself. An HTTP API decodes the path and cuts it at a question mark, so it would
    make `a` of `a%3Fb`."""
    short = f"/v1/stream/{name}"
    assert through_the_edge(way, "PUT", short, TEXT, b"short").status == 201
    for part, status in WRITTEN.items():
        path = part if status == 404 else short + part
        created = through_the_edge(way, "PUT", path, TEXT, b"a")
        appended = through_the_edge(way, "POST", path, TEXT, b"b")
        read = through_the_edge(way, "GET", path)
        if status == 201:
            assert (created.status, appended.status, read.body) == (201, 204, b"ab")
            assert created.headers["location"].endswith(path)
            assert through_the_edge(way, "DELETE", path).status == 204
            assert through_the_edge(way, "GET", path).status == 404
        else:
            assert {created.status, appended.status, read.status} == {status}, (path, created, appended)
    assert through_the_edge(way, "GET", short).body == b"short"


def test_a_token_needs_the_right_for_the_path_that_the_edge_sends(way: Way, name: str) -> None:
    """Whatever the gateway leaves of the path."""
    path = f"/v1/stream/{name}%3Fb"
    assert through_the_edge(way, "PUT", path, TEXT).status == 201
    allowed, other = bearer(f"read:v1/{name}?b"), bearer(f"read:v1/{name}")
    assert through_the_edge(way, "GET", path, allowed).status == 200
    assert through_the_edge(way, "GET", path, other).status in {403, 404}


def test_a_path_that_is_not_utf8_gets_403_without_the_origin_secret(environment: dict[str, str]) -> None:
    """Such bytes reach the application if a gateway passes the path on as it is."""
    broken = "/v1/stream/\udcff\udcfe"
    with WAYS["local"](Settings.from_environment(os.environ | {"EDGE_SECRET": ""})) as way:
        assert way("GET", broken, bearer(ADMIN)).status == 400
        assert way("GET", broken).status == 401
    with WAYS["local"](Settings.from_environment(os.environ | {"EDGE_SECRET": WORD})) as way:
        assert way("GET", broken, bearer(ADMIN)).status == 403
        assert way("GET", broken, THROUGH | bearer(ADMIN)).status == 400


def test_an_origin_secret_of_the_older_form_is_accepted(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_SECRET", OLDER_WORD)
    with WAYS["HTTP API"](Settings.from_environment(os.environ)) as way:
        assert way("OPTIONS", "/v1/stream/a", {HEADER: OLDER_WORD}).status == 204
        assert way("OPTIONS", "/v1/stream/a", {HEADER: "BqRBNgwWUEjDuvIAiLvc39GmFIY="}).status == 403


def test_the_origin_secret_is_not_shown_and_is_set_by_one_variable() -> None:
    settings = Settings.from_environment({"EDGE_SECRET": WORD})
    assert (settings.authorization.has_edge, settings.authorization.edge_only) == (True, True)
    assert WORD not in repr(settings)
    with pytest.raises(InvalidSetting, match="EDGE_SECRET_NAME") as refused:
        Settings.from_environment({"EDGE_SECRET": WORD, "EDGE_SECRET_NAME": "/tidemark/edge"})
    assert WORD not in str(refused.value)
