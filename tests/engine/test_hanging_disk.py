"""A disk that hangs, and another process that writes: the server answers, and says so."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.answers import Answer
from tests.engine.serving import serving
from tests.http.asgi import TEXT, Door
from tidemark.engine import database, turns
from tidemark.engine.database import DatabaseOperation
from tidemark.http import pages
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import Settings

STREAM = "/v1/stream/a"
LONG_POLL = f"{STREAM}?offset={1:016}&live=long-poll"


class Scene:
    """A server on disk, of whose work some hangs while `goes_on` is not set."""

    def __init__(self, folder: Path, system: EmbeddedSystem, door: Door) -> None:
        self.folder, self.system, self.door = folder, system, door
        self.goes_on = threading.Event()
        self.goes_on.set()

    def hang_commits(self) -> None:
        commit = self.system.database._try_commit

        def hanging() -> Exception | None:
            self.goes_on.wait()
            return commit()

        self.system.database._try_commit = hanging  # type: ignore[method-assign]

    def hang_reads(self) -> None:
        operate = self.system.database.operate

        def hanging(operation: DatabaseOperation[Any], *, writes: bool) -> Any:
            self.goes_on.wait()
            return operate(operation, writes=writes)

        self.system.database.operate = hanging  # type: ignore[method-assign]

    async def answer(self, target: str, body: bytes | None = None) -> Answer:
        return await self.door.ask("GET" if body is None else "POST", target, TEXT, body or b"")

    async def status(self, target: str, body: bytes | None = None) -> int:
        return (await self.answer(target, body)).status

    async def recovers(self, patch: pytest.MonkeyPatch) -> None:
        """From here on no answer has to come soon."""
        patch.setattr(turns, "PATIENCE_SECONDS", 60)
        patch.setattr(pages, "PROBE_SECONDS", 60)
        while await self.status("/v1/health") != 200:  # noqa: ASYNC110 - the answer is what is awaited
            await asyncio.sleep(0.01)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """By another process, as SQLite sees it."""
        with closing(sqlite3.connect(self.folder / "tidemark.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(turns, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(pages, "PROBE_SECONDS", 0.1)
    system = EmbeddedSystem(Settings(long_poll_seconds=0.1), tmp_path, tmp_path / "blobs")
    with serving(system) as door:
        scene = Scene(tmp_path, system, door)
        assert door.put(STREAM, TEXT, b"x").status == 201
        yield scene
        scene.goes_on.set()
    system.close()


@pytest.mark.parametrize("hang", [Scene.hang_commits, Scene.hang_reads], ids=["syncs", "reads"])
def test_a_disk_that_hangs_stops_neither_the_loop_nor_refusals(
    scene: Scene,
    hang: Callable[[Scene], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An append, a read and a long-poll are refused in time, later ones at once, and health tells."""

    async def scenario() -> None:
        append = asyncio.ensure_future(scene.answer(STREAM, b"y"))
        await asyncio.sleep(0)
        health = await scene.answer("/v1/health")
        assert (health.status, health.json["error"][:23]) == (503, "Storage does not answer")
        waiting = [scene.status(STREAM + "?offset=-1"), scene.status(LONG_POLL)]
        assert await asyncio.gather(*waiting) == [503, 503]
        assert ((await append).status, (await append).json["outcome"]) == (503, "unknown")
        assert await scene.status(STREAM + "?offset=-1") == 503
        assert await scene.status(STREAM, b"z") == 503
        scene.goes_on.set()
        await scene.recovers(monkeypatch)
        assert (await scene.answer(STREAM + "?offset=-1")).body in (b"x", b"xy")
        assert await scene.status(STREAM, b"z") == 204

    hang(scene)
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.5)
    scene.goes_on.clear()
    scene.door.run(scenario())
    said = [record.message for record in caplog.records if "disk" in record.message]
    assert said == [
        "the disk has not answered for 0 s: requests are refused until it does",
        "the disk answers again",
    ]


def test_a_process_that_writes_holds_up_writes_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for it, for a while; what reads does not, and the connection is not used meanwhile."""
    monkeypatch.setattr(database, "_LAST_PAUSE_SECONDS", 60)

    async def scenario() -> None:
        with scene.locked():
            append = asyncio.ensure_future(scene.status(STREAM, b"y"))
            assert await scene.status("/v1/health") == 503
            assert await scene.status(STREAM + "?offset=-1") == 200
            assert not append.done()
        assert await append == 204
        await scene.recovers(monkeypatch)
        monkeypatch.setattr(database, "_LAST_PAUSE_SECONDS", 0.02)
        with scene.locked():
            assert await scene.status(STREAM, b"z") == 503
        assert (await scene.answer(STREAM + "?offset=-1")).body == b"xy"

    scene.door.run(scenario())
