"""The guide's page asks a model, is reloaded in the middle, opened again, and stops it."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from tests.browser.chromium import NEEDS_CHROMIUM, opened
from tests.proxy.conftest import Client, UpstreamHandler
from tests.waiting import PATIENCE_SECONDS


def a_model(handler: UpstreamHandler) -> None:
    """Tokens of several bytes, cut anywhere; it ends only when nobody reads it."""
    handler.start()
    for number in range(100_000):
        told = json.dumps({"choices": [{"delta": {"content": f"🌊{number} "}}]}, ensure_ascii=False)
        event = f"data: {told}\n\n".encode()
        for piece in (event[:50], event[50:]):
            handler.wfile.write(piece)
            handler.upstream.go_on.wait(0.01)


@NEEDS_CHROMIUM
def test_an_answer_survives_a_reload_and_can_be_stopped(client: Client) -> None:
    client.upstream.behave = a_model
    token = client.token()["Authorization"].removeprefix("Bearer ")
    query = {"server": str(client.http.base_url), "token": token, "model": f"{client.upstream.url}/chat"}
    with opened("durable-proxy-driver.html", {"example": f"durable-proxy.html?{urlencode(query)}"}) as page:
        seen = page.report()
    whole = "".join(f"🌊{number} " for number in range(len(seen["first"])))
    assert whole.startswith(seen["before"])
    assert whole.startswith(seen["first"]), "something was lost or doubled"
    assert seen["first"] == seen["second"]
    assert len(client.upstream.requests) == 1
    assert client.upstream.was_left.wait(PATIENCE_SECONDS)
