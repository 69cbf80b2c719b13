"""What went wrong, as an answer: a status, `{"error": …}`, and never a stack trace."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tidemark.http.bucket_routes import allowed_methods
from tidemark.http.headers import METHODS, PREFLIGHT
from tidemark.http.requests import STREAM_ROOT
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.errors import ProtocolError

_log = logging.getLogger("tidemark")


def install(app: FastAPI) -> None:
    app.add_exception_handler(ProtocolError, _refused)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _unexpected)


def _answer(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """A fault says something about this moment: it is never cached."""
    headers = {"Cache-Control": NO_STORE} | (headers or {})
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/json")
    return JSONResponse({"error": message}, status, headers)


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, ProtocolError)
    if refusal.status >= 500 and refusal.__cause__ is not None:
        cause = refusal.__cause__
        _log.warning("%s is answered %d: %s: %s", request.method, refusal.status, type(cause).__name__, cause)
    return refusal_answer(request, refusal)


def refusal_answer(request: Request, refusal: ProtocolError) -> Response:
    return _answer(request, refusal.status, refusal.message, refusal.headers)


async def _not_routed(request: Request, fault: Exception) -> Response:
    """No such path, no such method, or a browser that asks before it sends."""
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=PREFLIGHT | {"Content-Type": "text/plain"})
    assert isinstance(fault, HTTPException)
    if fault.status_code == 405:
        return _not_allowed(request)
    if fault.status_code == 404:
        return _answer(request, 404, f"Nothing is here; streams live under {STREAM_ROOT}")
    return _answer(request, fault.status_code, str(fault.detail))


def _not_allowed(request: Request) -> Response:
    try:
        allow = ", ".join(_allowed_methods(request))
    except ProtocolError as refusal:
        return refusal_answer(request, refusal)
    message = f"{request.method} is not allowed here; allowed: {allow}"
    return _answer(request, 405, message, {"Allow": allow})


def _allowed_methods(request: Request) -> Sequence[str]:
    if request.scope["path"].startswith(STREAM_ROOT):
        return METHODS
    return METHODS[:1] if request.scope["path"].startswith("/v1/") else allowed_methods(request)


async def _left(request: Request, _: Exception) -> Response:
    """The client has hung up in the middle of its request: no fault of ours, and nobody to answer."""
    _log.warning("%s: the client left before it had sent its whole request", request.method)
    return Response(status_code=499)


async def _unexpected(request: Request, fault: Exception) -> Response:
    _log.error("unexpected fault in %s", request.method, exc_info=fault)
    return _answer(request, 500, "Internal error; the request may be tried again")
