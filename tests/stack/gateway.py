"""`VIA=lambda`: an HTTP API in front of the deployed handlers, as an ASGI application; a WebSocket API
(`websocket_api.py`) beside it.

Every request becomes the event that API Gateway would send to the function that the template routes it to, as
JSON; the function's response comes back as JSON. The platform's limits hold here too.
"""

import base64
import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import parse_qs, quote

from starlette.requests import Request

from tests.stack.environments import (
    MAX_REQUEST_BYTES,
    Environments,
    InvocationFailed,
    load_handler,
    payload_of,
)
from tests.stack.events import HOP_BY_HOP, HttpRequest, UndecodablePath, decode_path, http_event
from tests.stack.template import Function, Template, match_route
from tests.stack.websocket_api import Connections, WebSocketApi
from tidemark.http.app import add_headers
from tidemark.http.requests import Guard, Respond, handshake_request
from tidemark.http.security import origin
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER
from tidemark.server import Application, Receive, Scope, Send
from tidemark.server.request_log import report

BODILESS: Final = frozenset({204, 304})
DEFAULT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""


def gateway_response(status: int, message: str) -> HttpResponse:
    """A response that the gateway makes itself."""
    body = json.dumps({"message": message}, separators=(",", ":")).encode()
    return HttpResponse(
        status, (("content-type", "application/json"), ("content-length", str(len(body)))), body
    )


def read_response(response: Any, method: str) -> HttpResponse:
    """`response` is the parsed JSON that the function returned. Raises AttributeError, KeyError, TypeError or
    ValueError for another shape."""
    status, text = int(response["statusCode"]), response.get("body") or ""
    body = base64.b64decode(text, validate=True) if response.get("isBase64Encoded") else text.encode()
    given = [(name.lower(), str(value)) for name, value in (response.get("headers") or {}).items()]
    headers = [(name, value) for name, value in given if name not in HOP_BY_HOP]
    if status in BODILESS:
        body = b""
    if body and not any(name == "content-type" for name, _ in headers):
        headers.append(("content-type", DEFAULT_CONTENT_TYPE))
    length = _content_length(status, method, headers, body)
    kept = [(name, value) for name, value in headers if name != "content-length"]
    return HttpResponse(status, (*kept, *length), body)


def for_method(response: HttpResponse, method: str) -> HttpResponse:
    """The response to HEAD has no body, whether the function or the gateway gives it."""
    return replace(response, body=b"") if method == "HEAD" else response


def _content_length(
    status: int, method: str, headers: list[tuple[str, str]], body: bytes
) -> tuple[tuple[str, str], ...]:
    """The gateway counts for itself, except for HEAD, where only the function knows the length.

    Here we part from AWS: an event stream leaves without a length, as the protocol wants it
    (§5.8), although a real HTTP API counts that too. Deployed, the edge sends reads that wait
    to the live function instead (`docs/live.md`).
    """
    if status in BODILESS or ("content-type", "text/event-stream") in headers:
        return ()
    if method == "HEAD":
        return tuple((name, value) for name, value in headers if name == "content-length")
    return (("content-length", str(len(body))),)


_MAX_BODY_BYTES: Final = 10 * 1024 * 1024
#: An HTTP API limits the request line and the headers together.
_MAX_HEAD_BYTES: Final = 10_240
INTEGRATION_SECONDS: Final = 30.0

BAD_REQUEST: Final = gateway_response(400, "Bad Request")
HEAD_TOO_LARGE: Final = gateway_response(431, "Request Header Fields Too Large")
_TOO_LARGE: Final = gateway_response(413, "Request Entity Too Large")
_FAILED: Final = gateway_response(500, "Internal Server Error")
UNAVAILABLE: Final = gateway_response(503, "Service Unavailable")


class RefusedByGateway(Exception):
    """The request never reaches the function; the gateway itself responds."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(f"{response.status}")
        self.response = response


class RequestCutOff(ConnectionError):
    """The client left before it had sent its request."""


class Gateway:
    """The functions are loaded when it is made. Raises FunctionNotLoaded. Sockets are refused where it has no
    `connections`, or the template no WebSocket API."""

    def __init__(
        self,
        template: Template,
        integration_seconds: float = INTEGRATION_SECONDS,
        connections: Connections | None = None,
    ) -> None:
        self._routes = template.routes
        self._integration_seconds = integration_seconds
        self.environments = {
            name: Environments(template.functions[name])
            for name in sorted({route.function for route in template.routes})
        }
        self._sockets: WebSocketApi | None = None
        if template.socket is not None and connections is not None:
            self._sockets = WebSocketApi(template.functions[template.socket], connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif self._sockets is not None:
            await self._sockets(scope, receive, send)
        else:
            # The server refuses the handshake when the application says no.
            await send({"type": "websocket.close"})

    def close(self) -> None:
        for each in (*self.environments.values(), self._sockets):
            if each is not None:
                each.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_head(scope)
            response = await self.respond(_request(scope, await read_request_body(receive)))
        except UndecodablePath:
            response = BAD_REQUEST
        except RefusedByGateway as refused:
            response = refused.response
        except RequestCutOff:
            return
        response = for_method(response, scope["method"])
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def respond(self, request: HttpRequest) -> HttpResponse:
        match = match_route(self._routes, request.method, request.path)
        event = http_event(request, match, datetime.now(UTC))
        payload = payload_of(event)
        if len(payload) > MAX_REQUEST_BYTES:
            return _TOO_LARGE
        environments = self.environments[match.route.function]
        try:
            returned = await environments.returned(payload, self._integration_seconds)
            return read_response(returned, request.method)
        except TimeoutError:
            return UNAVAILABLE
        except InvocationFailed:
            return _FAILED
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            report(f"{environments.function.name} returned a response that no HTTP API accepts: {error!r}")
            return _FAILED


def check_head(scope: Scope) -> None:
    """Raises RefusedByGateway."""
    line = f"{scope['method']} ? HTTP/1.1\r\n".encode() + scope["raw_path"] + scope["query_string"]
    if len(line) + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > _MAX_HEAD_BYTES:
        raise RefusedByGateway(HEAD_TOO_LARGE)


async def read_request_body(receive: Receive) -> bytes:
    """Raises RefusedByGateway, RequestCutOff."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCutOff
        body += message.get("body", b"")
        if len(body) > _MAX_BODY_BYTES:
            raise RefusedByGateway(_TOO_LARGE)
        if not message.get("more_body", False):
            return bytes(body)


def _request(scope: Scope, body: bytes) -> HttpRequest:
    client, server = scope.get("client"), scope.get("server")
    return HttpRequest(
        method=scope["method"],
        path=decode_path(scope["raw_path"].decode("latin-1")),
        query=scope["query_string"].decode("latin-1"),
        headers=[
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
        ],
        body=body,
        source_ip=client[0] if client else "127.0.0.1",
        port=server[1] if server and server[1] else 80,
        protocol=f"HTTP/{scope['http_version']}",
    )


async def _live(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


#: `run.sh` serves the application of this file and name.
_FILE: Final = "app.py"
_ATTRIBUTE: Final = "app"
_SECRET_HEADER: Final = origin.HEADER.lower().encode()
_TYPE_HEADER: Final = origin.TYPE_HEADER.lower().encode()
_HOST_HEADER: Final = origin.HOST_HEADER.lower().encode()
_VERSION_HEADER: Final = EDGE_VERSION_HEADER.lower().encode()
#: Matches a percent sign that encodes nothing, and all characters but letters, digits, "/", "_", ".", "-".
_REWRITTEN: Final = re.compile(r"%(?![0-9a-f]{2})|[^%\w/.-]", re.IGNORECASE | re.ASCII)
#: JavaScript's `encodeURI` keeps these characters, letters and digits. The percent sign is kept too.
_NOT_ENCODED: Final = "%;/?:@&=+$,#-_.!~*'()"


def load_application(function: Function) -> Application:
    """Raises FunctionNotLoaded."""
    served = replace(function, module=function.module.with_name(_FILE), attribute=_ATTRIBUTE)
    application: Any = load_handler(served)
    return application  # type: ignore[no-any-return]


class _Passed(Exception):
    """The guards have refused nothing."""


def behind(application: Application, *guards: Guard) -> Application:
    """The application, and the guards' answers to the requests that they refuse."""

    async def respond(_: Request) -> NoReturn:
        raise _Passed

    refuse: Respond = respond
    for guard in reversed((add_headers, *guards)):
        refuse = partial(guard, refuse)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        answer = application
        if scope["type"] != "lifespan":
            with suppress(_Passed):
                answer = await refuse(Request(scope if "method" in scope else handshake_request(scope)))
        await answer(scope, receive, send)

    return serve


def is_live(method: str, query: str) -> bool:
    """Whether a request is a read that waits, by the rule of `edge/route.js`."""
    return method == "GET" and "live" in parse_qs(query, keep_blank_values=True)


def written_path(raw_path: bytes) -> bytes:
    """The path as the edge writes it, in characters that no origin changes
    (`observability/invocation.py: read_edge_path`)."""
    path = _REWRITTEN.sub(lambda found: f"~~{ord(found[0][0]):x}", quote(raw_path, safe=_NOT_ENCODED))
    return path.replace("%", "~").replace("/.", "/~~2e").encode()


def for_api(scope: Scope) -> Scope:
    """The body goes to the HTTP API as bytes, so that it travels in base64."""
    types = [value for name, value in scope["headers"] if name == b"content-type"]
    headers = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
    if types:
        headers += [(_TYPE_HEADER, b",".join(types)), (b"content-type", b"application/octet-stream")]
    return {**scope, "headers": headers}


class Edge:
    """The edge in front of the HTTP API and the live function, whose application has a hub of its own: the
    trigger wakes its readers.

    `secret` is the origin secret, which goes with every request; empty if it is not known here.
    """

    def __init__(self, api: Gateway, live: Application, secret: str) -> None:
        self._api = api
        self._live = live
        self._secret = secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            goes_live = is_live(scope["method"], scope["query_string"].decode("latin-1"))
            told = self._told(scope)
            scope = told if goes_live else for_api(told)
        else:
            # Unlike the functions behind the API, the streaming one is told of the end, and cleans up.
            goes_live = scope["type"] == "lifespan"
        await (self._live if goes_live else self._api)(scope, receive, send)

    def _told(self, scope: Scope) -> Scope:
        """The request with what the edge tells every origin, in place of what the client said under these
        names."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"localhost")
        said = {_HOST_HEADER: host, _VERSION_HEADER: EDGE_VERSION.encode()}
        if self._secret:
            said[_SECRET_HEADER] = self._secret.encode()
        own = said.keys() | {_TYPE_HEADER}
        sent = [(name, value) for name, value in scope["headers"] if name not in own]
        path = written_path(scope["raw_path"])
        return {**scope, "path": path.decode(), "raw_path": path, "headers": sent + list(said.items())}

    def close(self) -> None:
        self._api.close()
