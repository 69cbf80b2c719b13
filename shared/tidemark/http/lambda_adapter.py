"""Turns API Gateway events into requests. Replaces part of Mangum to avoid its bugs.

Mangum 0.22 splits `Host` at each colon, expects a number in `X-Forwarded-Port`, and expects headers that can
be encoded; other values from a client cause a 500 and a stack trace. Its queue, buffer and log line for each
request cost a tenth of a warm append's CPU (`benchmarks/cpu.py`). Here a request is one message.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import unquote

from mangum.handlers import HTTPGateway
from mangum.types import LambdaConfig
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tidemark.http import error_handlers
from tidemark.http.app import create_data_path
from tidemark.http.backend import lambda_backend
from tidemark.http.requests import Respond
from tidemark.log.schema import PLAIN_EPOCH
from tidemark.observability.invocation import Handler, thread_loop
from tidemark.service.stores import connect
from tidemark.settings import Settings

_log = logging.getLogger("tidemark")

#: No content type contains a line end, so every body is sent as base64, a third larger. As JSON text, a page
#: of quotes or of Cyrillic would be escaped beyond Lambda's 6 MB.
_CONFIG: Final = LambdaConfig(api_gateway_base_path="/", text_mime_types=["\n"], exclude_headers=[])


class HttpApi(HTTPGateway):
    """An event in payload format 2.0, from an HTTP API or a function URL."""

    @cached_property
    def scope(self) -> Any:
        """The ASGI scope. A lone surrogate in a header, which has no UTF-8 form, becomes "?". Cached because
        Mangum reads it twice."""
        event = self.event
        request = event["requestContext"]
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        if event.get("cookies"):
            headers["cookie"] = "; ".join(event["cookies"])
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "http_version": "1.1",
            "method": request["http"]["method"],
            "scheme": "http" if headers.get("x-forwarded-proto") == "http" else "https",
            "path": unquote(request["http"]["path"]) or "/",
            "raw_path": None,
            "root_path": "",
            "query_string": event.get("rawQueryString", "").encode(errors="replace"),
            "headers": [
                [name.encode(errors="replace"), str(value).encode(errors="replace")]
                for name, value in headers.items()
            ],
            "server": (request.get("domainName", "localhost"), 443),
            "client": (request["http"].get("sourceIp"), 0),
            "aws.event": event,
            "aws.context": self.context,
        }


def adapted(respond: Respond) -> Handler:
    """The application as a function's handler of HTTP events."""
    thread_loop()

    def handle(event: Any, context: Any) -> dict[str, Any]:
        gateway = HttpApi(event, context, _CONFIG)
        response = asyncio.get_event_loop().run_until_complete(_response(respond, gateway))
        answer: Any = {"status": response.status_code, "headers": response.raw_headers}
        return gateway(answer | {"body": response.body})

    return handle


async def _response(respond: Respond, event: HttpApi) -> Response:
    """The application answers most exceptions; this catches exceptions of its guards."""
    received: list[Message] = [{"type": "http.request", "body": event.body, "more_body": False}]

    async def receive() -> Message:
        if received:
            return received.pop()
        return await asyncio.Future[Message]()  # Lambda does not report that a client has disconnected.

    try:
        return await respond(Request(event.scope, receive))
    except Exception:  # noqa: BLE001 - the client gets a response after any error
        _log.exception("unexpected error around the application")
        return error_handlers.response(500, error_handlers.INTERNAL)


def create_function_app(settings: Settings, *, writes: bool = False) -> Respond:
    """Make the application of a function. Raises InvalidSetting if everybody could use it without a token."""
    settings.authorization.check_not_open()
    stores = connect(settings)
    check = partial(stores.check_format, PLAIN_EPOCH if writes else 0)
    return create_data_path(lambda_backend(stores, settings), check).respond
