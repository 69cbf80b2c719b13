"""The application as a function's handler of events."""

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from tests.lambdas.functions import load_event
from tidemark.http.lambda_adapter import adapted


@pytest.fixture(autouse=True, scope="module")
def loop() -> Iterator[None]:
    """That of the thread, which the adapter uses. One that nobody closes is reported by a later test."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


def answer_of(respond: Any) -> dict[str, Any]:
    return adapted(respond)(load_event("post-append"), None)


def test_a_function_never_learns_that_a_client_has_hung_up() -> None:
    """Else a long-poll would end as soon as it begins."""

    async def respond(request: Request) -> Response:
        await request.body()
        hung_up = asyncio.ensure_future(request.receive())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not hung_up.done()
        hung_up.cancel()
        return Response()

    assert answer_of(respond)["statusCode"] == 200


def test_an_exception_of_a_guard_gets_500_and_a_log_record(caplog: pytest.LogCaptureFixture) -> None:
    """The exception's text does not leave."""

    async def respond(_: Request) -> Response:
        raise ValueError("secret")

    answer = answer_of(respond)
    assert answer["statusCode"] == 500
    assert json.loads(b64decode(answer["body"])) == {"error": "Internal error; try the request again"}
    assert "secret" in caplog.text
    assert b"secret" not in json.dumps(answer).encode()
