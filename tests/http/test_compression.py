"""What a server of one's own compresses, and for whom."""

import asyncio
import gzip
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from tests.answers import Answer
from tests.http.asgi import Door, make_scope
from tidemark.http.compression import MIN_BYTES, compress

AWAY, JSON, GZIP = "203.0.113.7", "application/json", ("Accept-Encoding", "gzip")


def compressed(client: str, method: str, given: list[tuple[str, str]], response: Response) -> Answer:
    """What a client at this address gets of the response."""

    async def respond(_: Request) -> Response:
        return response

    request = Request(make_scope(method, "/", given) | {"client": (client, 50000)})
    answer = asyncio.run(cast("Any", compress(respond, request)))
    return Answer(200, dict(answer.headers), answer.body)


@pytest.mark.parametrize(
    ("client", "method", "given", "kind", "size", "is_compressed"),
    [
        (AWAY, "GET", [GZIP], JSON, MIN_BYTES, True),
        (AWAY, "GET", [("Accept-Encoding", "br, GZIP;q=0.5")], "text/plain", MIN_BYTES, True),
        (AWAY, "GET", [("Accept-Encoding", "br"), GZIP], JSON, MIN_BYTES, True),
        ("127.0.0.1", "GET", [GZIP, ("X-Forwarded-For", AWAY)], JSON, MIN_BYTES, True),
        ("127.0.0.1", "GET", [GZIP], JSON, MIN_BYTES, False),
        ("::1", "GET", [GZIP], JSON, MIN_BYTES, False),
        (AWAY, "POST", [GZIP], JSON, MIN_BYTES, False),
        (AWAY, "GET", [], JSON, MIN_BYTES, False),
        (AWAY, "GET", [("Accept-Encoding", "br, gzip;q=0")], JSON, MIN_BYTES, False),
        (AWAY, "GET", [("Accept-Encoding", "gzip;q=0.0")], JSON, MIN_BYTES, False),
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
    response = Response(b"a" * size, headers={"Content-Type": kind, "ETag": '"one"'})
    answer = compressed(client, method, given, response)
    assert answer["content-encoding"] == ("gzip" if is_compressed else None)
    assert answer["etag"] == ('W/"one"' if is_compressed else '"one"')
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert (gzip.decompress(answer.body) if is_compressed else answer.body) == b"a" * size


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"one"'}, {"Vary": "Origin"}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_caches_learn_of_the_coding_and_of_all_else(method: str, headers: dict[str, str]) -> None:
    answer = compressed(AWAY, method, [GZIP], Response(b"a" * MIN_BYTES, headers=headers))
    assert answer["etag"] == headers.get("ETag"), "weak already, or none"
    assert answer["vary"] == ("Origin, Accept-Encoding" if "Vary" in headers else "Accept-Encoding")


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


def test_a_file_that_is_compressed_already_is_compressed_once(server: Door) -> None:
    answer = server.get("/v1/console/console.css", [GZIP])
    assert gzip.decompress(answer.body) == server.get("/v1/console/console.css").body
    assert (answer["content-encoding"], answer["vary"]) == ("gzip", "Accept-Encoding")
