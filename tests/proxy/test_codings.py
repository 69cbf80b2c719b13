"""Answers that an upstream sends compressed although `identity` is asked for."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import httpcore
import pytest

from tests.proxy.conftest import Behaviour, Client, UpstreamHandler
from tests.proxy.test_proxy import code_of
from tidemark.proxy.upstream import body_parts

TEXT = b"".join(b"data: %d\n\n" % number for number in range(30_000))
_RAW = zlib.compressobj(wbits=-15)
RAW = _RAW.compress(TEXT) + _RAW.flush()


def decode(coding: str, body: bytes, size: int) -> list[bytes]:
    async def content() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def pieces() -> list[bytes]:
        answer = httpcore.Response(200, headers={"Content-Encoding": coding}, content=content())
        return [piece async for piece in body_parts(answer)]

    return asyncio.run(pieces())


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("identity", TEXT),
        ("GZIP", gzip.compress(TEXT)),
        ("identity, x-gzip", gzip.compress(TEXT[:99]) + gzip.compress(b"") + gzip.compress(TEXT[99:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", RAW),
        ("gzip", b""),
    ],
)
def test_a_body_is_decoded_however_it_is_cut(coding: str, body: bytes, size: int) -> None:
    assert b"".join(decode(coding, body, size)) == (TEXT if body else b"")


def test_a_small_body_that_stands_for_much_comes_in_small_pieces() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    pieces = decode("gzip", bomb, len(bomb))
    assert (sum(map(len, pieces)), max(map(len, pieces)) <= 64 * 1024) == (20_000_000, True)


@pytest.mark.parametrize("body", [b"plain", gzip.compress(TEXT)[:-9], gzip.compress(TEXT) + b"rest"])
def test_a_body_that_breaks_its_coding_is_no_whole_answer(body: bytes) -> None:
    with pytest.raises(httpcore.RemoteProtocolError):
        decode("gzip", body, 1000)


def encoded(coding: str, body: bytes, status: int = 200) -> Behaviour:
    def behave(handler: UpstreamHandler) -> None:
        handler.start(status, content_encoding=coding)
        handler.wfile.write(body)

    return behave


def test_a_page_gets_the_answer_and_the_error_decoded(client: Client) -> None:
    client.upstream.behave = encoded("gzip", gzip.compress(TEXT))
    assert client.read_to_the_end(client.ask().headers["Location"])[0] == TEXT
    client.upstream.behave = encoded("deflate", zlib.compress(b"not marked-key"), 401)
    assert client.ask().text == "not ***"


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, br", "x"])
def test_another_coding_is_refused_by_name(client: Client, coding: str) -> None:
    client.upstream.behave = encoded(coding, b"?")
    refused = client.ask()
    assert code_of(refused) == (502, "UPSTREAM_ERROR")
    assert f"coding {coding!r}" in refused.json()["error"]["message"]
    client.upstream.behave = encoded(coding, b"?", 429)
    refused = client.ask()
    assert (refused.status_code, refused.headers["Upstream-Status"]) == (502, "429")
    assert f"coding {coding!r}" in refused.text
