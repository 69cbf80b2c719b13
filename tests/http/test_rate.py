"""A server that accepts so many requests a second, and answers the others with 429 and Retry-After."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse

from tests.authorization.tokens import SECRET
from tests.authorization.ways import WAYS, Asgi, Way
from tests.support import MonotonicClock, make_world
from tidemark.http.app import RateLimited, TokenBucket
from tidemark.http.headers import ResponseHeaders
from tidemark.local.engines import LocalServices
from tidemark.settings import InvalidSetting, Settings

TEXT = {"Content-Type": "text/plain"}


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


def test_a_rate_below_one_a_second_is_kept() -> None:
    clock = MonotonicClock()
    bucket = TokenBucket(0.1, clock)
    assert bucket.take() == 0
    assert bucket.take() == pytest.approx(10)
    clock.now += 10.001
    assert bucket.take() == 0


@pytest.mark.parametrize(("per_second", "retry_after"), [(1000, "1"), (1, "1"), (0.3, "4"), (0.01, "100")])
def test_a_request_over_the_rate_gets_429_with_retry_after(per_second: float, retry_after: str) -> None:
    clock = MonotonicClock()
    with asyncio.Runner() as runner:
        limited = RateLimited(PlainTextResponse("inside"), TokenBucket(per_second, clock))
        way = Asgi(ResponseHeaders(limited), runner)
        while (answer := way("GET", "/v1/stream/a")).status == 200:
            pass
        assert (answer.status, answer.headers["retry-after"]) == (429, retry_after)
        assert answer.headers["cache-control"] == "no-store"
        assert json.loads(answer.body).keys() == {"error"}
        assert way("HEAD", "/v1/stream/a").body == b""
        assert way("GET", "/v1/health").status == 200, "whether it is up may be asked at any time"
        clock.now += 101
        assert way("GET", "/v1/stream/a").status == 200


@pytest.fixture
def way(services: LocalServices) -> Iterator[Way]:
    world = make_world(services)
    variables = {
        "TABLE_NAME": world.table_name,
        "BUCKET_NAME": world.bucket_name,
        "REQUESTS_PER_SECOND": "0.001",
        "AUTH_SECRET": SECRET,
        "ALLOW_ANONYMOUS": "",
    }
    with WAYS["local"](Settings.from_environment(os.environ | variables)) as opened:
        yield opened


def test_the_setting_limits_the_server(way: Way) -> None:
    """The limit comes before authorization, so it also slows down a client that guesses tokens."""
    assert way("GET", "/v1/stream/a", TEXT).status == 401
    answer = way("GET", "/v1/stream/a", TEXT)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1000")
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("value", ["-1", "many", "inf", "nan"])
def test_an_invalid_rate_is_refused(value: str) -> None:
    with pytest.raises(InvalidSetting, match="REQUESTS_PER_SECOND"):
        Settings.from_environment({"REQUESTS_PER_SECOND": value})
