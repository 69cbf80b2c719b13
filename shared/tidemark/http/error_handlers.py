"""Errors as responses: a status, `{"error": …}`, and never a stack trace."""

from __future__ import annotations

import logging

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tidemark.http.bucket_routes import allowed_methods
from tidemark.http.headers import METHODS, PREFLIGHT
from tidemark.http.requests import STREAM_ROOT
from tidemark.protocol.errors import ProtocolError

_log = logging.getLogger("tidemark")


def install(app: FastAPI) -> None:
    app.add_exception_handler(ProtocolError, on_protocol_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_unexpected)


def _response(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error describes this moment, so no cache may keep it."""
    headers = {"Cache-Control": "no-store"} | (headers or {})
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/json")
    return JSONResponse({"error": message}, status, headers)


async def on_protocol_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProtocolError)
    if error.status >= 500 and error.__cause__ is not None:
        cause = error.__cause__
        _log.warning("%s gets %d: %s: %s", request.method, error.status, type(cause).__name__, cause)
    return error_response(request, error)


def error_response(request: Request, error: ProtocolError) -> Response:
    return _response(request, error.status, error.message, error.headers)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """No such path, no such method, or a browser's preflight request."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=PREFLIGHT | {"Content-Type": "text/plain"})
    if error.status_code == 404:
        return _response(request, 404, f"Nothing is here; streams live under {STREAM_ROOT}")
    if error.status_code != 405:
        return _response(request, error.status_code, str(error.detail))
    path: str = request.scope["path"]
    methods: tuple[str, ...] = METHODS
    if not path.startswith(STREAM_ROOT):
        try:
            methods = METHODS[:1] if path.startswith("/v1/") else allowed_methods(request)
        except ProtocolError as invalid_path:
            return error_response(request, invalid_path)
    allow = ", ".join(methods)
    return _response(
        request, 405, f"{request.method} is not allowed here; allowed: {allow}", {"Allow": allow}
    )


async def on_disconnect(request: Request, _: Exception) -> Response:
    """The client hung up in the middle of its request: the server is not at fault, and nobody reads this."""
    _log.warning("%s: the client hung up before it had sent its whole request", request.method)
    return Response(status_code=499)


async def on_unexpected(request: Request, error: Exception) -> Response:
    _log.error("unexpected error in %s", request.method, exc_info=error)
    return _response(request, 500, "Internal error; try the request again")
