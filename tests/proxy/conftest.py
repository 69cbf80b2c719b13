"""An upstream that behaves as a test says, and a server that may call it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, Final

import httpx
import jwt
import pytest

from tests.http_server import Handler
from tests.protocol.event_source import parse_events
from tests.waiting import PATIENCE_SECONDS
from tidemark.server.serve import server_in_memory
from tidemark.settings import AuthorizationSettings, Settings

SECRET: Final = "s" * 32
NO_HEADERS: Final[Mapping[str, str]] = {}


class UpstreamHandler(Handler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def answer(self) -> None:
        self.upstream.requests.append((self.command, self.path, dict(self.headers), self.received()))
        try:
            self.upstream.behave(self)
        except OSError:
            self.upstream.was_left.set()
        self.close_connection = True

    def start(self, status: int = 200, content_type: str = "text/event-stream", **headers: str) -> None:
        self.send_response(status)
        for name, value in ({"content-type": content_type} | headers).items():
            self.send_header(name.replace("_", "-").title(), value)
        self.send_header("connection", "close")
        self.end_headers()


Behaviour = Callable[[UpstreamHandler], None]


@dataclass
class Upstream:
    url: str = ""
    behave: Behaviour = lambda handler: handler.start()
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    #: The client hung up before the answer had ended.
    was_left: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


def says(*pieces: bytes, content_type: str = "text/event-stream") -> Behaviour:
    def behave(handler: UpstreamHandler) -> None:
        handler.start(content_type=content_type)
        for piece in pieces:
            handler.wfile.write(piece)

    return behave


def steps(first: bytes, second: bytes) -> Behaviour:
    """Begins with `first`, and ends with `second` once the test lets it go on."""

    def behave(handler: UpstreamHandler) -> None:
        handler.start()
        handler.wfile.write(first)
        handler.upstream.go_on.wait(PATIENCE_SECONDS)
        handler.wfile.write(second)

    return behave


def never_ends(handler: UpstreamHandler) -> None:
    """Says `first`, and waits: until a test lets it go on, then until nobody reads it."""
    handler.start()
    handler.wfile.write(b"first ")
    handler.upstream.go_on.wait(2 * PATIENCE_SECONDS)
    for _ in range(600):
        handler.wfile.write(b"more ")
        threading.Event().wait(0.05)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    handler = type("Handler", (UpstreamHandler,), {"upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    upstream.url = f"http://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield upstream
    upstream.go_on.set()
    with suppress(OSError):
        server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Client:
    """Of a server with an upstream: `ask` is a request to the proxy by a token."""

    http: httpx.Client
    upstream: Upstream

    def token(self, scope: str = "proxy:*", subject: str = "ada") -> dict[str, str]:
        claims = {"exp": 4_000_000_000, "scope": scope, "sub": subject}
        return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}

    def asked(self, headers: Mapping[str, str], path: str = "/chat") -> dict[str, str]:
        upstream = {"Upstream-URL": self.upstream.url + path, "Upstream-Method": "POST"}
        return self.token() | upstream | dict(headers)

    def ask(
        self,
        headers: Mapping[str, str] = NO_HEADERS,
        path: str = "/chat",
        content: bytes | Iterable[bytes] = b"{}",
    ) -> httpx.Response:
        sent = httpx.Headers(self.asked(headers, path), "latin-1")
        return self.http.post("/v1/proxy", headers=sent, content=content)

    def read_to_the_end(self, location: str) -> tuple[bytes, httpx.Response]:
        """All of an answer, by long-polls."""
        data, offset = b"", "-1"
        while True:
            page = self.http.get(f"{location}&offset={offset}&live=long-poll")
            assert page.status_code in {200, 204}, page.text
            data, offset = data + page.content, page.headers["Stream-Next-Offset"]
            if "Stream-Closed" in page.headers:
                return data, page

    def close_of(self, location: str) -> dict[str, Any]:
        """The last control event of an answer, by an event stream."""
        events = parse_events(self.http.get(f"{location}&offset=-1&live=sse").content)
        close: dict[str, Any] = json.loads(events[-1].data)
        return close


@pytest.fixture
def client(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("MODEL_KEY", "marked-key\n")
    allowed = f"{upstream.url}/* name=model key=env:MODEL_KEY, http://*.test/* name=wild"
    settings = Settings(proxy_allow=allowed, authorization=AuthorizationSettings(secret=SECRET))
    with server_in_memory(settings) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield Client(http, upstream)
