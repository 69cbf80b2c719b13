"""The SDKs of OpenAI and Anthropic, and the AI SDK, with the `fetch` of `/v1/proxy.js`."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.cutting import cutting
from tests.conformance.clients.node import run_node
from tests.proxy.conftest import Behaviour, Client, UpstreamHandler
from tests.waiting import PATIENCE_SECONDS
from tidemark.http import proxy as endpoint

pytestmark = pytest.mark.slow

SDKS: Final = pytest.mark.parametrize("sdk", ["openai", "anthropic", "ai"])
PROGRAM: Final = Path(__file__).with_name("sdks.mjs")
WORDS: Final = [f"🌊{number} " for number in range(300)]
TEXT: Final = "".join(WORDS)


@pytest.fixture
def module(client: Client, tmp_path: Path) -> str:
    """The module as a Node program has it: downloaded."""
    served = client.http.get("/v1/proxy.js")
    assert served.headers["Content-Type"].startswith("text/javascript")
    file = tmp_path / "proxy.mjs"
    file.write_bytes(served.content)
    return file.as_uri()


def results_of(client: Client, module: str, sdk: str, *tasks: dict[str, Any]) -> list[Any]:
    """Text and error of each answer."""
    base = client.upstream.url + ("" if sdk == "anthropic" else "/v1")
    token = client.token()["Authorization"].removeprefix("Bearer ")
    given = {"sdk": sdk, "upstream": base, "url": str(client.http.base_url), "token": token}
    task = json.dumps({"module": module, "tasks": [given | each for each in tasks]})
    # The proxy that cuts connections has a certificate of its own.
    printed = run_node(PROGRAM, package="openai", TASK=task, NODE_TLS_REJECT_UNAUTHORIZED="0")
    results: list[Any] = json.loads(printed)
    return results


def event_of(handler: UpstreamHandler, word: str) -> bytes:
    if not handler.path.endswith("/messages"):
        chunk = {"id": "a", "choices": [{"index": 0, "delta": {"content": word}}]}
        return f"data: {json.dumps(chunk)}\n\n".encode()
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    return f"event: content_block_delta\ndata: {json.dumps(delta)}\n\n".encode()


def model(seconds: float = 0.0, padding: int = 0) -> Behaviour:
    """Answer with `TEXT`, whole or streamed, as the request asks. `padding` is the length of a comment."""

    def behave(handler: UpstreamHandler) -> None:
        if not json.loads(handler.upstream.requests[-1][3]).get("stream"):
            handler.start(content_type="application/json")
            message = {"role": "assistant", "content": TEXT}
            whole = {"id": "a", "model": "m", "created": 1, "choices": [{"index": 0, "message": message}]}
            handler.wfile.write(json.dumps(whole | {"content": [{"type": "text", "text": TEXT}]}).encode())
            return
        handler.start()
        for word in WORDS:
            handler.wfile.write(event_of(handler, word) + b": %b\n\n" % (b"." * padding))
            handler.upstream.go_on.wait(seconds)
        handler.wfile.write(b"" if handler.path.endswith("/messages") else b"data: [DONE]\n\n")

    return behave


@SDKS
def test_an_sdk_gets_an_answer_streamed_or_whole(client: Client, module: str, sdk: str) -> None:
    """With the server's key instead of `unused`, or with its own; the answer of a key is paid once."""
    client.upstream.behave = model()
    tasks: list[dict[str, Any]] = [{"isWhole": True}, {"key": "k"}, {"key": "k"}, {"apiKey": "own-key"}]
    assert results_of(client, module, sdk, *tasks) == [{"text": TEXT}] * 4
    sent = [{name.lower(): value for name, value in each[2].items()} for each in client.upstream.requests]
    assert [each["authorization"] for each in sent] == ["Bearer marked-key"] * 2 + ["Bearer own-key"]
    assert not any("x-api-key" in each for each in sent)


@SDKS
def test_an_answer_is_whole_and_paid_once_on_a_bad_network(client: Client, module: str, sdk: str) -> None:
    client.upstream.behave = model(seconds=0.01)
    with cutting(client.http.base_url.port or 0, seed=1) as proxy:
        assert results_of(client, module, sdk, {"url": proxy.base_url}) == [{"text": TEXT}]
    assert proxy.cuts >= 3
    assert len(client.upstream.requests) == 1


def test_a_slow_reader_gets_an_answer_of_a_busy_server(client: Client, module: str) -> None:
    """The answer exceeds the buffers of a connection, and the server refuses two requests of each kind."""
    client.upstream.behave = model(padding=20_000)
    assert results_of(client, module, "openai", {"busy": 2, "pauseEach": 10}) == [{"text": TEXT}]
    assert len(client.upstream.requests) == 1


@SDKS
def test_a_refusal_of_the_upstream_is_what_the_sdk_expects(client: Client, module: str, sdk: str) -> None:
    """The SDK raises status and headers, and repeats a 429 after the upstream's time, with the same key."""
    names = {"openai": ["AuthenticationError", "RateLimitError"], "ai": ["APICallError", "APICallError"]}
    refusals = [(401, {}), (429, {"x_ratelimit_remaining_requests": "0", "retry_after_ms": "1"})] * 2

    def behave(handler: UpstreamHandler) -> None:
        if not refusals:
            return model()(handler)
        status, headers = refusals.pop(0)
        handler.start(status, "application/json", **headers)
        body = {"error": {"type": "refused", "message": f"No: {status}", "code": "no"}}
        handler.wfile.write(json.dumps(body).encode())
        return None

    client.upstream.behave = behave
    denied, limited, *others = results_of(
        client, module, sdk, {}, {}, {"retries": 2}, {"retries": 2, "key": "k"}
    )
    assert [each["error"]["name"] for each in (denied, limited)] == names.get(sdk, names["openai"])
    for found, status in ((denied, 401), (limited, 429)):
        assert (found["error"]["status"], f"No: {status}" in found["error"]["message"]) == (status, True)
    assert limited["error"]["headers"]["x-ratelimit-remaining-requests"] == "0"
    assert [each.get("error", {}).get("status") for each in others] == [401, None]
    assert others[1]["text"] == TEXT
    assert len(client.upstream.requests) == 5


@pytest.mark.parametrize("later_ms", [0, 60_000])
def test_a_call_whose_headers_are_late_is_asked_for_again_while_it_may_go_on(
    client: Client, module: str, monkeypatch: pytest.MonkeyPatch, later_ms: int
) -> None:
    """A 504 within the upstream's minute is the end of one wait, and a later 504 the end of the call."""
    monkeypatch.setattr(endpoint, "_ANSWER_SECONDS", 0.5)

    def behave(handler: UpstreamHandler) -> None:
        handler.upstream.go_on.wait(2)
        model()(handler)

    client.upstream.behave = behave
    [result] = results_of(client, module, "openai", {"laterMs": later_ms})
    if later_ms:
        assert (result["error"]["status"], result["requests"]) == (504, {"POST": 1})
    else:
        assert result == {"text": TEXT}
    assert len(client.upstream.requests) == 1


@SDKS
def test_an_answer_that_is_cut_off_raises(client: Client, module: str, sdk: str) -> None:
    def behave(handler: UpstreamHandler) -> None:
        handler.start(content_length="100000")
        handler.wfile.write(event_of(handler, WORDS[0]))

    client.upstream.behave = behave
    streamed, whole = results_of(client, module, sdk, {}, {"isWhole": True})
    # The AI SDK pipes the body, and a pipe drops what nobody has read when it fails.
    assert streamed["text"] in {WORDS[0], "" if sdk == "ai" else WORDS[0]}
    for each in (streamed, whole):
        assert "The answer is not whole: cut off by upstream" in each["error"]["message"]


@SDKS
@pytest.mark.parametrize("task", [{"abortAfter": 1}, {"abortEarly": True}])
def test_an_abort_stops_the_upstream(client: Client, module: str, sdk: str, task: dict[str, Any]) -> None:
    """In the middle, and before the first byte, when the call has no URL yet."""

    def behave(handler: UpstreamHandler) -> None:
        upstream = handler.upstream
        if handler.command == "GET":
            if handler.path.endswith("/go"):
                upstream.go_on.set()
            handler.start()
            handler.wfile.write(b"%d" % any(method == "POST" for method, *_ in upstream.requests))
            return
        if "abortEarly" in task:
            upstream.go_on.wait(PATIENCE_SECONDS)
        handler.start()
        while True:
            handler.wfile.write(event_of(handler, "on "))
            upstream.was_left.wait(0.02)

    client.upstream.behave = behave
    [result] = results_of(client, module, sdk, task)
    assert len(result["text"]) < 60
    assert client.upstream.was_left.wait(PATIENCE_SECONDS)


def test_what_is_no_url_of_the_web_is_a_type_error(client: Client, module: str) -> None:
    [result] = results_of(client, module, "none", {})
    reason = "must be an absolute http: or https: URL, not"
    assert result["text"].splitlines() == [
        f"durableFetch: the URL of a call {reason} {each}" for each in ('"/chat"', '"ftp://x/y"', '"data:,x"')
    ]
    assert result["error"] == {
        "name": "TypeError", "message": f'durableFetch: url {reason} "127.0.0.1:4437"', "headers": {}
    }  # fmt: skip
