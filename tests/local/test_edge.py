"""The edge in front of `VIA=lambda`: which origin gets a request, and which headers the edge adds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidemark.local.gateway import Edge, Gateway
from tidemark.server import Receive, Scope, Send


class Origin:
    """Keeps the requests that reach it."""

    def __init__(self) -> None:
        self.seen: list[Scope] = []

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        self.seen.append(scope)


def ask(target: bytes, *headers: tuple[bytes, bytes], secret: str = "word") -> tuple[str, Scope]:
    """The origin's name, and the request that reached it."""
    api, live = Origin(), Origin()
    raw_path, _, query = target.partition(b"?")
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "raw_path": raw_path,
        "query_string": query,
        "headers": [(b"host", b"127.0.0.1:4437"), *headers],
    }
    asyncio.run(Edge(cast("Gateway", api), live, secret)(scope, cast("Receive", None), cast("Send", None)))
    return ("live", live.seen[0]) if live.seen else ("api", api.seen[0])


def said(scope: Scope, name: bytes) -> list[bytes]:
    return [value for given, value in scope["headers"] if given == name]


@pytest.mark.parametrize(
    ("target", "origin", "raw_path", "told"),
    [
        (b"/v1/stream/a%3Fb?live=sse&offset=-1", "live", b"/v1/stream/a%3Fb", [b"/v1/stream/a%3Fb"]),
        (b"/v1/stream/a%3Fb?offset=-1&live=long-poll", "live", b"/v1/stream/a%3Fb", [b"/v1/stream/a%3Fb"]),
        (b"/v1/stream/a%3Fb?offset=-1", "api", b"/v1/stream/a~3Fb", []),
        (b"/v1/stream/a%zz", "api", b"/v1/stream/a~~25zz", []),
    ],
)
def test_each_origin_gets_a_path_it_can_read(
    target: bytes, origin: str, raw_path: bytes, told: list[bytes]
) -> None:
    reached, scope = ask(target)
    assert (reached, scope["raw_path"]) == (origin, raw_path)
    assert said(scope, b"x-tidemark-path") == told
    assert said(scope, b"x-tidemark-edge") == [b"word"]
    assert said(scope, b"x-tidemark-host") == [b"127.0.0.1:4437"]


def test_the_edge_replaces_its_own_headers_in_a_clients_request() -> None:
    """With `EDGE_SECRET_NAME` only the functions can read the secret: then the edge leaves its header."""
    forged = [(name, b"forged") for name in (b"x-tidemark-path", b"x-tidemark-host", b"x-tidemark-edge")]
    _, scope = ask(b"/v1/stream/a", *forged)
    assert b"forged" not in [value for _, value in scope["headers"]]
    _, scope = ask(b"/v1/stream/a", *forged, secret="")
    assert said(scope, b"x-tidemark-edge") == [b"forged"]


def test_a_body_goes_to_the_http_api_as_bytes() -> None:
    """`edge/route.js` does the same."""
    sent = ((b"content-type", b"text/plain"), (b"content-type", b"a/b"))
    _, api = ask(b"/v1/stream/a", *sent)
    assert said(api, b"content-type") == [b"application/octet-stream"]
    assert said(api, b"x-tidemark-content-type") == [b"text/plain,a/b"]
    _, live = ask(b"/v1/stream/a?live=sse", *sent, (b"x-tidemark-content-type", b"forged"))
    assert said(live, b"content-type") == [b"text/plain", b"a/b"]
    assert said(live, b"x-tidemark-content-type") == []
