"""The FastAPI application: the routes of every area, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Security
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemark import __version__
from tidemark.http import buckets, catalog, error_handlers, openapi, pages, streams, subscriptions
from tidemark.http.backend import Backend
from tidemark.http.metrics import CountedTraffic, Rates, Traffic
from tidemark.http.paths import Operation
from tidemark.http.routing import DirectRoute, Dispatch, camel
from tidemark.http.scopes import STREAM
from tidemark.protocol.errors import InvalidSubscription


def stream_router() -> APIRouter:
    """The operations of a stream, at each of its paths."""
    router = APIRouter(route_class=DirectRoute, default_response_class=Response)
    for suffix, path in streams.PATHS.items():
        for each in streams.OPERATIONS:
            router.add_api_route(
                path,
                each.handler,
                methods=[each.method],
                tags=["buckets" if suffix == "InBucket" else "streams"],
                operation_id=camel(each.handler.__name__) + suffix,
                dependencies=[Security(STREAM, scopes=each.rights.split())],
                responses=openapi.answers(each.answers, openapi.AS_STORED if each.data else None),
                openapi_extra=openapi.takes(*each.takes, body=each.body),
            )
    return router


#: In the order in which their paths are compared.
_ROUTERS: Final = (
    stream_router(),
    subscriptions.router,
    catalog.router,
    pages.console_router,
    pages.router,
    buckets.router,
)


class Api(FastAPI):
    """`around` is what each request passes before it comes here: headers, limits, authorization."""

    def __init__(self, backend: Backend, traffic: Traffic | None = None) -> None:
        super().__init__(
            title="Tidemark",
            version=__version__,
            description="Durable Streams. § names sections of the protocol's specification.",
            servers=[{"url": "/", "description": "The server that this document comes from."}],
            openapi_tags=[{"name": name, "description": text} for name, text in openapi.TAGS.items()],
            openapi_url=None,  # `pages.py` serves it, and `console` shows it.
        )
        routes = [route for router in _ROUTERS for route in router.routes if isinstance(route, Operation)]
        self.router = Dispatch(routes, lifespan=self._lifespan)
        self.operations = self.router.operations
        self.around: Callable[[ASGIApp], ASGIApp] = lambda app: app
        self.state.backend = backend
        self.state.traffic = traffic
        self.state.rates = None if traffic is None else Rates(traffic)
        if traffic is not None:
            self.add_middleware(CountedTraffic, traffic=traffic)
        error_handlers.install(self)
        self.add_exception_handler(RequestValidationError, on_invalid_body)

    @asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        rates: Rates | None = self.state.rates
        async with self.state.backend.lifespan(self), rates.sampling() if rates else nullcontext():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As Starlette. FastAPI adds telemetry, body limits and an exit stack: a tenth of an append's CPU."""
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        return self.around(Starlette.build_middleware_stack(self))

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            self.openapi_schema = openapi.complete(super().openapi())
        return self.openapi_schema


async def on_invalid_body(request: Request, error: Exception) -> Response:
    """Queries are texts, so it is the body of a subscription's request. Says which member is wrong."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"The body: Invalid JSON: {first['ctx']['error']}"
    else:
        message = f"{'.'.join(map(str, first['loc'][1:])) or 'The body'}: {first['msg']}"
    return error_handlers.error_response(request, InvalidSubscription(message))
