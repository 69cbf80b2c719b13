"""Origins behind a distribution: whoever does not come through it is sent away, on every path and way in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.authorization.tokens import bearer
from tests.authorization.ways import WAYS, Way
from tidemark.http.security.origin_secret import HEADER
from tidemark.settings import InvalidSetting, Settings

WORD = "bb04cf3fc93f5becf7ae78e4f103f107f4b978b26c2c1fa78905fc0d0cd536cb"
#: As CloudFormation makes one, in its older form.
OLDER_WORD = "BqRBNgwWUEjDuvIAiLvc39GmFIY%3D"
THROUGH = {HEADER: WORD}
ADMIN = "read:* write:* manage:*"
TEXT = {"Content-Type": "text/plain"}
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH")
PATHS = (
    "/v1/stream/edge/a",
    "/v1/stream/edge/a?offset=-1&live=long-poll",
    "/v1/stream/edge/a?offset=-1&live=sse",
    "/agents",
    "/agents/streams",
    "/agents/run",
    "/agents/run/snapshot/0000000000000000",
    "/agents/run/bootstrap",
    "/v1/metrics",
    "/v1/nothing",
    "/",
)


@pytest.fixture(scope="module", params=list(WAYS))
def way(request: pytest.FixtureRequest, environment: dict[str, str]) -> Iterator[Way]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_SECRET", WORD)
        with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
            yield opened


@pytest.mark.parametrize(
    "said", [{}, {HEADER: ""}, {HEADER: WORD[:-1]}, {HEADER: WORD.upper()}, {HEADER: "é"}]
)
@pytest.mark.parametrize("path", PATHS)
def test_nobody_comes_past_the_edge(way: Way, path: str, said: dict[str, str]) -> None:
    """Not even who may do everything: it is the cache and the limits in front that are gone round."""
    for method in METHODS:
        answer = way(method, path, said | bearer(ADMIN) | TEXT)
        assert answer.status == 403, (method, answer)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["access-control-allow-origin"] == "*", "a browser's script may see why"
        assert WORD not in str(answer)
        if method != "HEAD":
            assert json.loads(answer.body) == {
                "error": "This address is not for clients: use the distribution's"
            }


def test_nothing_is_done_for_those_who_are_sent_away(way: Way) -> None:
    path = "/v1/stream/edge/refused"
    assert way("PUT", path, bearer(ADMIN) | TEXT, b"x").status == 403
    assert way("HEAD", path, THROUGH | bearer(ADMIN)).status == 404


def test_through_the_edge_everything_is_as_ever(way: Way, name: str) -> None:
    """Authorization included: the word says where a request came through, not whose it is."""
    path = f"/v1/stream/{name}"
    assert way("PUT", path, THROUGH | TEXT).status == 401
    assert way("PUT", path, THROUGH | TEXT | bearer("read:v1")).status == 403
    assert way("PUT", path, THROUGH | TEXT | bearer(ADMIN), b"x").status == 201
    assert way("GET", path, THROUGH | bearer(ADMIN)).body == b"x"
    assert way("OPTIONS", path, THROUGH).status == 204


def test_what_says_nothing_of_streams_is_open(way: Way) -> None:
    """The adapter of the live function asks whether it is up, and has no word to say."""
    for path in ("/v1/health", "/v1/openapi.json"):
        assert way("GET", path).status == 200


def test_new_streams_have_the_address_that_the_client_knows(way: Way, name: str) -> None:
    """Origins see a name of their own as Host; the edge says by which the client came."""
    for path, method in ((f"/v1/stream/{name}/ä b", "PUT"), (f"/v1/stream/{name}/plain", "PUT")):
        asked = THROUGH | TEXT | bearer(ADMIN) | {"X-Tidemark-Host": "streams.example.org"}
        encoded = path.replace("ä b", "%C3%A4%20b")
        answer = way(method, encoded, asked | {"X-Forwarded-Proto": "https"})
        assert answer.status == 201
        assert answer.headers["location"].endswith(f"://streams.example.org{encoded}")


def test_a_path_that_cannot_be_read_is_sent_away_as_well(environment: dict[str, str]) -> None:
    """Bytes that are no UTF-8 reach us where a client's request is passed on as it is."""
    broken = "/v1/stream/\udcff\udcfe"
    with WAYS["local"](Settings.from_environment(os.environ | {"EDGE_SECRET": ""})) as way:
        assert way("GET", broken, bearer(ADMIN)).status == 400
        assert way("GET", broken).status == 401
    with WAYS["local"](Settings.from_environment(os.environ | {"EDGE_SECRET": WORD})) as way:
        assert way("GET", broken, bearer(ADMIN)).status == 403
        assert way("GET", broken, THROUGH | bearer(ADMIN)).status == 400


def test_a_word_of_the_older_form_is_one(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_SECRET", OLDER_WORD)
    with WAYS["HTTP API"](Settings.from_environment(os.environ)) as way:
        assert way("OPTIONS", "/v1/stream/a", {HEADER: OLDER_WORD}).status == 204
        assert way("OPTIONS", "/v1/stream/a", {HEADER: "BqRBNgwWUEjDuvIAiLvc39GmFIY="}).status == 403


def test_the_word_is_not_shown_and_not_said_twice() -> None:
    settings = Settings.from_environment({"EDGE_SECRET": WORD})
    assert settings.authorization.is_edge_only
    assert WORD not in repr(settings)
    with pytest.raises(InvalidSetting, match="EDGE_SECRET_NAME") as refused:
        Settings.from_environment({"EDGE_SECRET": WORD, "EDGE_SECRET_NAME": "/tidemark/edge"})
    assert WORD not in str(refused.value)
