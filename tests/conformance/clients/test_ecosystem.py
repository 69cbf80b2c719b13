"""The ecosystem's npm packages work with a running Tidemark, one program each (docs/ecosystem.md).

The programs are in `ecosystem/`; package.json pins the packages' versions. Each checks its results itself and
ends with code 0.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.clients.node import run_node
from tests.conformance.servers import running, temporary_directory, tidemark_server

PROGRAMS = Path(__file__).with_name("ecosystem")
PACKAGES = {
    "state": "@durable-streams/state",
    "registry": "@durable-streams/state",
    "yjs": "@durable-streams/y-durable-streams",
    "aisdk": "@durable-streams/aisdk-transport",
    "tanstack-ai": "@durable-streams/tanstack-ai-transport",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def base_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with (
        temporary_directory() as directory,
        running(tidemark_server(request.param, directory, LONG_POLL_SECONDS="3")) as server,
    ):
        yield server.base_url


def run_program(name: str, base_url: str, **environment: str) -> None:
    package = PACKAGES.get(name, PACKAGES["state"])
    run_node(PROGRAMS / f"{name}.mjs", package=package, BASE_URL=base_url, **environment)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_of_the_ecosystem_works_end_to_end(base_url: str, name: str) -> None:
    run_program(name, base_url)


def test_collections_of_compacted_streams_are_those_of_the_whole_log() -> None:
    """Of random changes, and of the registry of streams."""
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
