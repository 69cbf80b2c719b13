"""The applications, and the guards of every request: headers, limits, authorization."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemark.http.backend import SPENT_IN_STORAGE, Backend
from tidemark.http.error_handlers import answer_error, error_response, preflight
from tidemark.http.headers import ALWAYS, EXPOSE, METHODS, WRITING
from tidemark.http.limits import BodiesAtOnce, TokenBucket, limit_rate
from tidemark.http.metrics import CountedTraffic, Rates, Traffic
from tidemark.http.paths import Find, Operation, Operations
from tidemark.http.requests import Guard, Respond
from tidemark.http.streams import stream_operations
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.errors import FormatTooNew, Malformed, ProtocolError


async def add_headers(respond: Respond, request: Request) -> Response:
    """Guard around all others, which answers their errors: adds the headers of every response, drops the body
    for HEAD (RFC 9110 §9.3.2), because an HTTP API does not, and counts and times the responses."""
    method, started, spent = request.method, perf_counter(), [0.0]
    SPENT_IN_STORAGE.set(spent)
    try:
        response = await respond(request)
    except ProtocolError as error:
        response = error_response(request, error)
    seconds = perf_counter() - started
    PROCESS.answered(method if method in METHODS else "other", response.status_code, seconds)
    durations = b"storage;dur=%.2f, total;dur=%.2f" % (spent[0] * 1000, seconds * 1000)
    response.raw_headers.append((b"server-timing", durations))
    if method not in WRITING or any(name == b"origin" for name, _ in request.scope["headers"]):
        response.raw_headers.append(EXPOSE)
    response.raw_headers += ALWAYS
    if method == "HEAD":
        response.body = b""  # Content-Length stays: the length of the body of GET.
    return response


_log: Final = logging.getLogger("tidemark")
_NOT_STORED: Final = ("/v1/health", "/v1/openapi.json", "/v1/docs", "/v1/console", "/v1/socket")


@dataclass(slots=True, eq=False)
class HttpApplication:
    """Serves the operations behind `guards`, the outermost first, and answers their errors. Handlers reach it
    as `request.app`. `check_format` is called before the first request. The object is the ASGI adapter;
    the adapter of Lambda is `lambda_adapter.py`."""

    backend: Backend
    find: Find
    guards: InitVar[Iterable[Guard]]
    rates: Rates | None = None
    check_format: Callable[[], None] | None = None
    respond: Respond = field(init=False)

    def __post_init__(self, guards: Iterable[Guard]) -> None:
        self.respond = self._serve
        for guard in reversed([*guards]):
            self.respond = partial(guard, self.respond)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        response = await self.respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _serve(self, request: Request) -> Response:
        scope = request.scope
        scope["app"] = self
        try:
            if self.check_format is not None:
                await self._require_format(self.check_format, scope["path"])
            query = scope.get("query_string", b"")
            # The cache key of the CDN has the names as they were sent: it would store the response to
            # `%6fffset=…` as the response to a request without an offset.
            if b"%" in query and any(b"%" in pair.partition(b"=")[0] for pair in query.split(b"&")):
                raise Malformed("Names of query parameters must not be percent-encoded")
            return preflight() if request.method == "OPTIONS" else await self.find(scope).respond(request)
        except Exception as error:  # noqa: BLE001 - the client gets a response after any error
            response = answer_error(request, error)
            # The traceback's frames keep the body in memory, and often a future with the error, a cycle.
            error.__traceback__ = None
            return response

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle ASGI's lifespan: sample rates until the server ends, then close the backend."""
        async with self.rates.sampling() if self.rates else nullcontext():
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await self.backend.close(scope["seconds_left"]() if "seconds_left" in scope else 0.0)
        await send({"type": "lifespan.shutdown.complete"})

    async def _require_format(self, check: Callable[[], None], path: str) -> None:
        """Check that this release may use the table, before anything is served. A function's start is too
        early, because it must not wait for a silent table. Raises FormatTooNew, and storage's errors."""
        try:
            await self.backend.run(check)
        except FormatTooNew as error:
            _log.critical("%s", error.message)
            raise
        except ProtocolError:
            # Without storage, serve the paths that need none, and check again with the next request.
            if not path.startswith(_NOT_STORED):
                raise
        if self.backend.stores.format_epoch >= 0:
            self.check_format = None


def create_app(
    backend: Backend, outermost: Iterable[Guard] = (), *, with_metrics: bool = False
) -> HttpApplication:
    """Make the application of a server. `with_metrics` adds `/v1/metrics`, `/v1/rates` and `/v1/traffic`."""
    from tidemark.http.api import control_operations
    from tidemark.http.compression import compress
    from tidemark.http.proxy import proxy_operations

    operations = Operations([*stream_operations(), *control_operations(), *proxy_operations(backend)])
    rates = Rates(Traffic()) if with_metrics else None
    guards = guards_of(backend, operations.find, outermost)
    guards += [compress, BodiesAtOnce()]
    if rates:
        guards.append(CountedTraffic(rates.traffic))
    return HttpApplication(backend, operations.find, guards, rates)


def create_data_path(backend: Backend, check_format: Callable[[], None]) -> HttpApplication:
    """Make the application of a function: the operations of a stream. FastAPI is imported with the first
    request for another path (`streams.py`)."""

    def load_more() -> list[Operation]:
        from tidemark.http.api import control_operations
        from tidemark.http.proxy import proxy_operations

        return [*control_operations(), *proxy_operations(backend)]

    operations = Operations(stream_operations(), load_more)
    guards = guards_of(backend, operations.find)
    return HttpApplication(backend, operations.find, guards, check_format=check_format)


def guards_of(backend: Backend, find: Find, outermost: Iterable[Guard] = ()) -> list[Guard]:
    """The guards that the settings turn on, the outermost first. Without keys the application is open to
    everybody, so a deployed function calls `check_not_open` first.

    The imports are here because the libraries add 0.1 s to a cold start.
    """
    settings, per_second = backend.settings.authorization, backend.settings.requests_per_second
    if backend.settings.exports_spans:
        PROCESS.export_spans()
    guards: list[Guard] = [PROCESS.spans.guard] if PROCESS.spans else []
    guards += [add_headers, *outermost]
    if per_second:
        guards.append(partial(limit_rate, bucket=TokenBucket(per_second)))
    if settings.has_edge:
        from tidemark.http.security.origin import behind_edge, origin_secret_loader

        load = origin_secret_loader(settings, asyncio.to_thread)
        guards.append(partial(behind_edge, load=load, is_required=settings.edge_only))
    if settings.is_on:
        from tidemark.http.security.authorization import Authorization, make_check

        check = make_check(settings, backend.stores.table, asyncio.to_thread)
        guards.append(Authorization(find, check, settings.public_read_buckets))
    return guards
