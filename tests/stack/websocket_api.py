"""`VIA=lambda`: a WebSocket API in front of the deployed function, and the API by which functions send to its
connections (`@connections`).

Every text frame becomes the event that API Gateway would send to the function behind the API, as
JSON, and the body that is returned goes back. The messages of a connection are handled concurrently. API
Gateway's quotas are not imitated, and pings go to the function as well, which answers them the same.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, Self
from urllib.parse import unquote

from tests.stack.environments import Environments, InvocationFailed, payload_of
from tests.stack.events import SocketClient, domain_of, make_id, message_event
from tests.stack.template import Function
from tidemark.protocol.socket import PATH
from tidemark.server import Receive, Scope, Send
from tidemark.server.ports import LOOPBACK

_INTEGRATION_SECONDS: Final = 29.0
#: Environments for messages. Their function waits for storage alone: more of them would only take the
#: processor from each other.
MOST_AT_ONCE: Final = 64
#: A client may leave a message unread for so long. AWS names no number; functions wait for 3 s.
_UNREAD_SECONDS: Final = 2.0
#: These codes close a connection that a function ends, or that sent a binary frame.
_GOING_AWAY, _UNSUPPORTED = 1001, 1003


class PostRefused(Exception):
    """A message that was posted to a connection is not delivered."""

    def __init__(self, status: int, kind: str) -> None:
        super().__init__(kind)
        self.status = status
        self.kind = kind


class Connections:
    """The open connections, by their ids."""

    def __init__(self) -> None:
        self._senders: dict[str, Callable[[dict[str, Any]], Future[None]]] = {}

    @contextmanager
    def opened(self, send: Send) -> Iterator[str]:
        """Yields the id of a new connection."""
        connection_id, loop = make_id(), asyncio.get_running_loop()

        async def deliver(message: dict[str, Any]) -> None:
            await send(message)

        self._senders[connection_id] = lambda message: asyncio.run_coroutine_threadsafe(
            deliver(message), loop
        )
        try:
            yield connection_id
        finally:
            self._senders.pop(connection_id, None)

    def post(self, connection_id: str, data: bytes) -> None:
        """Sends to a connection, from any thread but the loop's. Raises PostRefused."""
        send = self._senders.get(connection_id)
        if send is None:
            raise PostRefused(410, "GoneException")
        try:
            sending = send({"type": "websocket.send", "text": data.decode(errors="replace")})
            try:
                sending.result(_UNREAD_SECONDS)
            except TimeoutError:
                sending.cancel()
                raise PostRefused(429, "LimitExceededException") from None
        except (OSError, RuntimeError, CancelledError):  # It has ended meanwhile, or the server has.
            raise PostRefused(410, "GoneException") from None

    def end(self, connection_id: str) -> None:
        """Raises PostRefused."""
        send = self._senders.pop(connection_id, None)
        if send is None:
            raise PostRefused(410, "GoneException")
        with suppress(RuntimeError):  # The server has ended meanwhile.
            send({"type": "websocket.close", "code": _GOING_AWAY})


class WebSocketApi:
    """An ASGI application. The function is loaded when it is made. Raises FunctionNotLoaded."""

    def __init__(self, function: Function, connections: Connections) -> None:
        self._connections = connections
        self._environments = Environments(function, MOST_AT_ONCE)

    def close(self) -> None:
        self._environments.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # The client asks to connect.
        if scope["path"] != PATH:
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        answers: set[asyncio.Task[None]] = set()
        with self._connections.opened(send) as connection_id:
            client = _client(scope, connection_id)
            while (text := (message := await receive()).get("text")) is not None:
                answers.add(answer := asyncio.create_task(self._answer(client, text, send)))
                answer.add_done_callback(answers.discard)
        for answer in answers:
            answer.cancel()
        if message["type"] != "websocket.disconnect":
            await send({"type": "websocket.close", "code": _UNSUPPORTED})

    async def _answer(self, client: SocketClient, text: str, send: Send) -> None:
        event = message_event(client, text, datetime.now(UTC))
        try:
            body = (await self._environments.returned(payload_of(event), _INTEGRATION_SECONDS))["body"]
        except (InvocationFailed, TimeoutError):
            ids = {name: event["requestContext"][name] for name in ("connectionId", "requestId")}
            body = json.dumps({"message": "Internal server error", **ids})
        with suppress(OSError, RuntimeError):  # The client has left, or was sent away.
            await send({"type": "websocket.send", "text": body})


def _client(scope: Scope, connection_id: str) -> SocketClient:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    address = scope.get("client") or (LOOPBACK, 0)
    return SocketClient(
        connection_id=connection_id,
        connected_at=datetime.now(UTC),
        host=domain_of(headers),
        source_ip=address[0],
        user_agent=dict(headers).get("user-agent", ""),
    )


class ManagementServer:
    """What functions ask the platform for, at a loopback port, while it is entered: `POST` and `DELETE` of
    `/@connections/{id}`, and asynchronous invocations. Requests are not authenticated: who does not know a
    connection's id can do nothing with it, and a function of ours is anybody's."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        #: By the functions' names.
        self.functions: dict[str, Environments] = {}
        known = {"connections": connections, "functions": self.functions}
        handler = type("Handler", (_Handler,), known)
        self._server = ThreadingHTTPServer((LOOPBACK, 0), handler)
        self._thread = threading.Thread(target=self._run, name="tidemark-connections", daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that tell the functions of it."""
        url = f"http://{LOOPBACK}:{self._server.server_port}"
        return {"SOCKET_URL": PATH, "SOCKET_ENDPOINT": url, "AWS_ENDPOINT_URL_LAMBDA": url}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _run(self) -> None:
        self._server.serve_forever(poll_interval=0.1)  # The end waits for one.


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    connections: ClassVar[Connections]
    functions: ClassVar[dict[str, Environments]]

    def handle(self) -> None:
        with suppress(OSError):  # The function has left; it asks again.
            super().handle()

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        if found := re.fullmatch("/2015-03-31/functions/(.+)/invocations", self.path):
            self.functions[found[1]].invoke(data)
            self._reply(202)
            return
        self._answer(200, lambda connection_id: self.connections.post(connection_id, data))

    def do_DELETE(self) -> None:
        self._answer(204, self.connections.end)

    def _answer(self, done: int, call: Callable[[str], None]) -> None:
        connection_id = unquote(self.path).rpartition("/@connections/")[2]
        try:
            call(connection_id)
        except PostRefused as refusal:
            self._reply(refusal.status, refusal.kind)
        else:
            self._reply(done)

    def _reply(self, status: int, kind: str = "") -> None:
        body = json.dumps({"message": kind}).encode() if kind else b""
        self.send_response(status)
        if kind:
            self.send_header("x-amzn-ErrorType", kind)
            self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: http.server would write a line for each request."""
