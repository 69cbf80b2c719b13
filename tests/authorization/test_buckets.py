"""The bucket surface: every operation with every combination of rights, on the server, the HTTP API and the
function URL."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from tests.authorization.conftest import ADMIN
from tests.authorization.test_matrix import COMBINATIONS, TEXT
from tests.authorization.tokens import bearer
from tests.authorization.ways import Answer, Way

_serial = itertools.count(1)
LATEST = f"{5:016d}"
FIRST = "0" * 16


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    rights: frozenset[str]
    succeeds: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


READ, WRITE, MANAGE = frozenset({"read"}), frozenset({"write"}), frozenset({"manage"})
ON_A_STREAM = {
    "metadata": Operation("HEAD", "", READ, 200),
    "read": Operation("GET", f"?offset={LATEST}", READ, 200),
    "events": Operation("GET", f"?offset={LATEST}&live=sse", READ, 200),
    "append": Operation("POST", "", WRITE, 204, TEXT, b"more"),
    "create": Operation("PUT", "-new", WRITE | MANAGE, 201, TEXT),
    "delete": Operation("DELETE", "", MANAGE, 204),
    "latest snapshot": Operation("GET", "/snapshot", READ, 307),
    "latest snapshot's head": Operation("HEAD", "/snapshot", READ, 307),
    "snapshot": Operation("GET", f"/snapshot/{LATEST}", READ, 200),
    "snapshot's head": Operation("HEAD", f"/snapshot/{LATEST}", READ, 200),
    "publish": Operation("PUT", f"/snapshot/{LATEST}", MANAGE, 204, TEXT, b"folded"),
    "upload": Operation("POST", f"/snapshot/{LATEST}/upload", MANAGE, 201),
    "delete a snapshot": Operation("DELETE", f"/snapshot/{LATEST}", MANAGE, 409),
    "bootstrap": Operation("GET", "/bootstrap", READ, 200),
}
ON_A_BUCKET = {
    "describe": Operation("GET", "", READ, 200),
    "head": Operation("HEAD", "", READ, 200),
    "list": Operation("GET", "/streams", READ, 200),
    "create again": Operation("PUT", "", MANAGE, 409),
    "delete": Operation("DELETE", "", MANAGE, 409),
}


@pytest.fixture
def bucket(way: Way) -> str:
    """It has a stream, and the stream has a snapshot."""
    name = f"bucket-{next(_serial)}"
    for method, path, status in (
        ("PUT", f"/{name}", 201),
        ("PUT", f"/{name}/run", 201),
        ("PUT", f"/{name}/run/snapshot/{LATEST}", 204),
    ):
        body = b"12345" if path.endswith("/run") else b"" if path == f"/{name}" else b"folded"
        headers = bearer(ADMIN) if path == f"/{name}" else TEXT | bearer(ADMIN)
        assert way(method, path, headers, body).status == status
    return name


def do(way: Way, operation: Operation, base: str, authorization: dict[str, str]) -> Answer:
    return way(operation.method, f"{base}{operation.path}", operation.headers | authorization, operation.body)


def check(operation: Operation, rights: tuple[str, ...], answer: Answer) -> None:
    if operation.rights & set(rights):
        assert answer.status == operation.succeeds, answer
        assert "public" not in answer.headers.get("cache-control", "")
    else:
        assert answer.status == (403 if "read" in rights else 404), answer


@pytest.mark.parametrize("rights", COMBINATIONS, ids=lambda rights: "+".join(rights) or "nothing")
@pytest.mark.parametrize("title", ON_A_STREAM)
def test_an_operation_on_a_stream_in_a_bucket_requires_its_right(
    way: Way, bucket: str, title: str, rights: tuple[str, ...]
) -> None:
    operation = ON_A_STREAM[title]
    scope = " ".join(f"{right}:{bucket}/run*" for right in rights)
    check(operation, rights, do(way, operation, f"/{bucket}/run", bearer(scope)))


@pytest.mark.parametrize("rights", COMBINATIONS, ids=lambda rights: "+".join(rights) or "nothing")
@pytest.mark.parametrize("title", ON_A_BUCKET)
def test_an_operation_on_a_bucket_requires_its_right(
    way: Way, bucket: str, title: str, rights: tuple[str, ...]
) -> None:
    operation = ON_A_BUCKET[title]
    scope = " ".join(f"{right}:{bucket}" for right in rights)
    check(operation, rights, do(way, operation, f"/{bucket}", bearer(scope)))


@pytest.mark.parametrize("title", ON_A_STREAM)
def test_a_private_stream_gets_the_response_of_a_missing_stream_or_bucket(
    way: Way, bucket: str, title: str
) -> None:
    """Nor is its bucket there."""
    operation = ON_A_STREAM[title]
    authorization = bearer("read:v1 manage:elsewhere write:elsewhere")
    private = do(way, operation, f"/{bucket}/run", authorization)
    assert private == do(way, operation, f"/{bucket}/never", authorization)
    assert private == do(way, operation, f"/never-{bucket}/run", authorization)
    assert private.status == 404


@pytest.mark.parametrize("title", ON_A_BUCKET)
def test_a_private_bucket_gets_the_response_of_a_missing_one(way: Way, bucket: str, title: str) -> None:
    operation = ON_A_BUCKET[title]
    authorization = bearer("read:v1 manage:elsewhere")
    private = do(way, operation, f"/{bucket}", authorization)
    assert private == do(way, operation, f"/never-{bucket}", authorization)
    assert private.status == 404
    if operation.rights == READ:
        missing = f"never-{bucket}"
        assert private == do(way, operation, f"/{missing}", bearer(f"read:{missing}"))


@pytest.mark.parametrize("title", [*ON_A_STREAM, *ON_A_BUCKET])
def test_without_a_token_every_operation_gets_401(way: Way, bucket: str, title: str) -> None:
    operation = (ON_A_STREAM | ON_A_BUCKET)[title]
    base = f"/{bucket}/run" if title in ON_A_STREAM else f"/{bucket}"
    assert do(way, operation, base, {}).status == 401


def test_a_right_to_a_prefix_lists_that_prefix(way: Way, bucket: str) -> None:
    """And no other stream of the bucket."""
    scope = bearer(f"read:{bucket}/ru*")
    assert way("GET", f"/{bucket}/streams?prefix=ru", scope).status == 200
    assert way("GET", f"/{bucket}/streams?prefix=run", scope).status == 200
    for query in ("", "?prefix=", "?prefix=r", "?prefix=x"):
        assert way("GET", f"/{bucket}/streams{query}", scope).status == 404
    assert way("GET", f"/{bucket}/streams?prefix=run", bearer(f"read:{bucket}/run")).status == 404
    assert way("GET", f"/{bucket}", scope).status == 404


def test_a_fork_of_a_stream_in_a_bucket_requires_read_on_the_source(way: Way, bucket: str) -> None:
    fork = {"Stream-Forked-From": f"/{bucket}/run"}
    scope = f"write:{bucket}/fork"
    assert way("PUT", f"/{bucket}/fork", fork | bearer(scope)).status == 404
    made = way("PUT", f"/{bucket}/fork", fork | bearer(f"{scope} read:{bucket}/run"))
    assert made.status in {201, 410}, "its beginning may be trimmed, but it was looked at"
