"""SnapStart: what a function has loaded is kept as a snapshot, and environments resume from it much later.

A process loads the deployed handler as Lambda does for a snapshot, stops there, and goes on as if resumed.
Its storage and the role's credentials come from a server of this test.
"""

from __future__ import annotations

import json
import os
import random
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.lambdas.functions import ROOT, load_event
from tidemark.snap_start import on_restore, register_restore

#: Of Lambda's Python runtime, as far as the functions use it.
HOOKS = """
hooks = []
def register_after_restore(function, *arguments, **named):
    hooks.append((function, arguments, named))
"""
PROCESS = """
import importlib.util, json, os, random, sys
import snapshot_restore_py
random.seed(7)
spec = importlib.util.spec_from_file_location("app", sys.argv[1])
app = importlib.util.module_from_spec(spec)
spec.loader.exec_module(app)
own = {os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)}
tcp = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}").readlines()[1:]]
state = random.getstate()
print(json.dumps({"connections": [each[2] for each in tcp if f"socket:[{each[9]}]" in own]}), flush=True)
event = json.loads(sys.stdin.readline())
for function, arguments, named in snapshot_restore_py.hooks:
    function(*arguments, **named)
print(json.dumps({"as_before": random.getstate() == state, "status": app.handler(event, None)["statusCode"]}))
"""


class Aws(ThreadingHTTPServer):
    """The role's credentials, each valid for a minute that has passed but for the last; and a table that
    refuses every call, and remembers whose it was."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), AwsRequests)
        self.handed_out: list[str] = []
        self.signed_by: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class AwsRequests(BaseHTTPRequestHandler):
    server: Aws

    def do_GET(self) -> None:
        key = f"KEY{len(self.server.handed_out)}"
        self.server.handed_out.append(key)
        expires = datetime.now(UTC) + timedelta(hours=6 if len(self.server.handed_out) > 1 else -1)
        self.answer(200, {
            "AccessKeyId": key, "SecretAccessKey": "secret", "Token": "token",
            "Expiration": f"{expires:%Y-%m-%dT%H:%M:%SZ}",
        })  # fmt: skip

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        found = re.search("Credential=(\\w+)/", self.headers["Authorization"])
        self.server.signed_by.append(found[1] if found else "nobody")
        self.answer(400, {"__type": "com.amazon#AccessDeniedException", "message": "no"})

    def answer(self, status: int, body: dict[str, str]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def aws() -> Iterator[Aws]:
    with Aws() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def resumed(aws: Aws, function: str, event: str, directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the process has when the snapshot is made, and what it says after it was resumed."""
    (directory / "snapshot_restore_py.py").write_text(HOOKS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{aws.url}/credentials",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "token",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_CONFIG_FILE": str(directory / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "credentials"),
        "TABLE_NAME": "tidemark",
        "BUCKET_NAME": "tidemark",
        "ALLOW_ANONYMOUS": "true",
        "PYTHONPATH": str(directory),
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(ROOT / "functions" / function / "app.py")],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        snapshot = json.loads(process.stdout.readline())
        snapshot |= {"calls": list(aws.signed_by), "handed_out": list(aws.handed_out)}
        process.stdin.write(json.dumps(load_event(event)) + "\n")
        process.stdin.close()
        *_, last = process.stdout.read().splitlines()
        return snapshot, json.loads(last)


@pytest.mark.parametrize(("function", "event"), [("write", "put-create"), ("read", "get-catch-up")])
def test_a_resumed_environment_uses_no_expired_credentials_and_no_old_connection(
    aws: Aws, tmp_path: Path, function: str, event: str
) -> None:
    """The first call is signed with credentials that were fetched after the snapshot."""
    snapshot, after = resumed(aws, function, event, tmp_path)
    assert snapshot["connections"] == []
    assert snapshot["calls"] == [], "storage was called before the snapshot"
    assert snapshot["handed_out"] == ["KEY0"]
    assert after["status"] == 503
    assert set(aws.signed_by) == {"KEY1"}
    assert after["as_before"] is False, "every environment would draw the same random numbers"


def test_each_resumed_environment_draws_other_random_numbers() -> None:
    state = random.getstate()
    drawn = set()
    for _ in range(3):
        random.setstate(state)
        on_restore()
        drawn.add(random.random())
    assert len(drawn) == 3


def test_openssl_gets_new_random_bytes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[tuple[bytes, float]] = []
    monkeypatch.setattr(ssl, "RAND_add", lambda data, entropy: added.append((data, entropy)))
    on_restore()
    on_restore()
    (first, entropy), (second, _) = added
    assert len(first) == entropy == 64
    assert first != second


def test_an_environment_without_a_snapshot_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's own package is not looked for where it may not be: on this machine, for example."""
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand")
    monkeypatch.setitem(sys.modules, "snapshot_restore_py", None)
    register_restore()
    monkeypatch.setenv("AWS_LAMBDA_INITIALIZATION_TYPE", "snap-start")
    with pytest.raises(ImportError):
        register_restore()
