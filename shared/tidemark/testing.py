"""Fixtures for tests of programs that use Tidemark: the extra `test`, and `test-aws` for `tidemark_aws`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from typing import Any, Final

import pytest


@pytest.fixture
def tidemark_url() -> Iterator[str]:
    """The address of a server in memory, in this process, empty for each test."""
    from tidemark.server.serve import server_in_memory

    with server_in_memory() as url:
        yield url


@pytest.fixture
def tidemark_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The table, the bucket and the queue of a stack in ministack, empty for each test: the environment that
    a function of the stack has, which is set."""
    with _ministack() as endpoint:
        environment = _variables(endpoint)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        added = _make_stores()
        for name, value in added.items():
            monkeypatch.setenv(name, value)
        yield environment | added


#: Ends when its standard input does, and so with its parent.
_MINISTACK: Final = """
import os, sys, threading
from hypercorn.__main__ import main
threading.Thread(target=lambda: os.read(0, 1) or os._exit(0), daemon=True).start()
sys.exit(main(["--bind", sys.argv[1], "--log-level", "WARNING", "ministack.app:app"]))
"""
_SERVICES: Final = ("dynamodb", "s3", "sqs")
_READY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.01


@contextmanager
def _ministack() -> Iterator[str]:
    """Yields its address."""
    from tidemark.server.ports import LOOPBACK, health, listening_socket, port_of

    if find_spec("ministack") is None:
        pytest.fail("ministack is not installed: install tidemark-streams[test-aws]")
    with listening_socket(LOOPBACK, 0) as listener:
        port, descriptor = port_of(listener), listener.fileno()
        settings = {
            "SERVICES": ",".join(_SERVICES),
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": LOOPBACK,
            "LOG_LEVEL": "WARNING",
            "S3_PERSIST": "0",
            # ministack removes containers that it takes for its own, unless it finds no Docker.
            "DOCKER_HOST": "unix:///nonexistent",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        command = [sys.executable, "-c", _MINISTACK, f"fd://{descriptor}"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=inherited | settings, pass_fds=(descriptor,)
        )
    with process:
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while health(LOOPBACK, port, "/_ministack/health") != 200:
                if process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"ministack does not answer (exit code {process.returncode})")
                time.sleep(_POLL_SECONDS)
            yield f"http://{LOOPBACK}:{port}"
        finally:
            process.kill()


def _variables(endpoint: str) -> dict[str, str]:
    """The variables that lead boto3 to `endpoint`, past a proxy."""
    no_proxy = ",".join(filter(None, (os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1")))
    return {
        **{f"AWS_ENDPOINT_URL_{service.upper()}": endpoint for service in _SERVICES},
        **dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1"),
        **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "tidemark"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), no_proxy),
    }


def _make_stores() -> dict[str, str]:
    """The variables that name the table, the bucket and the queue to a function."""
    import boto3

    from tidemark.log.schema import table_definition
    from tidemark.settings import Settings

    names = Settings()
    clients: list[Any] = [boto3.client(service) for service in _SERVICES]
    dynamodb, s3, sqs = clients
    with closing(dynamodb), closing(s3), closing(sqs):
        dynamodb.create_table(**table_definition(names.table_name))
        dynamodb.get_waiter("table_exists").wait(TableName=names.table_name, WaiterConfig={"Delay": 1})
        s3.create_bucket(Bucket=names.bucket_name)
        queue = sqs.create_queue(QueueName=f"{names.table_name}-subscriptions")
    return {
        "TABLE_NAME": names.table_name,
        "BUCKET_NAME": names.bucket_name,
        "SUBSCRIPTIONS_QUEUE_URL": queue["QueueUrl"],
    }
