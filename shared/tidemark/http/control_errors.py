"""Errors of the listed routers, in the form of all others: a status and `{"error": …}`."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from tidemark.http import error_handlers
from tidemark.http.headers import METHODS
from tidemark.protocol.errors import Malformed


def install(app: FastAPI) -> None:
    error_handlers.install(app)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_exception)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """400, with the first thing that a model did not accept: `body.lease_ttl_ms: Input should be …`."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return error_handlers.error_response(request, Malformed(f"{place}: {first['msg']}"))


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS":
        return error_handlers.preflight()
    if error.status_code == 404:
        return error_handlers.response(404, "No resource has this path; /v1/openapi.json lists all paths")
    if error.status_code != 405:
        return error_handlers.response(error.status_code, str(error.detail))
    allow = ", ".join(methods_at(request))
    message = f"{request.method} is not allowed here; allowed: {allow}"
    return error_handlers.response(405, message, {"Allow": allow})


def methods_at(request: Request) -> list[str]:
    """Of all routes with the request's path: each answers to its own methods, to HEAD as to GET, and to
    OPTIONS."""
    routes = request.app.routes
    found = {
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    }
    found |= {"OPTIONS"} | ({"HEAD"} if "GET" in found else set())
    return [method for method in METHODS if method in found]
