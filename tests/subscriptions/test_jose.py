"""A webhook's signature is verified by a receiver with npm `jose`, before and after the key is rotated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.conformance.servers import ROOT, Server, node, running, tidemark_server
from tests.ports import free_port

PATIENCE_SECONDS = 240
GENUINE = {"asSent": True, "otherBody": False, "otherTime": False, "otherKey": "ERR_JWKS_NO_MATCHING_KEY"}


@contextmanager
def receiver(server: Server, port: int) -> Iterator[IO[str]]:
    """What it prints, a line for each call."""
    with subprocess.Popen(
        [node(), str(Path(__file__).with_name("jose_receiver.mjs"))],
        env=os.environ | {"SERVER": server.base_url, "PORT": str(port)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        # So that a call that never comes ends the test.
        overdue = threading.Timer(PATIENCE_SECONDS, process.kill)
        overdue.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.stdout
        finally:
            overdue.cancel()
            process.kill()


def put(server: Server, path: str, value: object) -> dict[str, Any]:
    url, body = f"{server.base_url}/v1/stream/{path}", json.dumps(value).encode()
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(asked, timeout=PATIENCE_SECONDS) as response:
        return dict(json.loads(response.read() or b"{}"))


@pytest.mark.skipif(
    not (ROOT / "node_modules" / "jose").is_dir(), reason="npm jose is not installed (make install)"
)
def test_a_receiver_verifies_with_the_keys_that_are_published(tmp_path: Path) -> None:
    """Also with the next key, once the first one was removed: jose asks for the set of keys anew. A server
    that is started again knows of the subscriptions of earlier runs."""
    port = free_port()
    with running(tidemark_server("asgi", tmp_path)) as server, receiver(server, port) as lines:
        hook = {"type": "webhook", "pattern": "orders/*", "webhook": {"url": f"http://127.0.0.1:{port}/"}}
        signing = put(server, "__ds/subscriptions/hook", hook)["webhook"]["signing"]
        put(server, "orders/1", {"total": 12})
        seen = json.loads(lines.readline())
        assert seen == GENUINE | {"kid": signing["kid"], "type": "application/json", "streams": ["orders/1"]}

        server.stop()
        for command in (["rotate"], ["remove", signing["kid"]]):
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tidemark.ops.signing_keys",
                    "--data-dir",
                    str(server.data_dir),
                    *command,
                ],
                check=True,
                timeout=PATIENCE_SECONDS,
            )
        server.start()
        put(server, "orders/2", {"total": 13})
        while seen["kid"] == signing["kid"]:  # A slow receiver is called twice.
            seen = json.loads(lines.readline())
        assert GENUINE.items() <= seen.items()
