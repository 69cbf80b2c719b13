"""Renders errors as responses: a status and `{"error": …}`, never a stack trace."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from tidemark.http.headers import METHODS, PREFLIGHT
from tidemark.http.requests import PROXY_ROOT, SUBSCRIPTION_ROOTS
from tidemark.observability.metrics import FAULTS, OVERTAKEN, PROCESS
from tidemark.protocol import errors
from tidemark.protocol.caching import NO_STORE

_log = logging.getLogger("tidemark")

#: The scope key that is set for a request with a token.
HAS_TOKEN: Final = "tidemark.has_token"
INTERNAL: Final = "Internal error; try the request again"
#: For requests with a token: the same 404 whether the stream is absent or the token has no right to read it.
_WITH_TOKEN: Final = {
    errors.StreamNotFound().message: "Stream does not exist, or this token has no right to it",
    errors.BucketNotFound().message: "Bucket does not exist, or this token has no right to it",
    errors.SourceNotFound().message: "The source stream does not exist, or this token may not read it",
}
#: The codes below `/v1/proxy`, by status, of errors without their own code (§11 of the proxy's protocol).
_PROXY_CODES: Final = {401: "MISSING_SECRET", 403: "FORBIDDEN", 404: "STREAM_NOT_FOUND", 503: "STORAGE_ERROR"}


def response(
    status: int,
    error: str | dict[str, Any],
    headers: dict[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> Response:
    """Render an error response, which no cache keeps. `error` is a message, or a code and a message."""
    body = {"error": error, **(beside or {})}
    return JSONResponse(body, status, {"Cache-Control": NO_STORE} | (headers or {}))


def preflight() -> Response:
    """Answer a browser's preflight request. All paths allow the same to pages of other origins."""
    return Response(status_code=204, headers=PREFLIGHT | {"Content-Type": "text/plain"})


def answer_error(request: Request, error: Exception) -> Response:
    """Render the response for an exception of a handler, and count and log it where needed."""
    if isinstance(error, ClientDisconnect):  # Not the server's fault, and no client reads this response.
        _log.warning("%s: the client hung up before it had sent its whole request", request.method)
        return Response(status_code=499)
    if isinstance(error, HTTPException):  # FastAPI's.
        return response(error.status_code, error.detail)
    if not isinstance(error, errors.ProtocolError):
        _log.error("unexpected error in %s", request.method, exc_info=error)
        return response(500, INTERNAL)
    if isinstance(error, errors.SequenceGap):
        PROCESS.add(OVERTAKEN)
    if error.status >= 500 and error.__cause__ is not None:
        cause = error.__cause__
        _log.warning("%s gets %d: %s: %s", request.method, error.status, type(cause).__name__, cause)
    return error_response(request, error)


def message_of(error: errors.ProtocolError, *, has_token: bool) -> str:
    return _WITH_TOKEN.get(error.message, error.message) if has_token else error.message


def note_fault(what: str, status: int, failure: BaseException) -> None:
    """Count and log a failure without an error response, such as one in the middle of an event stream."""
    if status >= 500:
        PROCESS.add(FAULTS)
        _log.error(
            "%s gets %d: %r", what, status, failure.__cause__ or failure, exc_info=status == 500 and failure
        )


def error_response(request: Request, error: errors.ProtocolError) -> Response:
    message, headers = message_of(error, has_token=HAS_TOKEN in request.scope), dict(error.headers)
    if request.scope["path"].startswith(PROXY_ROOT):
        code = getattr(error, "code", _PROXY_CODES.get(error.status, "REQUEST_REFUSED"))
        code = "INVALID_SECRET" if code == "MISSING_SECRET" and HAS_TOKEN in request.scope else code
        return response(error.status, {"code": code, "message": message}, headers)
    if isinstance(error, errors.SubscriptionError):
        return response(error.status, {"code": error.code, "message": message, **error.details}, headers)
    return response(error.status, message, headers, error.beside)


def not_allowed(scope: Scope, allowed: Collection[str], hint: str) -> Response:
    """Render the 405, with the methods of the path."""
    allow = ", ".join(method for method in METHODS if method in {"OPTIONS", *allowed})
    message = f"{scope['method']} is not allowed here; allowed: {allow}{hint}"
    if scope["path"].startswith(SUBSCRIPTION_ROOTS):
        return response(405, {"code": "METHOD_NOT_ALLOWED", "message": message}, {"Allow": allow})
    return response(405, message, {"Allow": allow})
