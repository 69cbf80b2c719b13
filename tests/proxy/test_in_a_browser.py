"""The guide's page asks a model, is reloaded in the middle, opened again, and stops it; an answer is cut."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from tests.browser.chromium import NEEDS_CHROMIUM, opened
from tests.proxy.conftest import Behaviour, Client, UpstreamHandler
from tests.waiting import PATIENCE_SECONDS


def event_of(token: str) -> bytes:
    told = json.dumps({"choices": [{"delta": {"content": token}}]}, ensure_ascii=False)
    return f"data: {told}\n\n".encode()


def a_model(handler: UpstreamHandler) -> None:
    """Tokens of several bytes, cut anywhere; it ends only when nobody reads it."""
    handler.start()
    for number in range(100_000):
        event = event_of(f"🌊{number} ")
        for piece in (event[:50], event[50:]):
            handler.wfile.write(piece)
            handler.upstream.go_on.wait(0.01)


def is_cut(handler: UpstreamHandler) -> None:
    handler.start(content_length="1000")
    handler.wfile.write(event_of("half a"))
    handler.upstream.go_on.wait(2)


def seen_of(client: Client, behave: Behaviour, **task: bool) -> Any:
    """What the page reports."""
    client.upstream.behave = behave
    token = client.token()["Authorization"].removeprefix("Bearer ")
    query = {"server": str(client.http.base_url), "token": token, "model": f"{client.upstream.url}/chat"}
    example = {"example": f"durable-proxy.html?{urlencode(query)}"}
    with opened("durable-proxy-driver.html", example | task) as page:
        return page.report()


@NEEDS_CHROMIUM
def test_an_answer_that_is_cut_is_shown_as_cut(client: Client) -> None:
    """Also in a page that was open before the end."""
    seen = seen_of(client, is_cut, isCut=True)
    assert seen["answers"] == ["half a"] * 2
    assert seen["errors"] == ["The answer is not whole: cut off by upstream: RemoteProtocolError"] * 2


@NEEDS_CHROMIUM
def test_an_answer_survives_a_reload_and_can_be_stopped(client: Client) -> None:
    seen = seen_of(client, a_model)
    whole = "".join(f"🌊{number} " for number in range(len(seen["first"])))
    assert whole.startswith(seen["before"])
    assert whole.startswith(seen["first"]), "something was lost or doubled"
    assert seen["first"] == seen["second"]
    assert seen["errors"] == ["The answer is not whole: aborted"] * 2
    assert len(client.upstream.requests) == 1
    assert client.upstream.was_left.wait(PATIENCE_SECONDS)
