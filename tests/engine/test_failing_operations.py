"""Whatever operation of a request fails, and whoever hides the failure: the answer is true."""

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.answers import Answer
from tests.engine.serving import serving
from tidemark.engine.database import DatabaseOperation
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import Settings

Request = tuple[str, str, dict[str, str], bytes]

TEXT = {"Content-Type": "text/plain"}
A, B = "/v1/stream/a", "/v1/stream/b"


def request(method: str, target: str, body: bytes = b"", **more: str) -> Request:
    return method, target, TEXT | {name.replace("_", "-"): value for name, value in more.items()}, body


CREATE, APPEND = request("PUT", A), request("POST", A, b"x")
FORKED = (CREATE, APPEND, request("PUT", B, Stream_Forked_From=A))
BUCKET: tuple[Request, ...] = (("PUT", "/bucket", {}, b""), request("PUT", "/bucket/a"))
PRODUCED = request("POST", A, b"x", Producer_Id="p", Producer_Epoch="0", Producer_Seq="0")
#: What was done before, and then the request whose operations fail.
CASES: dict[str, tuple[Request, ...]] = {
    "create": (CREATE,),
    "create with a body": (request("PUT", A, b"x"),),
    "append": (CREATE, APPEND),
    "append and close": (CREATE, request("POST", A, b"xy", Stream_Closed="true")),
    "close": (request("PUT", A, b"xy"), request("POST", A, Stream_Closed="true")),
    "append with a producer": (CREATE, PRODUCED),
    "fork": FORKED,
    "delete": (CREATE, request("DELETE", A)),
    "delete a source": (*FORKED, request("DELETE", A)),
    "delete a fork": (*FORKED, request("DELETE", B)),
    "delete the last fork": (*FORKED, request("DELETE", A), request("DELETE", B)),
    "read a stream that lives on": (request("PUT", A, Stream_TTL="1"), request("GET", f"{A}?offset=-1")),
    "create in a bucket": BUCKET,
    "delete a bucket": (BUCKET[0], ("DELETE", "/bucket", {}, b"")),
    "publish a snapshot": (
        *BUCKET,
        request("POST", "/bucket/a", b"x"),
        request("PUT", "/bucket/a/snapshot/0000000000000001", b"y"),
    ),
}
SEEN = ("/v1/stream/a?offset=-1", "/v1/stream/b?offset=-1", "/bucket", "/bucket/a/bootstrap")


class Scene:
    """A system in memory, of whose operations one can fail behind its statements."""

    def __init__(self, folder: Path) -> None:
        self.system = EmbeddedSystem(Settings(pack_after_seconds=0), None, folder / "blobs")
        self._operate = self.system.database.operate
        self.failing = self.made = 0
        self.system.database.operate = self.operate  # type: ignore[method-assign]

    def operate(self, operation: DatabaseOperation[Any], *, writes: bool) -> Any:
        self.made += 1
        fails = self.made == self.failing
        return self._operate(_broken(operation) if fails else operation, writes=writes)

    def rows(self) -> list[tuple[Any, ...]]:
        """Without the janitor's entries, which may be there for nothing."""

        query = "SELECT pk, sk, item FROM items WHERE pk NOT LIKE 'due/%' ORDER BY pk, sk"
        found: list[tuple[Any, ...]] = self._operate(lambda db: db.execute(query).fetchall(), writes=False)
        return found


def _broken(operation: DatabaseOperation[Any]) -> DatabaseOperation[Any]:
    def fail(db: sqlite3.Connection) -> None:
        operation(db)
        db.execute("SELECT * FROM pages_that_cannot_be_read")

    return fail


def outcome(folder: Path, case: tuple[Request, ...], failing: int) -> tuple[Answer, list[object], bool, bool]:
    """The answer, what the world looks like then, whether that is as before, and whether anything failed."""
    scene = Scene(folder)
    with serving(scene.system) as door:
        for each in case[:-1]:
            assert door(*each).status < 300
        before = scene.rows()
        scene.made, scene.failing = 0, failing
        answer = door(*case[-1])
        has_failed = scene.made >= scene.failing > 0
        scene.failing = 0
        rows = scene.rows()
        seen = [(found.status, found.body) for found in map(door.get, SEEN)]
        return answer, [len(rows), *seen], rows == before, has_failed


@pytest.mark.parametrize("name", CASES)
def test_whichever_operation_fails_the_answer_is_true(name: str, tmp_path: Path) -> None:
    answer, whole, *_ = outcome(tmp_path, CASES[name], 0)
    assert answer.status < 300
    for failing in count(1):
        answer, world, is_unchanged, has_failed = outcome(tmp_path, CASES[name], failing)
        if not has_failed:
            break
        assert answer.status < 300 or answer.status == 503, (failing, answer)
        assert world == whole if answer.status < 300 else is_unchanged, (failing, answer)
    assert failing > 1
