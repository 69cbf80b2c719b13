"""The ecosystem's npm packages work with a running Tidemark, one program each (docs/ecosystem.md).

The programs are in `ecosystem/`; package.json pins the packages' versions. Each checks its results itself and
ends with code 0.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ROOT, running, temporary_directory, tidemark_server

PROGRAMS = Path(__file__).with_name("ecosystem")
PACKAGES = {
    "state": "@durable-streams/state",
    "registry": "@durable-streams/state",
    "yjs": "@durable-streams/y-durable-streams",
    "aisdk": "@durable-streams/aisdk-transport",
    "tanstack-ai": "@durable-streams/tanstack-ai-transport",
}
PATIENCE_SECONDS = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
]


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def base_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with (
        temporary_directory() as directory,
        running(tidemark_server(request.param, directory, LONG_POLL_SECONDS="3")) as server,
    ):
        yield server.base_url


def run_program(name: str, base_url: str, **environment: str) -> None:
    run = subprocess.run(
        [str(shutil.which("node")), str(PROGRAMS / f"{name}.mjs")],
        env={**os.environ, "BASE_URL": base_url, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_the_ecosystem_works_end_to_end(base_url: str, name: str) -> None:
    require_package(PACKAGES[name])
    run_program(name, base_url)


def require_package(name: str) -> None:
    if not (ROOT / "node_modules" / name).exists():
        pytest.skip("the npm packages are not installed (`make install` installs them)")


def test_collections_of_compacted_streams_are_those_of_the_whole_log() -> None:
    """Of random changes, and of the registry of streams."""
    require_package(PACKAGES["state"])
    with temporary_directory() as directory:
        given = tidemark_server("asgi", directory, LONG_POLL_SECONDS="3", PACK_AFTER_SECONDS="0")
        with running(given) as server:
            run_program("compacted", server.base_url)
            compact = {"Stream-Compact": "last-by-key", "Stream-Compact-After": "0"}
            run_program("registry", server.base_url, COMPACT=json.dumps(compact))


@pytest.mark.parametrize("seconds", ["2", "75"])
def test_undici_can_send_after_a_pause(seconds: str) -> None:
    """A kept connection that the server drops without a word fails the next POST. Pauses lie on both sides of
    the time that the server announces, so undici must both use a kept connection and give one up."""
    pauses = {"2": "2.5", "75": "1"}
    with temporary_directory() as directory:
        given = tidemark_server("asgi", directory, KEEP_ALIVE_SECONDS=seconds)
        with running(given) as server:
            run_program("idle-connection", server.base_url, KEEP_ALIVE=seconds, PAUSE_SECONDS=pauses[seconds])
