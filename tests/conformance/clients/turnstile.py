"""A proxy in front of a server that lets nobody in for a while, as a platform does that has no room."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a gateway says by itself: not in our words, and mostly without `Retry-After`."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


#: An HTTP API whose function has no environment free, or whose own limit is reached; a function's
#: own address whose function has none free; and the application, whose table throttles.
NO_ENVIRONMENT = Refusal(503, b'{"message":"Service Unavailable"}')
LIMIT = Refusal(429, b'{"message":"Too Many Requests"}')
NO_ENVIRONMENT_AT_A_FUNCTION = Refusal(429, b'{"Message":"Rate Exceeded."}')
BUSY = Refusal(429, b'{"error":"Too many requests for this stream; try again in 1 s"}', {"Retry-After": "1"})
FAILED = Refusal(500, b'{"message":"Internal Server Error"}')


@dataclass
class Turnstile:
    base_url: str
    origin: str
    #: Each is said once, to whoever comes first.
    refusals: list[Refusal] = field(default_factory=list)
    #: Method and status of every answer.
    answered: list[tuple[str, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self, refusal: Refusal, times: int = 3) -> None:
        with self.lock:
            self.refusals = [refusal] * times

    def next(self) -> Refusal | None:
        with self.lock:
            return self.refusals.pop() if self.refusals else None


@contextmanager
def in_front_of(origin: str) -> Iterator[Turnstile]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            refusal = turnstile.next()
            status, headers, answer = pass_on(self, body) if refusal is None else said(refusal)
            turnstile.answered.append((self.command, status))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer if self.command != "HEAD" else b"")

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the base class's own names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
            pass

    def said(refusal: Refusal) -> tuple[int, list[tuple[str, str]], bytes]:
        return refusal.status, [("Content-Type", "application/json"), *refusal.headers.items()], refusal.body

    def pass_on(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Whole, as an HTTP API does."""
        sent = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        with closing(http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)) as connection:
            connection.request(request.command, request.path, body, sent)
            answer = connection.getresponse()
            headers = [pair for pair in answer.getheaders() if pair[0].lower() not in HOP_BY_HOP]
            return answer.status, headers, answer.read()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    turnstile = Turnstile(f"http://127.0.0.1:{server.server_address[1]}", origin)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield turnstile
    finally:
        server.shutdown()
        server.server_close()
