"""The control surface with narrow tokens, on the server, the HTTP API and the function URL."""

from __future__ import annotations

import json

import pytest

from tests.authorization.conftest import ADMIN
from tests.authorization.test_matrix import TEXT
from tests.authorization.tokens import bearer
from tests.authorization.ways import Way

STREAM = "/v1/stream/control/user-1/run"
LIST = "/v1/streams?prefix=control/user-1/"


@pytest.fixture(autouse=True)
def stream(way: Way) -> None:
    assert way("PUT", STREAM, TEXT | bearer(ADMIN), b"x").status in {200, 201, 409}


@pytest.mark.parametrize(
    ("path", "scope", "status"),
    [
        (LIST, "read:v1", 200),
        (LIST, "read:v1/control/*", 200),
        (LIST, "read:v1/control/user-2/*", 404),
        (LIST, "write:v1 manage:v1", 404),
        ("/v1/streams", "read:v1/control/*", 404),
        ("/v1/streams", "read:v1", 200),
        ("/v1/buckets", "read:*", 200),
        ("/v1/buckets", "read:v1 manage:*", 404),
        (f"/v1/stats?stream={STREAM}", "read:v1/control/user-1/run", 200),
        (f"/v1/stats?stream={STREAM}", "write:v1", 404),
        (f"/v1/stats?stream={STREAM}", "read:other", 404),
        (f"/v1/start?last=1&stream={STREAM}", "read:v1/control/user-1/run", 200),
        (f"/v1/start?last=1&stream={STREAM}", "write:v1", 404),
        (f"/v1/times?offset={1:016}&stream={STREAM}", "read:v1/control/user-1/run", 200),
        (f"/v1/times?stream={STREAM}", "write:v1", 404),
        ("/v1/stats", "read:*", 400),
        ("/v1/stats?stream=x", "read:*", 400),
    ],
)
def test_a_scope_allows_its_requests_and_no_others(way: Way, path: str, scope: str, status: int) -> None:
    answer = way("GET", path, bearer(scope))
    assert answer.status == status
    assert answer.headers["cache-control"] == "no-store"
    if status == 404:
        assert "token" in answer.error or "takes read:" in answer.error
    head = way("HEAD", path, bearer(scope))
    assert (head.status, head.headers, head.body) == (status, answer.headers, b"")
    assert way("GET", path).status == way("HEAD", path).status == 401


def test_times_are_kept_by_the_readers_own_cache_alone(way: Way) -> None:
    """As the page is whose times they are."""
    path = f"/v1/times?stream={STREAM}"
    answer = way("GET", path, bearer("read:v1/control/user-1/run"))
    assert (answer.status, answer.headers["cache-control"]) == (200, "private, no-cache")
    again = way("GET", path, bearer("read:v1/control/user-1/run") | {"If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_me_returns_the_scopes_of_the_token(way: Way) -> None:
    scope = "read:v1/a%20b/* write:agents manage:v1/exact other:words"
    answer = way("GET", "/v1/me", bearer(scope))
    assert json.loads(answer.body) == {
        "authorization": True,
        "token": True,
        "scopes": ["read:v1/a%20b/*", "write:agents", "manage:v1/exact"],
    }


def test_me_without_a_token_returns_no_scopes(way: Way) -> None:
    answer = way("GET", "/v1/me")
    assert json.loads(answer.body) == {"authorization": True, "token": False, "scopes": []}


def test_an_invalid_token_gets_401(way: Way) -> None:
    assert way("GET", "/v1/me", {"Authorization": "Bearer nonsense"}).status == 401


@pytest.mark.parametrize("path", ["/v1/console", "/v1/docs", "/v1/console/nothing.js"])
def test_the_consoles_pages_need_no_token(way: Way, path: str) -> None:
    """They contain nothing of any stream."""
    answer = way("GET", path)
    assert answer.status == (404 if "nothing" in path else 200)
    assert "private" not in answer.headers["cache-control"]
