"""The example of a producer that repeats what a platform refuses by itself, with the official npm client."""

import http.client
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from durable_streams import stream

from tests.conformance.clients.node import run_node
from tests.conformance.servers import ROOT, running, temporary_directory, tidemark_server
from tests.http_server import Handler, serving

EXAMPLE = ROOT / "docs" / "examples" / "patient-producer.mjs"
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}
#: What gateways and functions say by themselves: not in our words, and mostly without `Retry-After`.
REFUSALS = [
    (503, b'{"message":"Service Unavailable"}', []),
    (429, b'{"message":"Too Many Requests"}', []),
    (429, b'{"Message":"Rate Exceeded."}', []),
    (429, b'{"error":"Too many requests for this stream; try again in 1 s"}', [("Retry-After", "1")]),
    (500, b'{"message":"Internal Server Error"}', []),
]


def pass_on(request: Handler, origin: str) -> tuple[int, bytes, list[tuple[str, str]]]:
    """Whole, as an HTTP API does."""
    body = request.received()
    sent = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
    with closing(http.client.HTTPConnection(urlsplit(origin).netloc, timeout=120)) as connection:
        connection.request(request.command, request.path, body, sent)
        answer = connection.getresponse()
        headers = [pair for pair in answer.getheaders() if pair[0].lower() not in HOP_BY_HOP]
        return answer.status, answer.read(), headers


def test_the_example_of_a_patient_producer_runs() -> None:
    left: list[Any] = [*REFUSALS]
    with temporary_directory() as directory, running(tidemark_server("asgi", directory)) as server:

        class Door(Handler):
            def answer(self) -> None:
                self.respond(*(left.pop() if left else pass_on(self, server.base_url)))

        with serving(Door) as url:
            name = run_node(EXAMPLE, BASE_URL=url).strip().rpartition("/")[2]
        with stream(f"{server.base_url}/v1/stream/{name}", live=False) as response:
            assert response.read_json() == [{"n": n} for n in range(10)]
    assert left == []
