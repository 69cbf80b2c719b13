"""Whatever operation of a request fails, and whoever hides the failure: the answer is true."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from tests.http.asgi import Answer, Door
from tests.support import Process
from tidemark.engine.database import Operation
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import Settings

Request = tuple[str, str, dict[str, str], bytes]

TEXT = {"Content-Type": "text/plain"}
FORK = TEXT | {"Stream-Forked-From": "/v1/stream/a"}


def request(method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Request:
    return method, target, TEXT if headers is None else headers, body


CREATE = request("PUT", "/v1/stream/a")
FORKED = (CREATE, request("POST", "/v1/stream/a", body=b"x"), request("PUT", "/v1/stream/b", FORK))
BUCKET = (request("PUT", "/bucket", {}), request("PUT", "/bucket/a"))
#: What was done before, and then the request whose operations fail.
CASES: dict[str, tuple[Request, ...]] = {
    "create": (CREATE,),
    "create with a body": (request("PUT", "/v1/stream/a", body=b"x"),),
    "append": (CREATE, request("POST", "/v1/stream/a", body=b"x")),
    "append and close": (CREATE, request("POST", "/v1/stream/a", TEXT | {"Stream-Closed": "true"}, b"xy")),
    "close": (
        request("PUT", "/v1/stream/a", body=b"xy"),
        request("POST", "/v1/stream/a", {"Stream-Closed": "true"}),
    ),
    "append with a producer": (
        CREATE,
        request(
            "POST",
            "/v1/stream/a",
            TEXT | {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"},
            b"x",
        ),
    ),
    "fork": FORKED,
    "delete": (CREATE, request("DELETE", "/v1/stream/a")),
    "delete a source": (*FORKED, request("DELETE", "/v1/stream/a")),
    "delete a fork": (*FORKED, request("DELETE", "/v1/stream/b")),
    "delete the last fork": (
        *FORKED,
        request("DELETE", "/v1/stream/a"),
        request("DELETE", "/v1/stream/b"),
    ),
    "read a stream that lives on": (
        request("PUT", "/v1/stream/a", TEXT | {"Stream-TTL": "1"}),
        request("GET", "/v1/stream/a?offset=-1"),
    ),
    "create in a bucket": BUCKET,
    "delete a bucket": (BUCKET[0], request("DELETE", "/bucket", {})),
    "publish a snapshot": (
        *BUCKET,
        request("POST", "/bucket/a", body=b"x"),
        request("PUT", "/bucket/a/snapshot/0000000000000001", body=b"y"),
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

    def operate(self, operation: Operation[Any], *, writes: bool) -> Any:
        self.made += 1
        fails = self.made == self.failing
        return self._operate(_broken(operation) if fails else operation, writes=writes)

    def rows(self) -> list[tuple[Any, ...]]:
        """Without the janitor's entries, which may be there for nothing."""

        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(
                "SELECT pk, sk, item FROM items WHERE pk NOT LIKE 'due/%' ORDER BY pk, sk"
            ).fetchall()

        return self._operate(read, writes=False)


def _broken(operation: Operation[Any]) -> Operation[Any]:
    def fail(db: sqlite3.Connection) -> None:
        operation(db)
        db.execute("SELECT * FROM pages_that_cannot_be_read")

    return fail


def outcome(folder: Path, case: tuple[Request, ...], failing: int) -> tuple[Answer, list[object], bool, bool]:
    """The answer, what the world looks like then, whether that is as before, and whether anything failed."""
    scene = Scene(folder)

    async def begin() -> None:
        stack.enter_context(scene.system.database.serving())

    with ExitStack() as stack, asyncio.Runner() as runner:
        runner.run(begin())
        door = Door(
            cast(Process, scene.system), lambda *_: scene.system.backend, runner, scene.system.settings
        )
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
    """Refused, and nothing has changed; or answered, and all of it is there."""
    answer, whole, *_ = outcome(tmp_path, CASES[name], 0)
    assert answer.status < 300
    for failing in count(1):
        answer, world, is_unchanged, has_failed = outcome(tmp_path, CASES[name], failing)
        if not has_failed:
            break
        assert answer.status < 300 or answer.status == 503, (failing, answer)
        assert world == whole if answer.status < 300 else is_unchanged, (failing, answer)
    assert failing > 1
