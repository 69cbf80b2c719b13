"""Requests reach the handlers as in AWS: as JSON, within the platform's limits."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.local.conftest import write_function
from tests.local.polling import wait_until
from tidemark.local.environments import FunctionNotLoaded
from tidemark.local.gateway import Gateway
from tidemark.local.template import load_template

MEGABYTE = 1024 * 1024


def ask(gateway: Gateway, method: str = "GET", path: str = "/x", **options: Any) -> httpx.Response:
    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://tides.test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asking())


class Gateways:
    """Makes gateways in front of a handler's code, and closes them."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._made: list[Gateway] = []

    def __call__(
        self, code: str, *, function_seconds: float = 60, integration_seconds: float = 30
    ) -> Gateway:
        write_function(self._project, "probe", code)
        template = load_template(self._project / "template.yaml")
        probe = replace(template.functions["Probe"], timeout_seconds=function_seconds)
        template = replace(template, functions={**template.functions, "Probe": probe})
        self._made.append(Gateway(template, integration_seconds))
        return self._made[-1]

    def close(self) -> None:
        for gateway in self._made:
            gateway.close()


@pytest.fixture
def make_gateway(project: Path) -> Iterator[Gateways]:
    gateways = Gateways(project)
    yield gateways
    gateways.close()


ECHO = """
def handler(event, context):
    return {"event": event}
"""


def test_a_request_becomes_an_event(make_gateway: Gateways) -> None:
    answer = ask(make_gateway(ECHO), "POST", "/a%20b?c=d%20e", content=b"\xff", headers={"X-A": "1"})
    event = answer.json()["event"]
    assert event["rawPath"] == "/a b"
    assert event["rawQueryString"] == "c=d%20e"
    assert event["headers"]["x-a"] == "1"
    assert (event["body"], event["isBase64Encoded"]) == (base64.b64encode(b"\xff").decode(), True)
    assert event["routeKey"] == "$default"


def test_a_binary_response_comes_back_as_bytes(make_gateway: Gateways) -> None:
    gateway = make_gateway(
        """
def handler(event, context):
    headers = {"content-type": "application/octet-stream"}
    return {"statusCode": 203, "headers": headers, "body": "AAEC/w==", "isBase64Encoded": True}
"""
    )
    answer = ask(gateway)
    assert (answer.status_code, answer.content) == (203, b"\x00\x01\x02\xff")
    assert answer.headers["content-length"] == "4"


def test_an_event_shares_no_object_with_the_gateway(make_gateway: Gateways) -> None:
    """A handler that changes or keeps its event affects nothing else."""
    gateway = make_gateway(
        """
kept = []

def handler(event, context):
    kept.append(event)
    return [type(event).__name__, len(kept), kept[0] is event]
"""
    )
    assert ask(gateway).json() == ["dict", 1, True]
    assert ask(gateway).json() == ["dict", 2, False]


def test_the_context_has_the_fields_of_lambdas(make_gateway: Gateways) -> None:
    gateway = make_gateway(
        """
def handler(event, context):
    return {
        "name": context.function_name,
        "memory": context.memory_limit_in_mb,
        "arn": context.invoked_function_arn,
        "id": context.aws_request_id,
        "left": context.get_remaining_time_in_millis(),
        "version": context.function_version,
    }
"""
    )
    first, second = ask(gateway).json(), ask(gateway).json()
    assert first["name"] == "Probe"
    assert first["memory"] == "128"
    assert first["arn"].startswith("arn:aws:lambda:")
    assert first["arn"].endswith(":function:Probe")
    assert first["version"] == "$LATEST"
    assert 0 < first["left"] <= 60_000
    assert first["id"] != second["id"]


@pytest.mark.parametrize(
    "code",
    [
        "def handler(event, context):\n    raise RuntimeError('the tide is out')\n",
        "def handler(event, context):\n    raise SystemExit(3)\n",
        "def handler(event, context):\n    return {'statusCode': 200, 'body': b'bytes are not JSON'}\n",
        "def handler(event, context):\n    return {'statusCode': 'high'}\n",
        "def handler(event, context):\n    return {'statusCode': 200, 'body': '\\ud800'}\n",
        "def handler(event):\n    return {'statusCode': 200}\n",
    ],
    ids=["raises", "exits", "bytes", "status", "surrogate", "signature"],
)
def test_a_function_that_fails_gets_500(make_gateway: Gateways, code: str) -> None:
    """The environment is used again: the next request is served as well."""
    gateway = make_gateway(code)
    for _ in range(2):
        answer = ask(gateway)
        assert (answer.status_code, answer.json()) == (500, {"message": "Internal Server Error"})
    assert ask(gateway, "HEAD").content == b""


def test_a_failure_is_logged_on_standard_error(
    make_gateway: Gateways, capfd: pytest.CaptureFixture[str]
) -> None:
    ask(make_gateway("def handler(event, context):\n    raise RuntimeError('the tide is out')\n"))
    assert "RuntimeError: the tide is out" in capfd.readouterr().err


COUNT = """
calls = []

def handler(event, context):
    calls.append(1)
    return {"statusCode": 200, "body": str(len(calls))}
"""


@pytest.mark.parametrize(("room", "status"), [(300, 200), (-1, 431)])
def test_a_request_line_and_headers_over_ten_kilobytes_never_reach_the_function(
    make_gateway: Gateways, room: int, status: int
) -> None:
    gateway = make_gateway(COUNT)
    answer = ask(gateway, headers={"authorization": "t" * (10_240 - room)})
    assert answer.status_code == status


def test_a_payload_over_ten_megabytes_never_reaches_the_function(make_gateway: Gateways) -> None:
    gateway = make_gateway(COUNT)
    declared = ask(gateway, "POST", content=b"x" * (10 * MEGABYTE + 1))
    assert (declared.status_code, declared.json()) == (413, {"message": "Request Entity Too Large"})

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * MEGABYTE

    undeclared = ask(gateway, "POST", content=chunks())
    assert (undeclared.status_code, undeclared.json()) == (413, {"message": "Request Entity Too Large"})
    assert ask(gateway).text == "1"


@pytest.mark.parametrize(
    ("content_type", "size", "status"),
    [
        ("text/plain", 6 * MEGABYTE - 4096, 200),
        ("text/plain", 6 * MEGABYTE, 413),
        # A third more in base64.
        ("application/octet-stream", 4_700_000, 200),
        ("application/octet-stream", 4_800_000, 413),
    ],
)
def test_an_event_over_six_megabytes_is_refused(
    make_gateway: Gateways, content_type: str, size: int, status: int
) -> None:
    """Lambda's limit is on the whole event, so a binary body has room for about 4.5 MB."""
    gateway = make_gateway(COUNT)
    answer = ask(gateway, "POST", content=b"x" * size, headers={"content-type": content_type})
    assert answer.status_code == status
    assert ask(gateway).text == ("2" if status == 200 else "1")


@pytest.mark.parametrize(("size", "status"), [(6 * MEGABYTE - 4096, 200), (6 * MEGABYTE + 101, 500)])
def test_a_response_over_six_megabytes_fails(make_gateway: Gateways, size: int, status: int) -> None:
    code = f"def handler(event, context):\n    return {{'statusCode': 200, 'body': 'x' * {size}}}\n"
    assert ask(make_gateway(code)).status_code == status


WAITING = """
import threading

released = threading.Event()

def handler(event, context):
    if event["rawPath"] == "/wait":
        released.wait()
    else:
        released.set()
    return {"statusCode": 200, "body": "done"}
"""


@pytest.mark.parametrize(
    ("function_seconds", "integration_seconds", "status", "message"),
    [(60, 0.1, 503, "Service Unavailable"), (0.1, 30, 500, "Internal Server Error")],
    ids=["gateway", "function"],
)
def test_a_slow_function_gets_503_from_the_gateway_or_500_from_lambda(
    make_gateway: Gateways, function_seconds: float, integration_seconds: float, status: int, message: str
) -> None:
    """503 after the gateway's limit, 500 after Lambda's. The function waits until the test releases it."""
    gateway = make_gateway(
        WAITING, function_seconds=function_seconds, integration_seconds=integration_seconds
    )
    answer = ask(gateway, path="/wait")
    assert (answer.status_code, answer.json()) == (status, {"message": message})
    ask(gateway, path="/release")


def test_requests_run_concurrently(make_gateway: Gateways) -> None:
    """Sixty requests, each of which ends only when all sixty are running."""
    gateway = make_gateway(
        """
import threading

together = threading.Barrier(60)

def handler(event, context):
    together.wait(60)
    return {"statusCode": 200, "body": threading.current_thread().name + str(threading.get_ident())}
"""
    )

    async def asking() -> list[httpx.Response]:
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=None) as client:
            return await asyncio.gather(*(client.get("/") for _ in range(60)))

    answers = asyncio.run(asking())
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 60


def test_an_environment_has_one_request_at_a_time_and_one_event_loop(make_gateway: Gateways) -> None:
    """Mangum needs a loop that is set, does not run, and is the same in the next request."""
    gateway = make_gateway(
        """
import asyncio

loops = []

async def answer():
    return {"statusCode": 200, "body": "from a coroutine"}

def handler(event, context):
    loop = asyncio.get_event_loop()
    loops.append(loop)
    assert all(loop is other for other in loops)
    return loop.run_until_complete(answer())
"""
    )
    assert [ask(gateway).text for _ in range(5)] == ["from a coroutine"] * 5


def test_without_a_route_a_request_gets_404(project: Path) -> None:
    template = load_template(project / "template.yaml")
    answer = ask(Gateway(replace(template, routes=())))
    assert (answer.status_code, answer.json()) == (404, {"message": "Not Found"})


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import no_such_module\n", "no_such_module"),
        ("other = 1\n", "no function handler"),
        ("(", "SyntaxError"),
    ],
)
def test_a_function_that_does_not_load_is_reported_at_once_by_name(
    make_gateway: Gateways, code: str, complaint: str
) -> None:
    with pytest.raises(FunctionNotLoaded, match=complaint):
        make_gateway(code)


def test_a_function_sees_its_own_variables_while_it_loads(
    make_gateway: Gateways, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template's plain values and Lambda's own variables; the process's environment overrides them."""
    template = (project / "template.yaml").read_text()
    variables = "      Environment: {Variables: {TIDE: low, MOON: full}}\n"
    (project / "template.yaml").write_text(
        template.replace("      CodeUri: probe/\n", f"      CodeUri: probe/\n{variables}")
    )
    monkeypatch.setenv("MOON", "new")
    gateway = make_gateway(
        """
import os

names = ("TIDE", "MOON", "AWS_LAMBDA_FUNCTION_NAME")
loaded = [os.environ.get(name) for name in names]

def handler(event, context):
    return [loaded, [os.environ.get(name) for name in names]]
"""
    )
    assert ask(gateway).json() == [["low", "new", "Probe"], [None, "new", None]]


def test_a_client_that_hangs_up_early_causes_no_error(make_gateway: Gateways) -> None:
    gateway = make_gateway(COUNT)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [], "raw_path": b"/", "query_string": b""}
    asyncio.run(gateway(scope, receive, send))
    assert sent == []
    assert ask(gateway).text == "1"


def test_closing_does_not_wait_for_running_requests(make_gateway: Gateways) -> None:
    """A waiting request must not delay the end of the process; its environment ends with its request."""
    gateway = make_gateway(WAITING, integration_seconds=0.1)
    assert ask(gateway, path="/wait").status_code == 503
    gateway.close()
    assert len(environments()) == 1
    loaded = [module for name, module in sys.modules.items() if name.startswith("_tidemark_function_")]
    loaded[-1].released.set()
    wait_until(lambda: not environments(), "the end of the environment")


def environments() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "environment of Probe"]


def test_json_bodies_keep_every_character(make_gateway: Gateways) -> None:
    text = json.dumps({"text": "é ☃ 𝄞 \u2028 \x00"}, ensure_ascii=False)
    answer = ask(
        make_gateway(ECHO), "POST", content=text.encode(), headers={"content-type": "application/json"}
    )
    assert answer.json()["event"]["body"] == text
