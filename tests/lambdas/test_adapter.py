"""An ASGI application as a function's handler: one message in, and a whole response out."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tests.lambdas.functions import load_event
from tidemark.http.lambda_adapter import adapted

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


@pytest.fixture(autouse=True, scope="module")
def loop() -> Iterator[None]:
    """That of the thread, which the adapter uses. One that nobody closes is reported by a later test."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield
        asyncio.set_event_loop(None)


def answer_of(app: Any) -> dict[str, Any]:
    return adapted(app)(load_event("post-append"), None)


def test_the_body_arrives_whole_and_the_parts_of_a_response_leave_as_one() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert (message["type"], message["more_body"]) == ("http.request", False)
        await send(START)
        await send({"type": "http.response.body", "body": message["body"], "more_body": True})
        await send({"type": "http.response.body", "body": b"!", "more_body": False})

    answer = answer_of(app)
    assert answer["statusCode"] == 200
    assert b64decode(answer["body"]) == load_event("post-append")["body"].encode() + b"!"
    assert answer["headers"] == {"content-type": "text/plain"}


def test_a_function_never_learns_that_a_client_has_hung_up() -> None:
    """Else a long-poll would end as soon as it begins."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        hung_up = asyncio.ensure_future(receive())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not hung_up.done()
        hung_up.cancel()
        await send(START)
        await send({"type": "http.response.body"})

    assert answer_of(app)["statusCode"] == 200


@pytest.mark.parametrize("parts_sent", [0, 1, 2])
def test_an_exception_before_the_end_of_a_response_gets_500_and_a_log_record(
    parts_sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a part of the response nor the exception's text leaves."""
    messages = [START, {"type": "http.response.body", "body": b"half", "more_body": True}]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages[:parts_sent]:
            await send(message)
        raise ValueError("secret")

    answer = answer_of(app)
    assert answer["statusCode"] == 500
    assert json.loads(b64decode(answer["body"])) == {"error": "Internal error; try the request again"}
    assert "secret" in caplog.text
    assert b"secret" not in json.dumps(answer).encode()


def test_an_exception_after_the_response_is_the_applications_own() -> None:
    """Starlette raises what its handler of errors has answered once more."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START | {"status": 500})
        await send({"type": "http.response.body", "body": b"answered"})
        raise ValueError

    answer = answer_of(app)
    assert (answer["statusCode"], answer["headers"]) == (500, {"content-type": "text/plain"})
