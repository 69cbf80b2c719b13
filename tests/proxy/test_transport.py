"""The client's way through the durable proxy: a transport for SDKs, and `Stream.proxy` without one."""

import asyncio
import inspect
import json
from functools import partial
from typing import Any, Final

import anthropic
import httpx
import httpx2
import openai
import pytest

import tidemark
from tests.browser.cutting import CuttingProxy
from tests.client.test_guide import BLOCKS
from tests.proxy.conftest import Behaviour, Client, UpstreamHandler, never_ends, says, steps
from tests.proxy.test_proxy import cut
from tests.waiting import PATIENCE_SECONDS, on_a_loop
from tidemark import AnswerCut, AsyncStream, NotAllowed, Stream, Unavailable
from tidemark.client.core import call_by_proxy
from tidemark.client.exchange import Lost, Reply, Sleep

SDK_KEY: Final = "sk-of-the-caller"
ANSWER = b"".join(b"data: %d \xf0\x9f\x8c\x8a\r\n\n" % number for number in range(3000))
QUESTION: Final[Any] = {"model": "tides", "messages": [{"role": "user", "content": "Why two?"}]}

each_client = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
each_library = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


def server_of(client: Client) -> str:
    return str(client.http.base_url)


def transport_of(client: Client, url: str = "", **options: Any) -> Any:
    token = client.token()["Authorization"].removeprefix("Bearer ")
    return tidemark.proxy_transport(url or server_of(client), **{"token": token} | options)


def post(
    library: Any, transport: Any, url: str, *, is_async: bool = False, timeout: float = 60, **sent: Any
) -> Any:
    """The response, read to its end by this library's client."""
    sent = {"content": b"{}"} | sent

    async def post_async() -> Any:
        async with library.AsyncClient(transport=transport, timeout=timeout) as client:
            return await client.post(url, **sent)

    if is_async:
        return asyncio.run(post_async())
    with library.Client(transport=transport, timeout=timeout) as client:
        return client.post(url, **sent)


@each_library
@each_client
def test_a_client_gets_the_answer_as_if_from_upstream(client: Client, library: Any, is_async: bool) -> None:
    client.upstream.behave = says(ANSWER, content_type="text/event-stream; charset=utf-8")
    sent: Any = {"headers": {"Authorization": f"Bearer {SDK_KEY}", "X-Custom": "7"}, "params": {"a": "ü"}}
    token = client.token()["Authorization"].removeprefix("Bearer ")
    transport = transport_of(client, token=lambda: token)
    answer = post(library, transport, f"{client.upstream.url}/chat", is_async=is_async, **sent)
    assert isinstance(answer, library.Response)
    assert (answer.status_code, answer.content) == (200, ANSWER)
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert client.read_to_the_end(answer.headers["Location"])[0] == ANSWER
    [(method, path, headers, body)] = client.upstream.requests
    assert (method, path, body) == ("POST", "/chat?a=%C3%BC", b"{}")
    assert (headers["authorization"], headers["x-custom"]) == (f"Bearer {SDK_KEY}", "7")


def refuses(status: int) -> Behaviour:
    def behave(handler: UpstreamHandler) -> None:
        handler.start(status, "application/json", retry_after="7", x_request_id="r-1")
        handler.wfile.write(b'{"error": {"message": "not now"}}')

    return behave


@each_library
@each_client
@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_refusal_of_the_upstream_is_the_response(
    client: Client, library: Any, is_async: bool, status: int
) -> None:
    client.upstream.behave = refuses(status)
    refused = post(library, transport_of(client), client.upstream.url, is_async=is_async)
    assert (refused.status_code, refused.json()) == (status, {"error": {"message": "not now"}})
    assert (refused.headers["Retry-After"], refused.headers["X-Request-Id"]) == ("7", "r-1")
    assert len(client.upstream.requests) == 1


def test_a_refusal_of_the_server_is_the_response_with_its_reason(client: Client) -> None:
    refused = post(httpx, transport_of(client), "http://elsewhere.example/chat")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "UPSTREAM_NOT_ALLOWED")
    refused = post(httpx, transport_of(client, token="no.token"), client.upstream.url)
    assert (refused.status_code, "error" in refused.json()) == (401, True)
    refused = post(httpx, transport_of(client), "http://nobody.test/chat")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "UPSTREAM_ERROR")


@each_library
@each_client
def test_a_cut_answer_raises_its_reason_behind_its_data(client: Client, library: Any, is_async: bool) -> None:
    """Also to a reader who has the data before the end."""

    def breaks(handler: UpstreamHandler) -> None:
        handler.start(content_length="1000")
        handler.wfile.write(b"begun")
        handler.upstream.go_on.wait(PATIENCE_SECONDS)

    client.upstream.behave, pieces = breaks, list[bytes]()
    asked = ("POST", client.upstream.url)

    def read() -> None:
        with library.Client(transport=transport_of(client)) as http, http.stream(*asked) as answer:
            for piece in answer.iter_raw():
                pieces.append(piece)
                client.upstream.go_on.set()

    async def read_async() -> None:
        async with library.AsyncClient(transport=transport_of(client)) as http, http.stream(*asked) as answer:
            async for piece in answer.aiter_raw():
                pieces.append(piece)
                client.upstream.go_on.set()

    reason = "not whole: cut off by upstream: RemoteProtocolError"
    with pytest.raises(library.RemoteProtocolError, match=reason):
        asyncio.run(read_async()) if is_async else read()
    assert b"".join(pieces) == b"begun"


@each_client
@on_a_loop
async def test_a_reader_that_leaves_early_does_not_stop_the_upstream(client: Client, is_async: bool) -> None:
    """Whoever comes again with the key, as a program that was killed, has the answer, which is paid once."""
    client.upstream.behave = steps(b"before ", b"after")
    transport, asked = transport_of(client, key="k"), ("POST", client.upstream.url)
    answer: Any
    if is_async:
        async with httpx.AsyncClient(transport=transport).stream(*asked) as answer:
            assert await anext(answer.aiter_raw()) == b"before "
    else:
        with httpx.Client(transport=transport).stream(*asked) as answer:
            assert next(answer.iter_raw()) == b"before "
    client.upstream.go_on.set()
    assert client.read_to_the_end(answer.headers["Location"])[0] == b"before after"
    with httpx.Client(transport=transport_of(client, key="k")).stream(*asked) as answer:
        assert answer.read() == b"before after"
    assert len(client.upstream.requests) == 1


UPSTREAM_ERROR = b'{"error": {"code": "UPSTREAM_ERROR", "message": "refused"}}'


@pytest.mark.parametrize(
    ("reply", "is_sent_again"),
    [
        (Lost("cut"), True),
        (Reply(429, {}), True),
        (Reply(503, {}), True),
        (Reply(504, {}, seconds=25), True),
        (Reply(504, {}, seconds=60), False),
        (Reply(502, {}, UPSTREAM_ERROR), False),
        (Reply(502, {"upstream-status": "503"}), False),
    ],
)
def test_a_call_is_sent_again_only_while_it_may_go_on(reply: Any, is_sent_again: bool) -> None:
    calling = call_by_proxy("http://t", httpx.Request("POST", "http://m/chat"), b"{}", "k")
    first = next(calling)
    if not is_sent_again:
        with pytest.raises(Unavailable):
            calling.send(reply)
        return
    assert isinstance(calling.send(reply), Sleep)
    assert calling.send(None) is first


@each_client
def test_an_answer_is_whole_and_paid_once_if_connections_are_cut(client: Client, is_async: bool) -> None:
    def slowly(handler: UpstreamHandler) -> None:
        handler.start()
        for start in range(0, len(ANSWER), 1500):
            handler.wfile.write(ANSWER[start : start + 1500])
            client.upstream.go_on.wait(0.02)

    client.upstream.behave = slowly
    port = client.http.base_url.port
    assert port is not None
    with CuttingProxy(port, seed=7).on_a_thread() as bad:
        transport = transport_of(client, f"http://127.0.0.1:{bad.port}")
        answer = post(httpx, transport, client.upstream.url, is_async=is_async)
    assert answer.content == ANSWER
    assert (len(client.upstream.requests), bad.cuts > 1) == (1, True)


@each_library
@each_client
def test_a_silent_answer_meets_the_read_timeout(client: Client, library: Any, is_async: bool) -> None:
    client.upstream.behave = never_ends
    with pytest.raises(library.ReadTimeout, match=r"no data from upstream for 0\.5 s"):
        post(library, transport_of(client), client.upstream.url, is_async=is_async, timeout=0.5)


def test_an_equal_request_with_the_same_key_is_called_once(client: Client) -> None:
    client.upstream.behave = says(b"answer")
    url, named, other = client.upstream.url, transport_of(client, key="run 42 🌊"), transport_of(client)
    of_caller: Any = {"headers": {"Idempotency-Key": "of the caller"}}
    requests: list[tuple[int, Any, Any]] = [
        (1, named, {}),
        (1, named, {}),
        (2, named, {"content": b"another question"}),
        (3, named, of_caller),
        (3, other, of_caller),
        (4, other, {}),
        (5, other, {}),
    ]
    for calls, transport, sent in requests:
        assert post(httpx, transport, url, **sent).content == b"answer"
        assert len(client.upstream.requests) == calls


def test_the_server_sends_its_own_key_if_that_of_the_sdk_is_unused(client: Client) -> None:
    client.upstream.behave = says(b"answer")
    headers = {"Authorization": "Bearer unused", "X-Api-Key": "unused"}
    post(httpx, transport_of(client), client.upstream.url, headers=headers)
    [(_, _, received, _)] = client.upstream.requests
    assert (received["authorization"], "x-api-key" in received) == ("Bearer marked-key", False)


def http_client(client: Client, *, is_async: bool) -> Any:
    kind = httpx2.AsyncClient if is_async else httpx2.Client
    return kind(transport=transport_of(client))


async def result(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


async def items(given: Any) -> list[Any]:
    stream = await result(given)
    return [each async for each in stream] if hasattr(stream, "__aiter__") else list(stream)


def answers(events: list[Any], whole: Any) -> Behaviour:
    """Streams the answer if the request asks for a stream."""

    def behave(handler: UpstreamHandler) -> None:
        streams = json.loads(handler.upstream.requests[-1][3]).get("stream")
        handler.start(content_type="text/event-stream" if streams else "application/json")
        for each in events if streams else ():
            handler.wfile.write(
                f"event: {each.get('type', 'message')}\ndata: {json.dumps(each)}\n\n".encode()
            )
        handler.wfile.write(b"" if streams else json.dumps(whole).encode())

    return behave


@each_client
@on_a_loop
async def test_the_sdk_of_openai(client: Client, is_async: bool) -> None:
    deltas = [{"index": 0, "delta": {"content": token}} for token in ("Because ", "🌊.")]
    message = {"index": 0, "message": {"role": "assistant", "content": "Because 🌊."}}
    client.upstream.behave = answers([{"choices": [each]} for each in deltas], {"choices": [message]})
    kind = openai.AsyncOpenAI if is_async else openai.OpenAI
    http = http_client(client, is_async=is_async)
    sdk: Any = kind(api_key=SDK_KEY, base_url=client.upstream.url, http_client=http, max_retries=0)
    create = partial(sdk.chat.completions.create, **QUESTION)
    streamed = await items(create(stream=True))
    assert [each.choices[0].delta.content for each in streamed] == ["Because ", "🌊."]
    assert (await result(create())).choices[0].message.content == "Because 🌊."
    client.upstream.behave = refuses(429)
    with pytest.raises(openai.RateLimitError, match="not now") as refused:
        await result(create())
    assert refused.value.response.headers["Retry-After"] == "7"
    client.upstream.behave = cut
    with pytest.raises(openai.APIConnectionError) as broken:
        await result(create())
    assert "cut off by upstream" in str(broken.value.__cause__)
    await result(sdk.close())


def test_the_code_of_the_guide(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = ("Because ", "the earth turns.")
    client.upstream.behave = answers([{"choices": [{"delta": {"content": each}}]} for each in tokens], {})
    monkeypatch.setenv("OPENAI_BASE_URL", client.upstream.url)
    monkeypatch.setenv("OPENAI_API_KEY", SDK_KEY)
    code = BLOCKS[-1].replace("http://127.0.0.1:4437", server_of(client))
    for _ in range(2):
        exec(code.replace("…", client.token()["Authorization"].split()[1]), {})
        assert capsys.readouterr().out == "Because the earth turns."
    assert len(client.upstream.requests) == 1


@each_client
@on_a_loop
async def test_the_sdk_of_anthropic(client: Client, is_async: bool) -> None:
    whole: dict[str, Any] = {"type": "message", "id": "1", "role": "assistant", "model": "m", "content": []}
    whole |= {"usage": {"input_tokens": 1, "output_tokens": 1}}
    deltas = [{"type": "text_delta", "text": token} for token in ("Because ", "🌊.")]
    events = [{"type": "content_block_delta", "index": 0, "delta": each} for each in deltas]
    text = [{"type": "text", "text": "Because 🌊."}]
    client.upstream.behave = answers(
        [{"type": "message_start", "message": whole}, *events], whole | {"content": text}
    )
    kind = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
    http = http_client(client, is_async=is_async)
    sdk: Any = kind(api_key=SDK_KEY, base_url=client.upstream.url, http_client=http, max_retries=0)
    create = partial(sdk.messages.create, **QUESTION, max_tokens=9)
    streamed = await items(create(stream=True))
    assert [each.delta.text for each in streamed[1:]] == ["Because ", "🌊."]
    assert (await result(create())).content[0].text == "Because 🌊."
    client.upstream.behave = refuses(401)
    with pytest.raises(anthropic.AuthenticationError, match="not now"):
        await result(create())
    client.upstream.behave = cut
    with pytest.raises(anthropic.APIConnectionError) as broken:
        await result(create())
    assert "cut off by upstream" in str(broken.value.__cause__)
    await result(sdk.close())


@each_client
@on_a_loop
async def test_without_an_sdk_the_answer_is_a_stream(client: Client, is_async: bool) -> None:
    """The text comes in whole characters, and the URL is enough for another reader."""

    def behave(handler: UpstreamHandler) -> None:
        handler.start(content_type="text/plain")
        handler.wfile.write("tides 🌊".encode()[:-2])
        handler.upstream.go_on.wait(PATIENCE_SECONDS)
        handler.wfile.write("🌊".encode()[-2:])

    kind = AsyncStream if is_async else Stream
    url, request = server_of(client), httpx.Request("POST", client.upstream.url, content=b"{}")
    proxy: Any = partial(kind.proxy, url, request, token=client.token()["Authorization"].split()[1])
    client.upstream.behave = behave
    answer = await result(proxy(key="k"))
    client.upstream.go_on.set()
    assert "\ufffd" not in "".join(each.text for each in await items(answer.follow()))
    assert "".join(each.text for each in Stream(answer.url).follow()) == "tides 🌊"
    assert (await result(proxy(key="k"))).url.partition("?")[0] == answer.url.partition("?")[0]
    client.upstream.behave = refuses(401)
    with pytest.raises(NotAllowed, match="not now") as refused:
        await result(proxy())
    assert (refused.value.status, refused.value.headers["X-Request-Id"]) == (401, "r-1")
    client.upstream.behave = cut
    answer = await result(proxy())
    with pytest.raises(AnswerCut, match="not whole: cut off by upstream"):
        await items(answer.follow())
