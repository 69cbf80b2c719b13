"""Mangum, which makes an ASGI request of an HTTP API's event, without its faults.

It splits `Host` at each colon, takes `X-Forwarded-Port` for a number and every header for text that
can be encoded (0.22): a client that sends anything else would get a 500, and the log a stack trace.
And it runs each request with a queue, a buffer and a log line, which is a tenth of a warm append's CPU
(`benchmarks/cpu.py`): here a request is one message, and a response is a list of them.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property, partial
from typing import Any, Final
from urllib.parse import unquote

from mangum.handlers import HTTPGateway
from mangum.types import LambdaConfig, Response
from starlette.types import ASGIApp, Message

from tidemark.http import error_handlers
from tidemark.http.app import create_data_path
from tidemark.http.backend import one_at_a_time
from tidemark.log.schema import PLAIN_EPOCH
from tidemark.observability.invocation import Handler, thread_loop
from tidemark.service.stores import connect
from tidemark.settings import Settings

_log = logging.getLogger("tidemark")

#: No content type has a line end in it, so every body travels as base64: a third more, whatever it
#: holds. As text, a page of quotes or of Cyrillic would be escaped beyond Lambda's 6 MB.
_CONFIG: Final = LambdaConfig(api_gateway_base_path="/", text_mime_types=["\n"], exclude_headers=[])


class HttpApi(HTTPGateway):
    """Payload format 2.0, of an HTTP API or a function URL."""

    @cached_property
    def scope(self) -> Any:
        """The request as it came, whatever is in its headers. A half of a character, which no bytes
        stand for, becomes a question mark. Mangum asks for it twice in each request."""
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


def adapted(app: ASGIApp) -> Handler:
    """The ASGI application as a function's handler of HTTP events."""
    thread_loop()

    def handle(event: Any, context: Any) -> dict[str, Any]:
        request = HttpApi(event, context, _CONFIG)
        return request(asyncio.get_event_loop().run_until_complete(_respond(app, request)))

    return handle


async def _respond(app: ASGIApp, request: HttpApi) -> Response:
    """The whole response. The app's error handlers answer most exceptions; this answers those raised by
    middleware."""
    received: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if received:
            return received.pop()
        return await asyncio.Future[Message]()  # A function does not learn that a client has hung up.

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(request.scope, receive, send)
    except Exception:  # noqa: BLE001 - whatever it is, the client gets a response
        if len(sent) < 2 or sent[-1].get("more_body", False):
            _log.exception("unexpected error around the application")
            sent.clear()
            await error_handlers.response(500, error_handlers.INTERNAL)(request.scope, receive, send)
    start, *parts = sent
    body = b"".join([part.get("body", b"") for part in parts])
    return Response(status=start["status"], headers=start.get("headers", []), body=body)


def create_function_app(settings: Settings, *, writes: bool = False) -> ASGIApp:
    """Raises InvalidSetting for a function that would serve everybody without a token."""
    settings.authorization.check_not_open()
    stores = connect(settings)
    check = partial(stores.check_format, PLAIN_EPOCH if writes else 0)
    return create_data_path(one_at_a_time(stores, settings), check)
