"""The three ways in: a server's own ASGI, an HTTP API's events, a function URL's events.

Each takes a request as it stands on the wire and gives back status, headers and body.
"""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
from starlette.types import ASGIApp

from tests.answers import Answer, shown
from tests.http.asgi import Exchange, make_scope
from tests.stack.engines import LocalServices
from tests.stack.environments import Environments
from tests.stack.events import HttpRequest, http_event
from tests.stack.gateway import Gateway, read_response
from tests.stack.template import load_template, match_route
from tests.support import make_world
from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.service.stores import connect
from tidemark.settings import Settings

_T = TypeVar("_T")

ROOT = Path(__file__).parents[2]
TEMPLATE = load_template(ROOT / "template.yaml")
#: Longer than any request waits: only one that never ends reaches it.
PATIENCE_SECONDS = 600.0
NOT_WAITING = dict.fromkeys(("LONG_POLL_SECONDS", "SSE_SECONDS", "SSE_BUFFERED_SECONDS"), "0")
FUNCTION_URL = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.eu-west-1.on.aws"


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
        exchange = Exchange([body])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._app(make_scope(method, target, headers), exchange.receive, exchange.send)
        named = {name.decode(): value.decode() for name, value in exchange.raw_headers}
        timing = named.pop("server-timing", "")
        answer = Answer(exchange.status, named, exchange.received, timing)
        return shown(method, target, headers, body, answer)


class Functions:
    """The deployed handlers, each with an event of the caller's."""

    def __init__(self) -> None:
        names = {route.function for route in TEMPLATE.routes}
        self._environments = {name: Environments(TEMPLATE.functions[name]) for name in names}

    def invoke(self, function: str, event: dict[str, Any], method: str) -> Answer:
        answering = self._environments[function].invoke(json.dumps(event).encode())
        answer = read_response(json.loads(answering.result(PATIENCE_SECONDS)), method)
        named = dict(answer.headers)
        timing = named.pop("server-timing", "")
        return shown(method, function, event, b"", Answer(answer.status, named, answer.body, timing))

    def close(self) -> None:
        for environments in self._environments.values():
            environments.close()


class FunctionUrl(Functions):
    """The functions' own URLs: no gateway in front, and the path as the client sent it."""

    def __call__(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        path, _, query = target.partition("?")
        sent = [("host", FUNCTION_URL), *((name.lower(), value) for name, value in (headers or {}).items())]
        request = HttpRequest(method, path, query, sent, body, "203.0.113.7", 443)
        match = match_route(TEMPLATE.routes, method, path)
        event = http_event(request, match, datetime.now(UTC)) | {"rawPath": path, "routeKey": "$default"}
        event["requestContext"] |= {"domainName": FUNCTION_URL, "routeKey": "$default"}
        event["requestContext"]["http"]["path"] = path
        return self.invoke(match.route.function, event, method)


@contextmanager
def local_server(settings: Settings) -> Iterator[Way]:
    with asyncio.Runner() as runner:
        backend = threaded_backend(connect(settings), settings)
        yield Asgi(create_app(backend), runner)
        runner.run(backend.close())


@contextmanager
def http_api(_: Settings) -> Iterator[Way]:
    """Its functions read their settings from the environment variables."""
    gateway = Gateway(TEMPLATE)
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
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (make_world(services).variables | NOT_WAITING).items():
            patch.setenv(name, value)
        yield
