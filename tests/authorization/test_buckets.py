"""The bucket surface: every operation with every combination of rights, on the server, the HTTP API and the
function URL."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
def make_bucket(way: Way) -> Callable[[], str]:
    """Each has a stream, and the stream has a snapshot."""

    def make() -> str:
        name = f"bucket-{next(_serial)}"
        assert way("PUT", f"/{name}", bearer(ADMIN)).status == 201
        assert way("PUT", f"/{name}/run", TEXT | bearer(ADMIN), b"12345").status == 201
        snapshot = f"/{name}/run/snapshot/{LATEST}"
        assert way("PUT", snapshot, TEXT | bearer(ADMIN), b"folded").status == 204
        return name

    return make


@pytest.fixture
def bucket(make_bucket: Callable[[], str]) -> str:
    return make_bucket()


def do(way: Way, operation: Operation, base: str, authorization: dict[str, str]) -> Answer:
    return way(operation.method, f"{base}{operation.path}", operation.headers | authorization, operation.body)


def check(operation: Operation, rights: tuple[str, ...], answer: Answer) -> None:
    if operation.rights & set(rights):
        assert answer.status == operation.succeeds, (rights, answer)
        assert "public" not in answer.headers.get("cache-control", "")
    else:
        assert answer.status == (403 if "read" in rights else 404), (rights, answer)


@pytest.mark.parametrize("title", ON_A_STREAM)
def test_an_operation_on_a_stream_in_a_bucket_requires_its_right(
    way: Way, make_bucket: Callable[[], str], title: str
) -> None:
    operation = ON_A_STREAM[title]
    for rights in COMBINATIONS:
        bucket = make_bucket()
        scope = " ".join(f"{right}:{bucket}/run*" for right in rights)
        check(operation, rights, do(way, operation, f"/{bucket}/run", bearer(scope)))


@pytest.mark.parametrize("title", ON_A_BUCKET)
def test_an_operation_on_a_bucket_requires_its_right(way: Way, bucket: str, title: str) -> None:
    """Of those that succeed, none changes the bucket."""
    operation = ON_A_BUCKET[title]
    for rights in COMBINATIONS:
        scope = " ".join(f"{right}:{bucket}" for right in rights)
        check(operation, rights, do(way, operation, f"/{bucket}", bearer(scope)))


def test_a_private_stream_gets_the_response_of_a_missing_stream_or_bucket(way: Way, bucket: str) -> None:
    """Nor is its bucket there."""
    authorization = bearer("read:v1 manage:elsewhere write:elsewhere")
    for title, operation in ON_A_STREAM.items():
        private = do(way, operation, f"/{bucket}/run", authorization)
        assert private == do(way, operation, f"/{bucket}/never", authorization), title
        assert private == do(way, operation, f"/never-{bucket}/run", authorization), title
        assert private.status == 404, title


def test_a_private_bucket_gets_the_response_of_a_missing_one(way: Way, bucket: str) -> None:
    authorization = bearer("read:v1 manage:elsewhere")
    missing = f"never-{bucket}"
    for title, operation in ON_A_BUCKET.items():
        private = do(way, operation, f"/{bucket}", authorization)
        assert private == do(way, operation, f"/{missing}", authorization), title
        assert private.status == 404, title
        if operation.rights == READ:
            assert private == do(way, operation, f"/{missing}", bearer(f"read:{missing}")), title


def test_without_a_token_every_operation_gets_401(way: Way, bucket: str) -> None:
    for operations, base in ((ON_A_STREAM, f"/{bucket}/run"), (ON_A_BUCKET, f"/{bucket}")):
        for title, operation in operations.items():
            assert do(way, operation, base, {}).status == 401, title


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
    made = way("PUT", f"/{bucket}/fork", fork | bearer(f"{scope} read:{bucket}/run fork:{bucket}/run"))
    assert made.status in {201, 410}, "its beginning may be trimmed, but it was looked at"
