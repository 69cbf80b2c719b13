"""Every operation with every combination of rights, on the server, the HTTP API and the function URL."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from tests.authorization.tokens import bearer
from tests.authorization.ways import Answer, Way

RIGHTS = ("read", "write", "manage")
COMBINATIONS = [rights for size in range(4) for rights in itertools.combinations(RIGHTS, size)]
TEXT = {"Content-Type": "text/plain"}


@dataclass(frozen=True)
class Operation:
    method: str
    #: Any of these is enough.
    rights: frozenset[str]
    succeeds: int
    query: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: Whether it is done to a stream that is there already.
    exists: bool = True


OPERATIONS = {
    "metadata": Operation("HEAD", frozenset({"read"}), 200),
    "catch-up": Operation("GET", frozenset({"read"}), 200),
    "from now": Operation("GET", frozenset({"read"}), 200, "?offset=now"),
    "long-poll": Operation("GET", frozenset({"read"}), 204, "?offset=now&live=long-poll"),
    "event stream": Operation("GET", frozenset({"read"}), 200, "?offset=-1&live=sse"),
    "append": Operation("POST", frozenset({"write"}), 204, headers=TEXT, body=b"another\n"),
    "close": Operation("POST", frozenset({"write"}), 204, headers={"Stream-Closed": "true"}),
    "create": Operation("PUT", frozenset({"write", "manage"}), 201, headers=TEXT, exists=False),
    "create again": Operation("PUT", frozenset({"write", "manage"}), 200, headers=TEXT),
    "delete": Operation("DELETE", frozenset({"manage"}), 204),
}


def do(way: Way, operation: Operation, name: str, authorization: dict[str, str]) -> Answer:
    target = f"/v1/stream/{name}{operation.query}"
    return way(operation.method, target, operation.headers | authorization, operation.body)


@pytest.mark.parametrize("rights", COMBINATIONS, ids=lambda rights: "+".join(rights) or "nothing")
@pytest.mark.parametrize("title", OPERATIONS)
def test_an_operation_requires_its_right(way: Way, stream: str, title: str, rights: tuple[str, ...]) -> None:
    """With it the operation succeeds. A token that may read gets 403; every other one gets 404."""
    operation = OPERATIONS[title]
    name = stream if operation.exists else f"{stream}/new"
    scope = " ".join(f"{right}:v1/{name}" for right in rights)
    answer = do(way, operation, name, bearer(scope))
    if operation.rights & set(rights):
        assert answer.status == operation.succeeds, answer
    elif "read" in rights:
        assert answer.status == 403, answer
        assert unchanged(way, stream)
    else:
        assert answer.status == 404, answer
        assert unchanged(way, stream)


def unchanged(way: Way, stream: str) -> bool:
    answer = way("GET", f"/v1/stream/{stream}?offset=-1", bearer(f"read:v1/{stream}"))
    missing = way("HEAD", f"/v1/stream/{stream}/new", bearer(f"read:v1/{stream}/new"))
    return (
        answer.body == b"the first line\n" and "stream-closed" not in answer.headers and missing.status == 404
    )


@pytest.mark.parametrize("title", OPERATIONS)
def test_a_private_stream_gets_the_response_of_a_missing_one(way: Way, stream: str, title: str) -> None:
    """Header for header."""
    operation = OPERATIONS[title]
    authorization = bearer("read:v1/somewhere/else write:other/* manage:v1/auth")
    private = do(way, operation, stream, authorization)
    missing = do(way, operation, f"{stream}/never", authorization)
    assert private == missing
    assert private.status == 404
    # And so does who may read, where nothing is there: what is concealed looks like what is true.
    if operation.method in {"GET", "HEAD"}:
        truly = do(way, operation, f"{stream}/never", bearer(f"read:v1/{stream}/never"))
        assert truly == missing


@pytest.mark.parametrize("title", OPERATIONS)
def test_without_a_token_a_private_and_a_missing_stream_get_the_same_401(
    way: Way, stream: str, title: str
) -> None:
    operation = OPERATIONS[title]
    private = do(way, operation, stream, {})
    missing = do(way, operation, f"{stream}/never", {})
    assert private == missing
    assert private.status == 401
    assert private.headers["www-authenticate"] == 'Bearer realm="tidemark"'
    assert private.headers["cache-control"] == "no-store"
    assert unchanged(way, stream)


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ("read:*", 200),
        ("read:v1", 200),
        ("read:v1/*", 200),
        ("read:v1/auth/*", 200),
        ("read:v1/aut*", 200),
        ("write:v1 read:v1/auth/*", 200),
        ("openid read:v1/* profile", 200),
        (["openid", "read:v1/*"], 200),
        ("read:v1/auth", 404),
        ("read:v1/other/*", 404),
        ("read:v2/*", 404),
        ("read:%2A", 404),
        ("read:v1/", 404),
        ("read:", 404),
        ("read", 404),
        (":v1", 404),
        ("READ:v1", 404),
        ("read:*/auth/*", 404),
        ("read:v1/a*h/*", 404),
        ("read:v1/%61uth/*", 200),
        ("read:v1/auth/%2A", 404),
        ("", 404),
        (None, 404),
        (17, 404),
        ([["read:*"], 1, None], 404),
        ({"read:*": True}, 404),
    ],
    ids=str,
)
def test_a_scope_names_everything_a_bucket_a_prefix_or_a_stream(
    way: Way, stream: str, scope: object, status: int
) -> None:
    assert way("GET", f"/v1/stream/{stream}", bearer(scope)).status == status


@pytest.mark.parametrize(
    ("target", "source", "status"),
    [
        ("write", ["read", "write"], 201),
        ("write", ["read", "manage"], 201),
        ("manage", ["read", "fork"], 201),
        # A fork would keep the owner from using the name again.
        ("write", ["read"], 403),
        ("read", ["read", "write"], 403),
        ("write", ["write"], 404),
        ("write", ["fork"], 404),
        ("write", [], 404),
    ],
    ids=str,
)
def test_a_fork_requires_read_and_a_right_to_hold_its_source(
    way: Way, stream: str, target: str, source: list[str], status: int
) -> None:
    scope = " ".join([f"{target}:v1/{stream}/fork", *(f"{right}:v1/{stream}" for right in source)])
    fork = {"Stream-Forked-From": f"/v1/stream/{stream}"}
    answer = way("PUT", f"/v1/stream/{stream}/fork", fork | bearer(scope))
    assert answer.status == status
    if status == 404:
        # Readable, and truly missing: the words are the same.
        never = {"Stream-Forked-From": f"/v1/stream/{stream}/never"}
        scope += f" read:v1/{stream}/never fork:v1/{stream}/never"
        assert way("PUT", f"/v1/stream/{stream}/fork", never | bearer(scope)) == answer


@pytest.mark.parametrize(
    ("method", "path", "scope", "status"),
    [
        ("GET", "/v1/health", "", 200),
        ("OPTIONS", "/v1/stream/x", "", 204),
        ("PATCH", "/v1/stream/x", "", 404),
        ("PATCH", "/v1/stream/x", "manage:v1/x", 405),
        ("GET", "/", "read:*", 200),
        ("GET", "/v1", "read:*", 404),
        ("GET", "/v1/stream/", "read:*", 400),
        ("GET", "/v1/stream/a/../b", "read:*", 400),
        ("GET", "/v1/stream/__ds/x", "read:*", 404),
        ("GET", "/v1/stream/__ds/x", "manage:*", 404),
        ("GET", "/v1/metrics", "read:v1", 404),
    ],
)
def test_other_paths_are_closed_except_health_and_preflight(
    way: Way, method: str, path: str, scope: str, status: int
) -> None:
    """A token does not open a path that does not exist."""
    assert way(method, path, bearer(scope)).status == status


def test_a_preflight_needs_no_token(way: Way) -> None:
    """Browsers send it without one, and it says nothing of any stream."""
    answer = way("OPTIONS", "/v1/stream/x", {"Origin": "https://app.example"})
    assert answer.status == 204
    assert "Authorization" in answer.headers["access-control-allow-headers"]


def test_a_right_covers_every_encoding_of_a_name(way: Way, stream: str) -> None:
    """One stream has one right, however its name is written."""
    encoded = stream.replace("a", "%61")
    assert way("GET", f"/v1/stream/{encoded}", bearer(f"read:v1/{stream}")).status == 200
    assert way("GET", f"/v1/stream/{encoded}", bearer("read:v1/other/*")).status == 404


def test_a_404_says_that_the_right_may_be_missing(way: Way, name: str) -> None:
    """The hint to create the stream with PUT would mislead a client whose PUT was refused."""
    path = f"/v1/stream/{name}"
    words = "Stream does not exist, or this token has no right to it"
    assert way("PUT", path, TEXT | bearer("write:elsewhere")).error == words
    assert way("GET", path, bearer("read:v1")).error == words
    assert way("PUT", path, TEXT | bearer("write:v1")).status == 201
    assert way("GET", path, bearer("read:elsewhere")).error == words
    words = "Bucket does not exist, or this token has no right to it"
    assert way("PUT", "/no-such-bucket", bearer("write:v1")).error == words
    assert way("GET", "/no-such-bucket", bearer("read:*")).error == words


def test_the_alias_requires_the_same_rights(way: Way, stream: str) -> None:
    alias = f"/v1/streams/{stream}"
    assert way("GET", alias).status == 401
    assert way("GET", alias, bearer("read:elsewhere")).status == 404
    assert way("POST", alias, TEXT | bearer(f"read:v1/{stream}"), b"x").status == 403
    assert way("GET", alias, bearer(f"read:v1/{stream}")).status == 200


def test_the_front_page_needs_no_token(way: Way) -> None:
    assert way("GET", "/").status == 200
    assert way("GET", "/favicon.ico").status == 204
