"""Traces: what leaves for X-Ray's daemon, in whose place a socket stands; and that nothing does unasked."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.authorization.tokens import SECRET, token
from tests.lambdas.functions import http_event, load_event
from tests.support import World
from tests.waiting import until
from tests.wake.live_process import running
from tidemark.settings import InvalidSetting, Settings

ROOT = Path(__file__).parents[2]
ROOT_ID = "1-6a0c8f05-0f1e2d3c4b5a697887a6b5c4"
SAMPLED = f"Root={ROOT_ID};Parent=53995c3f42cd8ad8;Sampled=1"
TEXT = {"content-type": "text/plain"}
BODY = "the words of a message"
#: What the live process is given in another way, or, of the trace, not at all.
RUN_BY = {"_X_AMZN_TRACE_ID", "PATH", "QUEUE_PREFIX", "LONG_POLL_SECONDS"}
TOKEN = token("read:* write:* manage:*")
BEARER = {"authorization": f"Bearer {TOKEN}"}


@dataclass
class Daemon:
    """Where X-Ray's own process listens beside a function."""

    socket: socket.socket
    heard: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def listen(self) -> list[dict[str, Any]]:
        """All that has come so far: a datagram on loopback is there once it was sent."""
        self.socket.setblocking(False)
        while True:
            try:
                datagram = self.socket.recv(65536).decode()
            except BlockingIOError:
                return self.heard
            header, _, document = datagram.partition("\n")
            assert json.loads(header)["format"] == "json"
            self.heard.append(json.loads(document))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        yield Daemon(listening)


def variables_of(world: World, daemon: Daemon, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}",
        "TABLE_NAME": world.table_name,
        "BUCKET_NAME": world.bucket_name,
        "LONG_POLL_SECONDS": "0",
        "ALLOW_ANONYMOUS": "",
        "AUTH_SECRET": SECRET,
        "TRACING": "Active",
        "LAMBDA_TASK_ROOT": "/var/task",
        "AWS_XRAY_DAEMON_ADDRESS": daemon.address,
        "_X_AMZN_TRACE_ID": SAMPLED,
    } | more


def invoke(function: str, events: list[Any], variables: dict[str, str]) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("invoke.py")), function],
        input=json.dumps(events),
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout.rpartition("REPORT")[2])
    return report | {"said": ran.stdout.rpartition("REPORT")[0] + ran.stderr}


def statuses(report: dict[str, Any]) -> list[int]:
    return [answer["statusCode"] for answer in report["answers"]]


def handlers(heard: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in heard if each["name"].startswith("## ")]


def calls(heard: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["name"], each["aws"]["operation"]) for each in heard if each.get("namespace") == "aws"]


def test_a_trace_of_a_write_holds_its_storage_calls(world: World, daemon: Daemon) -> None:
    """Each under the invocation it belongs to, with what it did and to which stream."""
    large = "x" * 70_000
    events = [
        http_event("PUT", "/v1/stream/traced/a", headers=TEXT | BEARER),
        http_event("POST", "/v1/stream/traced/a", headers=TEXT | BEARER, body=large.encode()),
    ]
    report = invoke("write", events, variables_of(world, daemon))
    assert statuses(report) == [201, 204]
    heard = daemon.listen()
    put = ("DynamoDB", "PutItem")
    # The table's format is asked for and told once in a process.
    assert calls(heard) == [("DynamoDB", "GetItem"), put, put, ("S3", "PutObject"), put]
    created, appended = handlers(heard)
    assert {each["trace_id"] for each in heard} == {ROOT_ID}
    assert {each["parent_id"] for each in (created, appended)} == {"53995c3f42cd8ad8"}
    assert {each["parent_id"] for each in heard if each.get("namespace") == "aws"} == {
        created["id"],
        appended["id"],
    }
    assert created["name"] == "## write"
    assert created["annotations"] == {
        "ColdStart": True,
        "Service": "write",
        "operation": "PUT",
        "stream": "/v1/stream/traced/a",
        "status": 201,
    }
    assert (appended["annotations"]["operation"], appended["annotations"]["status"]) == ("POST", 204)
    for each in heard:
        assert each["start_time"] <= each["end_time"]


def test_a_trace_of_a_read_says_how_it_waits(world: World, daemon: Daemon) -> None:
    """And whatever else is in the query stays there."""
    query = f"offset=-1&live=sse&access_token={TOKEN}"
    events = [
        http_event("GET", "/v1/stream/traced/nothing", "offset=-1&live=long-poll", BEARER),
        http_event("GET", "/v1/stream/traced/nothing", query),
        http_event("GET", "/v1/stream/traced/nothing", "offset=-1&live=whatever", BEARER),
    ]
    assert statuses(invoke("read", events, variables_of(world, daemon))) == [404, 404, 400]
    told = [each["annotations"]["operation"] for each in handlers(daemon.listen())]
    assert told == ["GET long-poll", "GET sse", "GET"]


def test_a_trace_holds_no_token_body_or_key(world: World, daemon: Daemon) -> None:
    """Neither a token, wherever it was sent, nor what a stream holds, nor the keys."""
    path = "/v1/stream/traced/secret"
    written = [http_event("PUT", path, headers=TEXT | BEARER, body=BODY.encode())]
    assert statuses(invoke("write", written, variables_of(world, daemon))) == [201]
    read = [
        http_event("GET", path, f"offset=-1&live=sse&access_token={TOKEN}"),
        http_event("GET", path, "offset=-1", BEARER),
        http_event("GET", path, "offset=-1", {"authorization": "Bearer hunter2hunter2"}),
    ]
    report = invoke("read", read, variables_of(world, daemon))
    assert statuses(report) == [200, 200, 401]
    text = json.dumps(daemon.listen())
    assert len(handlers(daemon.heard)) == 4
    for secret in (TOKEN, TOKEN.rpartition(".")[2], "access_token", "hunter2", BODY, SECRET):
        assert secret not in text


def test_a_storage_call_that_fails_is_traced_as_a_fault(world: World, daemon: Daemon) -> None:
    """Each try for itself, as a fault."""
    variables = variables_of(world, daemon, AWS_ENDPOINT_URL_DYNAMODB="http://127.0.0.1:1")
    report = invoke("read", [http_event("GET", "/v1/stream/a", "offset=-1", BEARER)], variables)
    assert statuses(report) == [503]
    failed = [each for each in daemon.listen() if each.get("namespace") == "aws"]
    assert len(failed) > 1
    assert all(each["fault"] for each in failed)
    assert {each["http"]["response"]["status"] for each in failed} == {0}


def test_the_notifier_and_the_janitor_are_traced(world: World, daemon: Daemon) -> None:
    variables = variables_of(world, daemon)
    report = invoke("notifier", [load_event("stream-records")], variables)
    assert report["answers"] == [{"batchItemFailures": []}]
    assert [each["name"] for each in handlers(daemon.listen())] == ["## notifier"]
    invoke("janitor", [load_event("janitor-schedule")], variables)
    assert [each["name"] for each in handlers(daemon.listen())] == ["## notifier", "## janitor"]
    assert ("DynamoDB", "Query") in calls(daemon.heard)


def test_an_invocation_that_lambda_does_not_sample_sends_no_trace(world: World, daemon: Daemon) -> None:
    variables = variables_of(world, daemon, _X_AMZN_TRACE_ID=SAMPLED.replace("Sampled=1", "Sampled=0"))
    assert statuses(invoke("read", [http_event("GET", "/v1/stream/a", headers=BEARER)], variables)) == [404]
    assert daemon.listen() == []


@pytest.mark.parametrize("function", ["write", "read", "notifier", "janitor"])
def test_the_tracing_library_is_not_imported_unless_tracing_is_active(
    world: World, daemon: Daemon, function: str
) -> None:
    """A cold start pays for what was asked for, and for nothing else."""
    events = {"notifier": ["stream-records"], "janitor": ["janitor-schedule"]}.get(function, [])
    variables = variables_of(world, daemon, TRACING="Disabled")
    report = invoke(function, [load_event(name) for name in events], variables)
    assert [name for name in report["imported"] if name.startswith(("aws_xray_sdk", "wrapt"))] == []
    assert daemon.listen() == []
    if function == "read":
        with_traces = invoke(function, [], variables_of(world, daemon))
        assert "aws_xray_sdk" in with_traces["imported"], "the test has lost its teeth"


def test_the_live_function_takes_its_trace_id_from_the_adapters_header(world: World, daemon: Daemon) -> None:
    """Its process is not Lambda's own: what belongs to which invocation comes with the request."""
    created = [http_event("PUT", "/v1/stream/traced/live", headers=TEXT | BEARER, body=BODY.encode())]
    invoke("write", created, variables_of(world, daemon, TRACING="Disabled"))
    told = {"x-amzn-lambda-context": json.dumps({"request_id": "r", "xray_trace_id": SAMPLED})}
    own = {name: value for name, value in variables_of(world, daemon).items() if name not in RUN_BY}
    with running(world, sse_seconds=1, variables=own) as function:
        assert daemon.listen() == [], "asking whether it is up is no invocation"
        connection = http.client.HTTPConnection("127.0.0.1", function.port, timeout=60)
        with closing(connection):
            target = f"/v1/stream/traced/live?offset=-1&live=sse&access_token={TOKEN}"
            connection.request("GET", target, headers=told)
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        until(lambda: bool(handlers(daemon.listen())))
    heard = daemon.heard
    [handled] = handlers(heard)
    assert handled["annotations"] == {
        "operation": "GET sse",
        "stream": "/v1/stream/traced/live",
        "status": 200,
    }
    assert {each["trace_id"] for each in heard} == {ROOT_ID}
    assert ("DynamoDB", "Query") in calls(heard)
    assert TOKEN not in json.dumps(heard)


def test_tracing_is_active_or_disabled_and_any_other_word_is_refused() -> None:
    assert Settings.from_environment({"TRACING": "Active"}).tracing
    assert not Settings.from_environment({"TRACING": "Disabled"}).tracing
    assert not Settings.from_environment({}).tracing
    with pytest.raises(InvalidSetting, match="TRACING"):
        Settings.from_environment({"TRACING": "yes"})
