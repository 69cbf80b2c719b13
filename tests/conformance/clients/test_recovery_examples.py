"""The examples of `docs/examples` do what they say: 410, bootstrap, and tailing on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import ROOT, node, running, tidemark_server

EXAMPLES = ROOT / "docs" / "examples"
NODE_CLIENT = ROOT / "node_modules" / "@durable-streams" / "client"


@pytest.fixture(scope="module", params=["asgi", "lambda"])
def base_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tidemark_server(request.param, tmp_path_factory.mktemp("server"))) as server:
        yield server.base_url


def run(base_url: str, *command: str | Path) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "BASE_URL": base_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(said: str) -> None:
    assert said.count("is gone: starting over from bootstrap") == 1
    assert "final" in said.splitlines()[-1]


@pytest.mark.skipif(not NODE_CLIENT.exists(), reason="needs node_modules (npm ci)")
def test_the_typescript_client_recovers(base_url: str) -> None:
    check(run(base_url, node(), EXAMPLES / "recover-from-410.mjs"))


def test_the_python_client_recovers(base_url: str) -> None:
    check(run(base_url, sys.executable, EXAMPLES / "recover_from_410.py"))
