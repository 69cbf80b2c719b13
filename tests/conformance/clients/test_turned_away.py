"""The official clients where there is no room: what a platform says by itself, and what they make of it."""

import http.client
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from durable_streams import DurableStream, stream

from tests.conformance.clients.node import run_node
from tests.conformance.servers import ROOT, running, temporary_directory, tidemark_server
from tests.http_server import Handler, serving

SCRIPT = Path(__file__).with_name("npm_backoff.mjs")
EXAMPLE = ROOT / "docs" / "examples" / "patient-producer.mjs"

HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a gateway says by itself: not in our words, and mostly without `Retry-After`."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


REFUSALS = {
    "no environment": Refusal(503, b'{"message":"Service Unavailable"}'),
    "the API's limit": Refusal(429, b'{"message":"Too Many Requests"}'),
    "no environment at a function": Refusal(429, b'{"Message":"Rate Exceeded."}'),
    "the table throttles": Refusal(
        429, b'{"error":"Too many requests for this stream; try again in 1 s"}', {"Retry-After": "1"}
    ),
    "the function failed": Refusal(500, b'{"message":"Internal Server Error"}'),
}


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
    class Door(Handler):
        def answer(self) -> None:
            body, refusal = self.received(), turnstile.next()
            status, headers, answer = pass_on(self, body) if refusal is None else said(refusal)
            turnstile.answered.append((self.command, status))
            self.respond(status, answer, headers)

    def said(refusal: Refusal) -> tuple[int, list[tuple[str, str]], bytes]:
        return refusal.status, [("Content-Type", "application/json"), *refusal.headers.items()], refusal.body

    def pass_on(request: Handler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Whole, as an HTTP API does."""
        sent = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        with closing(http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)) as connection:
            connection.request(request.command, request.path, body, sent)
            answer = connection.getresponse()
            headers = [pair for pair in answer.getheaders() if pair[0].lower() not in HOP_BY_HOP]
            return answer.status, headers, answer.read()

    with serving(Door) as url:
        turnstile = Turnstile(url, origin)
        yield turnstile


@pytest.fixture(scope="module")
def turnstile() -> Iterator[Turnstile]:
    with (
        temporary_directory() as directory,
        running(tidemark_server("asgi", directory, LONG_POLL_SECONDS="1")) as server,
        in_front_of(server.base_url) as turnstile,
    ):
        yield turnstile


@pytest.fixture
def name(turnstile: Turnstile) -> str:
    """A stream with nothing in it."""
    name = f"turned-away-{uuid.uuid4()}"
    DurableStream.create(url_of(turnstile, name), content_type="application/json").close()
    turnstile.answered.clear()
    return name


def url_of(turnstile: Turnstile, name: str) -> str:
    return f"{turnstile.base_url}/v1/stream/{name}"


def read_all(turnstile: Turnstile, name: str) -> list[Any]:
    with stream(f"{turnstile.origin}/v1/stream/{name}", live=False) as response:
        items: list[Any] = response.read_json()
        return items


def npm(turnstile: Turnstile, name: str, what: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run_node(SCRIPT, BASE_URL=turnstile.base_url, STREAM=name, WHAT=what))
    return said


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_the_npm_client_comes_again(turnstile: Turnstile, name: str, refusal: Refusal) -> None:
    """Three times turned away it comes a fourth time; what it wrote is there once, because it was
    turned away before anything was done."""
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "append") == {"result": []}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "read") == {"result": [{"n": 1}]}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "long-poll") == {"result": [{"n": 1}]}
    turnstile.refuse(refusal)
    assert npm(turnstile, name, "create") == {"result": []}
    statuses = [status for _, status in turnstile.answered]
    assert statuses.count(refusal.status) == 12
    assert read_all(turnstile, name) == [{"n": 1}]


def test_the_example_of_a_patient_producer_runs(turnstile: Turnstile) -> None:
    turnstile.refusals = list(REFUSALS.values())
    name = run_node(EXAMPLE, BASE_URL=turnstile.base_url).strip().rpartition("/")[2]
    assert read_all(turnstile, name) == [{"n": n} for n in range(10)]
    assert turnstile.refusals == []
