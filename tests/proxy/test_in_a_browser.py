"""The guide's page asks a model, is reloaded in the middle, opened again, and stops it; an answer is cut."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser.chromium import NEEDS_CHROMIUM, opened
from tests.browser.devtools import browser
from tests.conformance.servers import ROOT
from tests.proxy.conftest import Behaviour, Client, UpstreamHandler
from tests.waiting import PATIENCE_SECONDS, until


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


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The files of a directory, as pages of an origin of their own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=directory))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@NEEDS_CHROMIUM
@pytest.mark.skipif(not (ROOT / "node_modules/openai").exists(), reason="needs node_modules (npm ci)")
def test_the_guides_page_with_an_sdk_is_reloaded_and_offline(client: Client, tmp_path: Path) -> None:
    """An answer is shown from its beginning again, and paid once. An abort stops another answer."""
    words = [f"🌊{number} " for number in range(200)]

    def behave(handler: UpstreamHandler) -> None:
        handler.start()
        for number, word in enumerate(words):
            handler.wfile.write(event_of(word))
            if number == len(words) // 2:
                handler.upstream.go_on.wait(PATIENCE_SECONDS)

    client.upstream.behave = behave
    [block] = re.findall(r"```js\n(.*?)```", (ROOT / "docs/guides/durable-proxy.md").read_text(), re.DOTALL)
    base = str(client.http.base_url).rstrip("/")
    block = block.replace("http://127.0.0.1:4437", base)
    block = block.replace('"unused"', f'"unused", baseURL: "{client.upstream.url}/v1"')
    token = client.token()["Authorization"].removeprefix("Bearer ")
    (tmp_path / "openai").symlink_to(ROOT / "node_modules/openai")
    (tmp_path / "index.html").write_text(
        f"""<!doctype html><meta charset="utf-8"><pre></pre>
        <script type="importmap">{{"imports": {{"openai": "/openai/index.mjs"}}}}</script>
        <script>
        const token = "{token}", messages = [{{ role: "user", content: "Why tides?" }}]
        const show = (text) => document.querySelector("pre").append(text)
        </script>
        <script type="module">{block}</script>"""
    )
    half, whole = "".join(words[: len(words) // 2 + 1]), "".join(words)
    with served(tmp_path) as url, browser() as chromium, chromium.tab(url) as tab:
        shown = partial(tab.value, "document.querySelector('pre')?.textContent")
        until(lambda: shown() == half)
        tab.value("document.querySelector('pre').textContent = 'old'")
        tab.reload()
        until(lambda: shown() == half)
        tab.network(offline=True)
        client.upstream.go_on.set()
        tab.network()
        until(lambda: shown() == whole)
        assert len(client.upstream.requests) == 1
        client.upstream.behave = a_model
        tab.value(f"""import("{base}/v1/proxy.js").then(async ({{ durableFetch }}) => {{
            const controller = new AbortController()
            const call = {{ method: "POST", body: "{{}}", signal: controller.signal }}
            const response = await durableFetch({{ url: "{base}", token }})("{client.upstream.url}/x", call)
            await response.body.getReader().read()
            controller.abort()
        }})""")
        assert client.upstream.was_left.wait(PATIENCE_SECONDS)
