"""A client that hands the application exact bytes and hides nothing of its answer.

HTTP libraries tidy up paths, join headers and swallow bodies; what is tested here is what
happens without them. Every answer that passes through is held to the rules that hold for
all of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from tests.answers import Answer, shown
from tests.protocol.event_source import Event, parse_comments
from tests.support import Clock, Process
from tidemark.http.app import create_app
from tidemark.http.backend import Backend
from tidemark.http.headers import EXPOSED, REQUEST_HEADERS
from tidemark.protocol.caching import CATCH_UP_INTERVAL, EPOCH_SECONDS, INTERVAL_SECONDS, MARK_BITS, mark_of
from tidemark.service.stores import Stores
from tidemark.settings import Settings

_T = TypeVar("_T")

Headers = Mapping[str, str] | Sequence[tuple[str, str]]

#: What a test makes a stream with, and returns the path of.
Make = Callable[..., str]
TEXT: Final = {"Content-Type": "text/plain"}
JSON: Final = {"Content-Type": "application/json"}
CLOSE: Final = {"Stream-Closed": "true"}
PRODUCER: Final = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}

HOST: Final = "streams.example:8443"
#: Long enough that only a hang reaches it.
PATIENCE_SECONDS: Final = 600.0

#: §12.7, and what a browser's script needs to read an answer from another origin.
ALWAYS: Final = {
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "cross-origin",
    "access-control-allow-origin": "*",
}
READABLE: Final = frozenset(name.lower() for name in EXPOSED)
SENDABLE: Final = frozenset(each.name.lower().encode() for each in REQUEST_HEADERS)
#: Headers that every page may read (Fetch), that a browser acts on, and that caches do.
OTHERS: Final = re.compile("(access-control|content|cross-origin|referrer|x)-.*|allow|cache-control|vary")


def interval(clock: Clock) -> int:
    """That of the cursors which are given now."""
    return (clock.now_ms // 1000 - EPOCH_SECONDS) // INTERVAL_SECONDS


def check_any_answer(method: str, answer: Answer) -> None:
    """What holds for every answer there is, to whatever request."""
    for name, value in ALWAYS.items():
        assert answer[name] == value, (name, answer)
    exposed = answer["access-control-expose-headers"]
    # Who writes and is no page gets none (`test_every_answer.py`).
    if exposed is not None or method not in {"PUT", "POST", "DELETE"}:
        assert exposed == ", ".join(EXPOSED), answer
    assert {name for name in answer.headers if not OTHERS.fullmatch(name)} <= READABLE, answer
    if method == "HEAD" or answer.status in {204, 304}:
        assert answer.body == b"", answer
    if answer.status in {204, 304}:
        assert answer["content-length"] is None, answer
    elif method != "HEAD" and answer["content-length"] is not None:
        assert int(answer.headers["content-length"]) == len(answer.body)
    if answer.status >= 400:
        _check_fault(method, answer)


def _check_fault(method: str, answer: Answer) -> None:
    assert answer["content-type"] == "application/json", answer
    assert answer["cache-control"] == "no-store", "a fault says something about this moment only"
    if method != "HEAD":
        assert answer.json.keys() - {"outcome"} == {"error"}
        error = answer.json["error"]
        if isinstance(error, dict):  # Of subscriptions: with a code for programs (§7).
            assert error["code"].isupper()
            error = error["message"]
        assert isinstance(error, str)
        assert error


@dataclass(slots=True)
class Exchange:
    """One request under way."""

    body: list[bytes]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    raw_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    #: The last byte was sent.
    done: bool = False
    #: The application has returned; what it raised is here.
    over: bool = False
    failure: Exception | None = None

    async def receive(self) -> Message:
        if self.body:
            chunk = self.body.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self.body)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.raw_headers = list(message["headers"])
        else:
            self.pieces.append(message.get("body", b""))
            self.done = not message.get("more_body", False)
        self.news.set()

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def answer(self) -> Answer:
        headers = _decode_headers(self.raw_headers) if self.status else {}
        return Answer(self.status, headers, self.received)

    async def until(self, condition: Callable[[Answer], bool]) -> Answer:
        """Wait until what has been received so far fulfils the condition."""
        await self._wait_until(lambda: bool(self.status) and condition(self.answer))
        return self.answer

    async def until_done(self) -> None:
        await self._wait_until(lambda: self.done)

    async def _wait_until(self, is_fulfilled: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_fulfilled():
                if self.failure is not None and not self.done:
                    raise self.failure
                assert not self.over, f"the answer ended: {self.answer}"
                self.news.clear()
                await self.news.wait()

    async def serve(self, answering: Awaitable[None]) -> None:
        """A server logs what the application raises once it has answered; here it is kept."""
        try:
            await answering
        except Exception as failure:  # noqa: BLE001 - raised where the answer is waited for
            self.failure = failure
        self.over = True
        self.news.set()

    async def until_events(self, count: int) -> list[Event]:
        return (await self.until(lambda answer: len(answer.events) >= count)).events

    async def until_comment(self) -> None:
        await self.until(lambda answer: bool(parse_comments(answer.body)))


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        key = name.decode("ascii")
        assert key == key.lower(), f"ASGI asks for lower case: {key}"
        assert key not in headers, f"{key} is there twice"
        headers[key] = value.decode("ascii")
        assert headers[key] == headers[key].strip()
        assert headers[key].isprintable(), f"{key}: {headers[key]!r}"
    assert list(headers)[-1] == "access-control-allow-origin", "a page must not take half the headers for all"
    return without_timing(headers)


def without_timing(headers: Mapping[str, str]) -> dict[str, str]:
    """Every answer says how long it took, and no two take the same."""
    assert re.fullmatch(r"storage;dur=\d+\.\d\d, total;dur=\d+\.\d\d", headers["server-timing"])
    return {name: value for name, value in headers.items() if name != "server-timing"}


def make_scope(method: str, target: str, headers: Headers) -> dict[str, Any]:
    """`target` is the path and query as they stand on the wire."""
    raw_path, _, query = target.encode("utf-8", "surrogateescape").partition(b"?")
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if not any(name.lower() == "host" for name, _ in pairs):
        pairs.insert(0, ("Host", HOST))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "root_path": "",
        "query_string": query,
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in pairs],
        "client": ("203.0.113.7", 50000),
        "server": ("127.0.0.1", 8000),
    }


@asynccontextmanager
async def exchanging(
    app: ASGIApp, method: str, target: str, headers: Headers, body: list[bytes]
) -> AsyncIterator[Exchange]:
    """A request under way; the client hangs up at the end."""
    exchange, scope = Exchange(body), make_scope(method, target, headers)
    sent = {name for name, _ in scope["headers"] if name.startswith((b"stream-", b"producer-"))}
    assert sent <= SENDABLE, "a page may send them too"
    task = asyncio.create_task(exchange.serve(app(scope, exchange.receive, exchange.send)))
    try:
        yield exchange
    finally:
        exchange.gone.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await task


@dataclass(slots=True)
class Door:
    """The application over real engines, as one process runs it."""

    process: Process
    make_backend: Callable[[Stores, Settings], Backend]
    runner: asyncio.Runner
    settings: Settings
    app: ASGIApp = field(init=False)
    backend: Backend = field(init=False)
    _others: list[Door] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.backend = self.make_backend(self.process.stores, self.settings)
        self.app = create_app(self.backend)

    def configured(self, **settings: Any) -> Door:
        """The same storage behind an application with other settings."""
        other = Door(self.process, self.make_backend, self.runner, replace(self.settings, **settings))
        self._others.append(other)
        return other

    def with_backend(self, **changes: Any) -> Door:
        """The same, with something else in the backend's place."""
        other = self.configured()
        other.app = create_app(replace(other.backend, **changes))
        return other

    def close(self) -> None:
        for door in (self, *self._others):
            door.run(door.backend.close())

    def run(self, scenario: Coroutine[Any, Any, _T]) -> _T:
        return self.runner.run(asyncio.wait_for(scenario, PATIENCE_SECONDS))

    # --- one request after another --------------------------------------------------

    def __call__(
        self, method: str, target: str, headers: Headers = (), body: bytes | list[bytes] = b""
    ) -> Answer:
        return self.run(self.ask(method, target, headers, body))

    def put(self, target: str, headers: Headers = (), body: bytes = b"") -> Answer:
        return self("PUT", target, headers, body)

    def post(self, target: str, headers: Headers = (), body: bytes = b"") -> Answer:
        return self("POST", target, headers, body)

    def cursor_of(self, path: str, interval: int = CATCH_UP_INTERVAL) -> int:
        """The stream's own cursor for an interval."""
        tag = self.head(path)["etag"] or ""
        return interval << MARK_BITS | mark_of(tag.strip('"').partition(":")[0])

    def get(self, target: str, headers: Headers = ()) -> Answer:
        return self("GET", target, headers)

    def head(self, target: str, headers: Headers = ()) -> Answer:
        return self("HEAD", target, headers)

    def delete(self, target: str, headers: Headers = ()) -> Answer:
        return self("DELETE", target, headers)

    # --- several at once ------------------------------------------------------------

    async def ask(
        self, method: str, target: str, headers: Headers = (), body: bytes | list[bytes] = b""
    ) -> Answer:
        """The whole answer; for one that streams, once it has ended."""
        async with self.open(method, target, headers, body) as exchange:
            await exchange.until_done()
        answer = shown(method, target, headers, body, exchange.answer)
        check_any_answer(method, answer)
        return answer

    @asynccontextmanager
    async def open(
        self, method: str, target: str, headers: Headers = (), body: bytes | list[bytes] = b""
    ) -> AsyncIterator[Exchange]:
        """An exchange to watch while it goes on; the client hangs up at the end."""
        pieces = list(body) if isinstance(body, list) else [body]
        async with exchanging(self.app, method, target, headers, pieces) as exchange:
            yield exchange


def by_the_server(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an asynchronous test on the event loop of the server that it asks for."""

    @wraps(test)
    def run(server: Door, **fixtures: Any) -> None:
        server.run(test(server=server, **fixtures))

    return run
