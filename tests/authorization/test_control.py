"""The control surface under narrow tokens, on every way in."""

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
        (f"/v1/forks?stream={STREAM}", "read:v1/control/user-1/run", 200),
        (f"/v1/forks?stream={STREAM}", "write:v1", 404),
        ("/v1/stats", "read:*", 400),
        ("/v1/stats?stream=x", "read:*", 400),
    ],
)
def test_what_a_scope_allows(way: Way, path: str, scope: str, status: int) -> None:
    answer = way("GET", path, bearer(scope))
    assert answer.status == status
    assert answer.headers["cache-control"] == "no-store"
    if status == 404:
        assert "token" in answer.error or "takes read:" in answer.error
    head = way("HEAD", path, bearer(scope))
    assert (head.status, head.headers, head.body) == (status, answer.headers, b"")
    assert way("GET", path).status == way("HEAD", path).status == 401


def test_forks_that_a_token_may_not_read_are_not_named(way: Way) -> None:
    forked = {"Stream-Forked-From": STREAM}
    for name in ("user-1/run-fork", "user-2/fork"):
        made = way("PUT", f"/v1/stream/control/{name}", bearer("read:v1 write:v1") | forked)
        assert made.status in {200, 201}
    listed = json.loads(way("GET", f"/v1/forks?stream={STREAM}", bearer("read:v1/control/user-1/*")).body)
    assert [each["stream"] for each in listed["forks"]] == ["/v1/stream/control/user-1/run-fork"]
    assert (listed["fork_count"], listed["complete"]) == (2, False)


def test_a_token_is_told_what_it_may_do(way: Way) -> None:
    scope = "read:v1/a%20b/* write:agents manage:v1/exact other:words"
    answer = way("GET", "/v1/me", bearer(scope))
    assert json.loads(answer.body) == {
        "authorization": True,
        "token": True,
        "scopes": ["read:v1/a%20b/*", "write:agents", "manage:v1/exact"],
    }


def test_nobody_is_told_that_nothing_is_allowed(way: Way) -> None:
    answer = way("GET", "/v1/me")
    assert json.loads(answer.body) == {"authorization": True, "token": False, "scopes": []}


def test_a_token_that_is_not_valid_is_refused(way: Way) -> None:
    assert way("GET", "/v1/me", {"Authorization": "Bearer nonsense"}).status == 401


@pytest.mark.parametrize("path", ["/v1/console", "/v1/docs", "/v1/console/nothing.js"])
def test_pages_are_for_everybody(way: Way, path: str) -> None:
    """They hold nothing of any stream."""
    answer = way("GET", path)
    assert answer.status == (404 if "nothing" in path else 200)
    assert "private" not in answer.headers["cache-control"]
