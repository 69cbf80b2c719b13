"""What a server of one's own compresses, and for whom."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any, cast

import pytest
from starlette.responses import Response
from starlette.types import Receive

from tests.http.asgi import Door, make_scope
from tidemark.http.compression import MIN_BYTES, Compressed

AWAY, JSON, GZIP = "203.0.113.7", "application/json", ("Accept-Encoding", "gzip")


@pytest.mark.parametrize(
    ("client", "method", "given", "kind", "size", "is_compressed"),
    [
        (AWAY, "GET", [GZIP], JSON, MIN_BYTES, True),
        (AWAY, "GET", [("Accept-Encoding", "br, GZIP;q=0.5")], "text/plain", MIN_BYTES, True),
        ("127.0.0.1", "GET", [GZIP, ("X-Forwarded-For", AWAY)], JSON, MIN_BYTES, True),
        ("127.0.0.1", "GET", [GZIP], JSON, MIN_BYTES, False),
        ("::1", "GET", [GZIP], JSON, MIN_BYTES, False),
        (AWAY, "POST", [GZIP], JSON, MIN_BYTES, False),
        (AWAY, "GET", [], JSON, MIN_BYTES, False),
        (AWAY, "GET", [("Accept-Encoding", "br, gzip;q=0")], JSON, MIN_BYTES, False),
        (AWAY, "GET", [GZIP], JSON, MIN_BYTES - 1, False),
        (AWAY, "GET", [GZIP], "text/event-stream", MIN_BYTES, False),
        (AWAY, "GET", [GZIP], "application/octet-stream", MIN_BYTES, False),
        (AWAY, "GET", [GZIP], "video/mp4", MIN_BYTES, False),
    ],
)
def test_what_is_compressed_and_for_whom(  # noqa: PLR0917 - a case each
    client: str, method: str, given: list[tuple[str, str]], kind: str, size: int, is_compressed: bool
) -> None:
    """And only then the entity tag is a weak one."""
    sent, receive = list[Any](), cast("Receive", None)

    async def send(message: Any) -> None:
        sent.append(message)

    response = Response(b"a" * size, headers={"Content-Type": kind, "ETag": '"one"'})
    scope = make_scope(method, "/", given) | {"client": (client, 50000)}
    asyncio.run(Compressed(response)(scope, receive, send))
    headers, body = dict(sent[0]["headers"]), sent[1]["body"]
    assert headers.get(b"content-encoding") == (b"gzip" if is_compressed else None)
    assert headers[b"etag"] == (b'W/"one"' if is_compressed else b'"one"')
    assert int(headers[b"content-length"]) == len(body)
    assert (gzip.decompress(body) if is_compressed else body) == b"a" * size


def test_a_page_is_one_to_caches_whoever_takes_it(server: Door) -> None:
    """`Vary` is there in either form, and the tag of either is still known."""
    path = "/v1/stream/compressed"
    server.put(path, {"Content-Type": "text/plain"}, b"tide " * MIN_BYTES)
    plain, answer = server.get(f"{path}?offset=-1"), server.get(f"{path}?offset=-1", [GZIP])
    assert gzip.decompress(answer.body) == plain.body
    assert (plain["vary"], answer["vary"]) == ("Accept-Encoding", "Accept-Encoding")
    for tag in (plain["etag"], answer["etag"]):
        known = server.get(f"{path}?offset=-1", [GZIP, ("If-None-Match", tag or "")])
        assert (known.status, known["vary"]) == (304, "Accept-Encoding")
