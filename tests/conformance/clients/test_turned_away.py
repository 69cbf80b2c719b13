"""The official clients where there is no room: what a platform says by itself, and what they make of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from durable_streams import DurableStream, stream

from tests.conformance.clients.turnstile import (
    BUSY,
    FAILED,
    LIMIT,
    NO_ENVIRONMENT,
    NO_ENVIRONMENT_AT_A_FUNCTION,
    Refusal,
    Turnstile,
    in_front_of,
)
from tests.conformance.servers import ROOT, running, temporary_directory, tidemark_server

SCRIPT = Path(__file__).with_name("npm_backoff.mjs")
EXAMPLE = ROOT / "docs" / "examples" / "patient-producer.mjs"
REFUSALS = {
    "no environment": NO_ENVIRONMENT,
    "the API's limit": LIMIT,
    "no environment at a function": NO_ENVIRONMENT_AT_A_FUNCTION,
    "the table throttles": BUSY,
    "the function failed": FAILED,
}
needs_npm = pytest.mark.skipif(
    shutil.which("node") is None or not (ROOT / "node_modules" / "@durable-streams" / "client").exists(),
    reason="node or the npm client is missing (`make` installs it): it cannot be turned away",
)


@pytest.fixture(scope="module")
def turnstile() -> Iterator[Turnstile]:
    with (
        temporary_directory() as directory,
        running(tidemark_server("asgi", directory, LONG_POLL_SECONDS="1")) as server,
        in_front_of(server.base_url) as turnstile,
    ):
        yield turnstile


@pytest.fixture
def name(turnstile: Turnstile) -> str:
    """A stream with nothing in it."""
    name = f"turned-away-{uuid.uuid4()}"
    DurableStream.create(url_of(turnstile, name), content_type="application/json").close()
    turnstile.answered.clear()
    return name


def url_of(turnstile: Turnstile, name: str) -> str:
    return f"{turnstile.base_url}/v1/stream/{name}"


def read_all(turnstile: Turnstile, name: str) -> list[Any]:
    with stream(f"{turnstile.origin}/v1/stream/{name}", live=False) as response:
        items: list[Any] = response.read_json()
        return items


def npm(turnstile: Turnstile, name: str, what: str) -> dict[str, Any]:
    ran = subprocess.run(
        [str(shutil.which("node")), str(SCRIPT)],
        env=os.environ | {"BASE_URL": turnstile.base_url, "STREAM": name, "WHAT": what},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@needs_npm
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_the_npm_client_comes_again(turnstile: Turnstile, name: str, refusal: Refusal) -> None:
    """Three times turned away it comes a fourth time; what it wrote is there once, because it was
    turned away before anything was done."""
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "append") == {"result": []}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "read") == {"result": [{"n": 1}]}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "long-poll") == {"result": [{"n": 1}]}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "create") == {"result": []}
    statuses = [status for _, status in turnstile.answered]
    assert statuses.count(refusal.status) == 12
    assert read_all(turnstile, name) == [{"n": 1}]


@needs_npm
def test_the_example_of_a_patient_producer_runs(turnstile: Turnstile) -> None:
    turnstile.refusals = [NO_ENVIRONMENT, LIMIT, FAILED]
    ran = subprocess.run(
        [str(shutil.which("node")), str(EXAMPLE)],
        env=os.environ | {"BASE_URL": turnstile.base_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    name = ran.stdout.strip().rpartition("/")[2]
    assert read_all(turnstile, name) == [{"n": n} for n in range(10)]
    assert turnstile.refusals == []
