"""A server that accepts so many requests a second, and answers the others with 429 and Retry-After."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import NoReturn

import pytest
from starlette.responses import PlainTextResponse

from tests.authorization.tokens import SECRET
from tests.authorization.ways import WAYS, Asgi, Way
from tests.http.asgi import TEXT, Door, Exchange
from tests.stack.engines import LocalServices
from tests.stack.gateway import behind
from tests.support import MonotonicClock, make_world
from tests.waiting import eventually
from tidemark.http.limits import MAX_HELD_BYTES, SMALL_BODY_BYTES, TokenBucket, limit_rate
from tidemark.http.requests import MAX_BODY_BYTES
from tidemark.protocol.errors import StreamNotFound
from tidemark.settings import Settings


def test_a_token_bucket_holds_the_tokens_of_one_second() -> None:
    clock = MonotonicClock()
    bucket = TokenBucket(10, clock)
    assert [bucket.take() for _ in range(10)] == [0.0] * 10
    assert bucket.take() == pytest.approx(0.1)
    clock.now += 0.25
    assert [bucket.take() for _ in range(2)] == [0.0] * 2
    assert bucket.take() == pytest.approx(0.05)
    clock.now += 3600
    assert [bucket.take() == 0 for _ in range(12)] == [True] * 10 + [False] * 2


@pytest.mark.parametrize(("per_second", "retry_after"), [(1000, "1"), (1, "1"), (0.3, "4"), (0.01, "100")])
def test_a_request_over_the_rate_gets_429_with_retry_after(per_second: float, retry_after: str) -> None:
    clock = MonotonicClock()
    with asyncio.Runner() as runner:
        guard = partial(limit_rate, bucket=TokenBucket(per_second, clock))
        way = Asgi(behind(PlainTextResponse("inside"), guard), runner)
        while (answer := way("GET", "/v1/stream/a")).status == 200:
            pass
        assert (answer.status, answer.headers["retry-after"]) == (429, retry_after)
        assert answer.headers["cache-control"] == "no-store"
        assert json.loads(answer.body).keys() == {"error"}
        assert way("HEAD", "/v1/stream/a").body == b""
        assert way("GET", "/v1/health").status == 200, "whether it is up may be asked at any time"
        clock.now += 101
        assert way("GET", "/v1/stream/a").status == 200


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_large_bodies_at_once_have_a_limit_and_the_next_one_gets_429_before_it_is_read(
    door: Door, is_chunked: bool
) -> None:
    """A body that comes without `Expect` is dropped as it comes. Small bodies always fit. Each answer makes
    room."""
    pieces = [bytes(SMALL_BODY_BYTES)] * (MAX_BODY_BYTES // SMALL_BODY_BYTES)
    headers = TEXT if is_chunked else TEXT | {"Content-Length": str(MAX_BODY_BYTES), "Expect": "100-continue"}
    arrived: list[bool] = []
    released = asyncio.Event()

    async def hold(*_: object) -> NoReturn:
        arrived.append(True)
        await released.wait()
        raise StreamNotFound

    async def scenario() -> None:
        async with AsyncExitStack() as stack:

            async def begin(headers: dict[str, str], body: list[bytes]) -> Exchange:
                return await stack.enter_async_context(held.open("POST", "/v1/stream/a", headers, body))

            first = [await begin(headers, pieces) for _ in range(MAX_HELD_BYTES // MAX_BODY_BYTES)]
            await eventually(lambda: len(arrived) == len(first))
            refused = await begin(headers, pieces)
            await refused.until_done()
            assert (refused.status, refused.answer["retry-after"]) == (429, "1")
            assert "16 of 4 MiB" in refused.answer.json["error"]
            assert refused.body == ([] if is_chunked else pieces)
            small = await begin(TEXT, pieces[:1])
            await eventually(lambda: len(arrived) == len(first) + 1)
            released.set()
            for each in (*first, small, await begin(headers, pieces)):
                await each.until_done()
                assert each.status == 404

    held = door.with_backend(append=hold)
    door.run(scenario())


@pytest.fixture
def way(services: LocalServices) -> Iterator[Way]:
    world = make_world(services)
    limited = {"REQUESTS_PER_SECOND": "0.001", "AUTH_SECRET": SECRET, "ALLOW_ANONYMOUS": ""}
    with WAYS["local"](Settings.from_environment(os.environ | world.variables | limited)) as opened:
        yield opened


def test_the_setting_limits_the_server(way: Way) -> None:
    """The limit comes before authorization, so it also slows down a client that guesses tokens."""
    assert way("GET", "/v1/stream/a", TEXT).status == 401
    answer = way("GET", "/v1/stream/a", TEXT)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1000")
    assert answer.headers["access-control-allow-origin"] == "*"
