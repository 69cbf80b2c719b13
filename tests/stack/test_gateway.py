"""Requests reach the handlers as in AWS: as JSON, within the platform's limits, through the edge. A response
is read as API Gateway reads format 2.0."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.stack.conftest import write_function
from tests.stack.environments import FunctionNotLoaded
from tests.stack.gateway import Edge, Gateway, read_response
from tests.stack.template import load_template
from tidemark.server import Receive, Scope, Send

MEGABYTE = 1024 * 1024


def ask(gateway: Gateway, method: str = "GET", path: str = "/x", **options: Any) -> httpx.Response:
    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=None) as client:
            return await client.request(method, path, **options)

    return asyncio.run(asking())


MakeGateway = Callable[..., Gateway]


@pytest.fixture
def make_gateway(project: Path) -> Iterator[MakeGateway]:
    """Makes gateways in front of a handler's code."""
    with ExitStack() as stack:

        def make(code: str) -> Gateway:
            write_function(project, "probe", code)
            return stack.enter_context(closing(Gateway(load_template(project / "template.yaml"))))

        yield make


# --- a call of the function ----------------------------------------------------------------


def test_a_request_becomes_an_event_and_the_functions_answer_a_response(make_gateway: MakeGateway) -> None:
    """A handler that changes or keeps its event affects nothing else, so each event is new."""
    gateway = make_gateway(
        """
import json

kept = []

def handler(event, context):
    kept.append(event)
    headers = {"content-type": "application/octet-stream", "told": json.dumps([event, kept[0] is event])}
    return {"statusCode": 203, "headers": headers, "body": "AAEC/w==", "isBase64Encoded": True}
"""
    )
    for is_first in (True, False):
        answer = ask(gateway, "POST", "/a%20b?c=d%20e", content=b"\xff", headers={"X-A": "1"})
        assert (answer.status_code, answer.content) == (203, b"\x00\x01\x02\xff")
        assert answer.headers["content-length"] == "4"
        event, is_kept = httpx.Response(200, content=answer.headers["told"]).json()
        asked = event["rawPath"], event["rawQueryString"], event["headers"]["x-a"]
        assert asked == ("/a b", "c=d%20e", "1")
        assert (event["body"], event["isBase64Encoded"]) == (base64.b64encode(b"\xff").decode(), True)
        assert (event["routeKey"], is_kept) == ("$default", is_first)


SURROUNDINGS = """
import asyncio, json, os

names = ("TIDE", "MOON", "AWS_LAMBDA_FUNCTION_NAME")
loaded = [os.environ.get(name) for name in names]
loops = set()

def handler(event, context):
    loop = asyncio.get_event_loop()
    loops.add(loop)
    left = loop.run_until_complete(asyncio.sleep(0, context.get_remaining_time_in_millis()))
    fields = {"arn": context.invoked_function_arn, "id": context.aws_request_id, "left": left}
    fields |= {"loops": len(loops), "loaded": loaded, "now": [os.environ.get(name) for name in names]}
    return {"statusCode": 200, "body": json.dumps(fields)}
"""


def test_a_handler_has_lambdas_context_its_variables_while_it_loads_and_one_event_loop(
    make_gateway: MakeGateway, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template's plain values and Lambda's own variables; the process's environment overrides them. The
    loop is set and does not run."""
    template, code_uri = project / "template.yaml", "      CodeUri: probe/\n"
    variables = "      Environment: {Variables: {TIDE: low, MOON: full}}\n"
    template.write_text(template.read_text().replace(code_uri, code_uri + variables))
    monkeypatch.setenv("MOON", "new")
    gateway = make_gateway(SURROUNDINGS)
    first, second = ask(gateway).json(), ask(gateway).json()
    assert first["arn"].endswith(":function:Probe")
    assert 0 < first["left"] <= 60_000
    assert first["id"] != second["id"]
    assert (second["loops"], second["loaded"]) == (1, ["low", "new", "Probe"])
    assert second["now"] == [None, "new", None]


@pytest.mark.parametrize(
    "body",
    [
        "raise SystemExit('the tide is out')",
        "return {'statusCode': 200, 'body': b'bytes are not JSON'}",
        "return {'statusCode': 'high'}",
        "return {'statusCode': 200, 'body': '\\ud800'}",
        f"return {{'statusCode': 200, 'body': 'x' * {6 * MEGABYTE + 101}}}",
    ],
    ids=["raises", "bytes", "status", "surrogate", "over six megabytes"],
)
def test_a_function_that_fails_gets_500(
    make_gateway: MakeGateway, body: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The environment is used again: the next request is served as well."""
    gateway = make_gateway(f"def handler(event, context):\n    {body}\n")
    for _ in range(2):
        answer = ask(gateway)
        assert (answer.status_code, answer.json()) == (500, {"message": "Internal Server Error"})
    assert ask(gateway, "HEAD").content == b""
    assert ("the tide is out" in capfd.readouterr().err) == ("the tide is out" in body)


# --- limits --------------------------------------------------------------------------------

COUNT = """
calls = []

def handler(event, context):
    calls.append(1)
    return {"statusCode": 200, "body": str(len(calls))}
"""


async def chunks() -> AsyncIterator[bytes]:
    for _ in range(11):
        yield b"x" * MEGABYTE


TEXT, BINARY = {"content-type": "text/plain"}, {"content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        # A request line and headers of ten kilobytes; the payload's ten megabytes, whether it says so or not.
        (b"", {"authorization": "t" * 10_241}, 431),
        (b"x" * (10 * MEGABYTE + 1), {}, 413),
        (chunks, {}, 413),
        # Lambda's six megabytes are those of the whole event, and a binary body takes a third more in base64.
        (b"x" * (6 * MEGABYTE - 4096), TEXT, 200),
        (b"x" * 6 * MEGABYTE, TEXT, 413),
        (b"x" * 4_800_000, BINARY, 413),
    ],
    ids=["large head", "large", "chunked", "text", "large text", "large binary"],
)
def test_a_request_over_the_platforms_limits_never_reaches_the_function(
    make_gateway: MakeGateway, content: Any, headers: dict[str, str], status: int
) -> None:
    gateway = make_gateway(COUNT)
    sent = content() if callable(content) else content
    answer = ask(gateway, "POST", content=sent, headers=headers)
    assert answer.status_code == status
    if status == 413:
        assert answer.json() == {"message": "Request Entity Too Large"}
    assert ask(gateway).text == ("2" if status == 200 else "1")


# --- loading --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "complaint"), [("import no_such_module\n", "no_such_module"), ("x = 1\n", "no function handler")]
)
def test_a_function_that_does_not_load_is_reported_at_once_by_name(
    make_gateway: MakeGateway, code: str, complaint: str
) -> None:
    with pytest.raises(FunctionNotLoaded, match=complaint):
        make_gateway(code)


# --- the response -------------------------------------------------------------------------

PLAIN_TEXT = ("content-type", "text/plain; charset=utf-8")
BYTES = bytes(range(256))
IN_BASE64 = {"statusCode": 200, "body": base64.b64encode(BYTES).decode(), "isBase64Encoded": True}
WRONG = {"Content-Length": "99", "Connection": "close", "Transfer-Encoding": "chunked"}


@pytest.mark.parametrize(
    ("given", "status", "headers", "body"),
    [
        (IN_BASE64, 200, (PLAIN_TEXT, ("content-length", "256")), BYTES),
        # A body that goes with such a status is dropped, and its length and type with it.
        ({"statusCode": 204, "headers": {"content-length": "5"}, "body": "stray"}, 204, (), b""),
        # The gateway computes the length itself.
        (
            {"statusCode": 200, "headers": WRONG, "body": "a"},
            200,
            (PLAIN_TEXT, ("content-length", "1")),
            b"a",
        ),
    ],
    ids=["base64", "204", "length"],
)
def test_a_response_has_the_functions_status_headers_and_body(
    given: dict[str, Any], status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    answer = read_response(given, "GET")
    assert (answer.status, sorted(answer.headers), answer.body) == (status, sorted(headers), body)


# --- the edge in front ----------------------------------------------------------------------


def ask_edge(target: bytes, *headers: tuple[bytes, bytes], secret: str = "word") -> tuple[str, Scope]:
    """The origin's name, and the request that reached it."""
    seen: list[tuple[str, Scope]] = []

    async def api(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(("api", scope))

    async def live(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(("live", scope))

    raw_path, _, query = target.partition(b"?")
    scope = {"type": "http", "method": "GET", "raw_path": raw_path, "query_string": query}
    scope["headers"] = [(b"host", b"127.0.0.1:4437"), *headers]
    edge = Edge(cast("Gateway", api), live, secret)
    asyncio.run(edge(scope, cast("Receive", None), cast("Send", None)))
    [reached] = seen
    return reached


def said(scope: Scope, name: bytes) -> list[bytes]:
    return [value for given, value in scope["headers"] if given == name]


@pytest.mark.parametrize(
    ("target", "origin", "raw_path"),
    [
        (b"/v1/stream/a%3Fb?live=sse&offset=-1", "live", b"/v1/stream/a~3Fb"),
        (b"/v1/stream/a+b?offset=-1&live=long-poll", "live", b"/v1/stream/a~~2bb"),
        (b"/v1/stream/a%3Fb?offset=-1", "api", b"/v1/stream/a~3Fb"),
        (b"/v1/stream/a%zz", "api", b"/v1/stream/a~~25zz"),
    ],
)
def test_each_origin_gets_a_path_it_can_read(target: bytes, origin: str, raw_path: bytes) -> None:
    reached, scope = ask_edge(target)
    assert (reached, scope["raw_path"]) == (origin, raw_path)
    assert said(scope, b"x-tidemark-edge") == [b"word"]
    assert said(scope, b"x-tidemark-host") == [b"127.0.0.1:4437"]


def test_the_edge_replaces_its_own_headers_and_sends_a_body_to_the_http_api_as_bytes() -> None:
    """With `EDGE_SECRET_NAME` only the functions can read the secret: then the edge leaves its header."""
    names = (b"x-tidemark-host", b"x-tidemark-edge", b"x-tidemark-content-type")
    types = ((b"content-type", b"text/plain"), (b"content-type", b"a/b"))
    sent = (*((name, b"forged") for name in names), *types)
    _, api = ask_edge(b"/v1/stream/a", *sent)
    _, live = ask_edge(b"/v1/stream/a?live=sse", *sent)
    for scope in (api, live):
        assert b"forged" not in [value for _, value in scope["headers"]]
    assert said(api, b"content-type") == [b"application/octet-stream"]
    assert said(api, b"x-tidemark-content-type") == [b"text/plain,a/b"]
    assert said(live, b"content-type") == [b"text/plain", b"a/b"]
    assert said(ask_edge(b"/v1/stream/a", *sent, secret="")[1], b"x-tidemark-edge") == [b"forged"]
