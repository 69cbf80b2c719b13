"""The three ways in: a server's own ASGI, an HTTP API's events, a function URL's events.

Each takes a request as it stands on the wire and gives back status, headers and body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import pytest
from starlette.types import ASGIApp, Message

from tests.support import make_world
from tidemark.http.app import create_app
from tidemark.http.backend import many_at_once
from tidemark.local.engines import LocalServices
from tidemark.local.environments import Environments
from tidemark.local.events import HttpRequest, http_event
from tidemark.local.gateway import Gateway, read_response
from tidemark.local.template import load_template, match_route
from tidemark.service.stores import connect
from tidemark.settings import Settings

_T = TypeVar("_T")

ROOT = Path(__file__).parents[2]
#: Longer than any request waits: only one that never ends reaches it.
PATIENCE_SECONDS = 120.0
FUNCTION_URL = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.eu-west-1.on.aws"


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: The one header that says something of the moment, and so is no part of what is compared.
    timing: str = field(default="", compare=False)

    @property
    def error(self) -> str:
        text: str = json.loads(self.body)["error"]
        return text


class Way(Protocol):
    def __call__(
        self, method: str, target: str, headers: Mapping[str, str] = ..., body: bytes = ...
    ) -> Answer: ...


class Asgi:
    """Any ASGI application, called from one event loop."""

    def __init__(self, app: ASGIApp, runner: asyncio.Runner) -> None:
        self._app = app
        self._runner = runner

    def __call__(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        return self.run(self.ask(method, target, headers or {}, body))

    def run(self, scenario: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(scenario)

    async def ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        sent: list[Message] = []
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if requests:
                return requests.pop()
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._app(_scope(method, target, headers), receive, send)
        except TimeoutError:
            raise AssertionError(f"{method} {target} got no response") from None
        named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        timing = named.pop("server-timing", "")
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], named, body, timing)


def _scope(method: str, target: str, headers: Mapping[str, str]) -> dict[str, Any]:
    raw_path, _, query = target.encode(errors="surrogateescape").partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "root_path": "",
        "query_string": query,
        "headers": _raw({"Host": "streams.example"} | dict(headers)),
        "client": ("203.0.113.7", 50000),
        "server": ("127.0.0.1", 8000),
    }


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class FunctionUrl:
    """The functions' own URLs: no gateway in front, and the path as the client sent it."""

    def __init__(self) -> None:
        self._template = load_template(ROOT / "template.yaml")
        names = {route.function for route in self._template.routes}
        self._environments = {name: Environments(self._template.functions[name]) for name in names}

    def __call__(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        path, _, query = target.partition("?")
        sent = [("host", FUNCTION_URL), *((name.lower(), value) for name, value in (headers or {}).items())]
        request = HttpRequest(method, path, query, sent, body, "203.0.113.7", 443)
        match = match_route(self._template.routes, method, path)
        assert match is not None
        event = http_event(request, match, datetime.now(UTC)) | {"rawPath": path, "routeKey": "$default"}
        event["requestContext"] |= {"domainName": FUNCTION_URL, "routeKey": "$default"}
        event["requestContext"]["http"]["path"] = path
        answering = self._environments[match.route.function].invoke(json.dumps(event).encode())
        answer = read_response(json.loads(answering.result(60)), method)
        named = dict(answer.headers)
        timing = named.pop("server-timing", "")
        return Answer(answer.status, named, answer.body, timing)

    def close(self) -> None:
        for environments in self._environments.values():
            environments.close()


@contextmanager
def local_server(settings: Settings) -> Iterator[Way]:
    with asyncio.Runner() as runner:
        backend = many_at_once(connect(settings), settings)
        yield Asgi(create_app(backend), runner)
        runner.run(backend.close())


@contextmanager
def http_api(_: Settings) -> Iterator[Way]:
    """Its functions read their settings from the environment variables."""
    gateway = Gateway(load_template(ROOT / "template.yaml"))
    with asyncio.Runner() as runner:
        yield Asgi(gateway, runner)
    gateway.close()


@contextmanager
def function_url(_: Settings) -> Iterator[Way]:
    way = FunctionUrl()
    yield way
    way.close()


WAYS = {"local": local_server, "HTTP API": http_api, "function URL": function_url}


@contextmanager
def in_environment(services: LocalServices) -> Iterator[None]:
    """Environment variables that name a table and a bucket of their own, and let no reader wait."""
    world = make_world(services)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TABLE_NAME", world.table_name)
        patch.setenv("BUCKET_NAME", world.bucket_name)
        patch.setenv("LONG_POLL_SECONDS", "0")
        patch.setenv("SSE_SECONDS", "0")
        patch.setenv("SSE_BUFFERED_SECONDS", "0")
        yield
