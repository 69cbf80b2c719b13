"""Both drivers against a server in memory: the same life of a stream, blocking and asynchronous."""

import asyncio
import inspect
import pydoc
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from decimal import Decimal
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from tests.garbage import uncollected
from tests.ports import free_port
from tests.processes import threads_named
from tests.waiting import on_a_loop, until
from tidemark import client as api
from tidemark.client import AsyncStream, Retry, Server, Stream, asynchronous, blocking, wire
from tidemark.client.exchange import Lost

FAST = Retry(max_retries=20, initial_delay_seconds=0.001, max_delay_seconds=0.01)


class Failing(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Of four requests one is lost, one gets 503, of one the answer is lost, and one has its answer."""

    def __init__(self) -> None:
        self.count = 0
        self._blocking, self._asynchronous = httpx.HTTPTransport(), httpx.AsyncHTTPTransport()

    def close(self) -> None:
        self._blocking.close()

    async def aclose(self) -> None:
        await self._asynchronous.aclose()

    def _refused(self) -> httpx.Response | None:
        self.count += 1
        if self.count % 4 == 1:
            raise httpx.ReadError("the request is lost")
        return httpx.Response(503) if self.count % 4 == 2 else None

    def _arrived(self, response: httpx.Response) -> httpx.Response:
        if self.count % 4 == 3:
            raise httpx.ReadError("the answer is lost")
        return response

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._refused() or self._arrived(self._blocking.handle_request(request))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._refused() or self._arrived(await self._asynchronous.handle_async_request(request))


async def awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def each(chunks: Iterator[Any] | AsyncIterator[Any]) -> AsyncIterator[Any]:
    if isinstance(chunks, AsyncIterator):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk


def client_of(kind: Any, transport: Any = None, **options: Any) -> Any:
    return (httpx.Client if kind is Stream else httpx.AsyncClient)(transport=transport, **options)


both = pytest.mark.parametrize("kind", [Stream, AsyncStream])


@both
def test_help_shows_what_a_caller_gets(kind: Any) -> None:
    chunks = "Following" if kind is Stream else "AsyncGenerator[Chunk]"
    assert str(inspect.signature(kind("http://s/s").read)).endswith(" -> 'Chunk'")
    assert str(inspect.signature(kind.follow)).endswith(f" -> '{chunks}'")
    assert "Steps" not in pydoc.render_doc(kind)


@both
@on_a_loop
async def test_the_life_of_a_stream(tidemark_url: str, kind: Any) -> None:
    url = f"{tidemark_url}/v1/stream/life"
    with pytest.raises(api.NotFound, match="/v1/stream/life: 404"):
        await awaited(kind(url).head())
    stream = await awaited(kind.create(url, content_type="application/json", ttl=60, default=str))
    with pytest.raises(api.StreamConflict):
        await awaited(kind.create(url, content_type="text/plain"))
    first = await awaited(stream.append({"n": 1}, seq="1"))
    with pytest.raises(api.SequenceConflict):
        await awaited(stream.append({"n": 1}, seq="1"))
    await awaited(stream.append([2, Decimal(3)], if_match=first.etag))
    with pytest.raises(api.ETagMismatch):
        await awaited(stream.append(4, if_match=first.etag))
    head = await awaited(kind(url).head())
    assert (head.content_type, head.ttl_seconds, head.closed) == ("application/json", 60, False)
    page = await awaited(kind(url).read(first.offset))
    assert (page.messages, page.offset, page.up_to_date) == ([[2, "3"]], head.offset, True)
    fork = await awaited(kind.create(f"{url}-fork", forked_from=url, fork_offset=first.offset))
    assert (await awaited(fork.close("end"))).closed
    followed = [chunk async for chunk in each(kind(fork.url).follow())]
    assert [message for chunk in followed for message in chunk.messages] == [{"n": 1}, "end"]
    with pytest.raises(api.StreamClosed):
        await awaited(fork.append(5))
    await awaited(stream.delete())
    with pytest.raises(api.StreamGone, match="forks still use its data"):
        await awaited(stream.delete())


@both
@pytest.mark.parametrize("create", [False, True, {"ttl": 60}])
@on_a_loop
async def test_a_producer_writes_once_if_the_network_loses(tidemark_url: str, kind: Any, create: Any) -> None:
    url, written = f"{tidemark_url}/v1/stream/lossy", list(range(200))
    if create is False:
        Stream.create(url, content_type="application/json")
    faulty = client_of(kind, Failing())
    stream = kind(url, content_type="application/json", client=faulty, retry=FAST)
    producer = stream.producer("p", create=create, max_batch_messages=7, linger_seconds=0.001)
    for number in written:
        await awaited(producer.append(number))
        if number % 50 == 0:
            with pytest.raises(ValueError, match="must be one JSON value"):
                await awaited(producer.append(b'{"a":1},{"b":2}'))
            await awaited(producer.flush())
    closed = await awaited(producer.close("end"))
    assert closed.closed
    assert await awaited(producer.close()) == closed
    with pytest.raises(ValueError, match="closed"):
        await awaited(producer.append("more"))
    followed = [chunk async for chunk in each(kind(url, client=faulty, retry=FAST).follow())]
    assert [message for chunk in followed for message in chunk.messages] == [*written, "end"]
    assert Stream(url).head().ttl_seconds == (60 if isinstance(create, dict) else None)
    with pytest.raises(ValueError, match="create needs the content type"):
        kind(url).producer("q", create=create or True)
    await awaited(faulty.close() if kind is Stream else faulty.aclose())


class Unanswered(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Each answer is lost."""

    def handle_request(self, _: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("the answer is lost")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


#: By name: the type of the error, and the HTTP client's transport.
OUTCOMES: dict[str, tuple[type[Exception] | None, Any]] = {
    "written": (None, None),
    "refused": (api.StreamError, None),
    "tried twice": (api.StreamError, httpx.MockTransport(lambda _: httpx.Response(503))),
    "lost": (api.StreamError, Unanswered()),
    "not sent": (ValueError, None),
}


@both
@pytest.mark.parametrize("writes", ["append", "produce"])
@pytest.mark.parametrize("outcome", OUTCOMES)
@on_a_loop
async def test_no_large_body_is_left_to_the_garbage_collector(
    tidemark_url: str, kind: Any, writes: str, outcome: str
) -> None:
    path = f"{tidemark_url}/v1/stream/large-{kind.__name__}-{writes}"
    Stream.create(path, content_type="text/plain")
    error, transport = OUTCOMES[outcome]
    headers = {"X-Late": "a\nb"} if outcome == "not sent" else {}
    url = f"{path}-absent" if outcome == "refused" else path

    async def write(client: Any) -> None:
        stream = kind(
            url,
            content_type="text/plain",
            headers=headers,
            client=client,
            retry=Retry(max_retries=1, initial_delay_seconds=0.001),
        )
        if writes == "append":
            await awaited(stream.append(b"x" * 300_000))
            return
        producer = stream.producer("p", epoch=next(epochs))
        await awaited(producer.append(b"x" * 300_000))
        await awaited(producer.flush())

    epochs, client = count(), client_of(kind, transport)
    until(lambda: not threads_named("tidemark-producer"))  # Those of the test before hold its producers.
    with uncollected() as owners:
        for _ in range(10):
            with suppress(error) if error else nullcontext():
                await write(client)
                assert error is None
    await awaited(client.close() if kind is Stream else client.aclose())
    assert owners == []


@both
@on_a_loop
async def test_a_with_closes_the_stream_and_an_exception_leaves_it_open(tidemark_url: str, kind: Any) -> None:
    url = f"{tidemark_url}/v1/stream/with"

    async def write(text: str, error: Exception | None) -> None:
        async with entered(kind(url).producer("p")) as producer:
            await awaited(producer.append(text))
            if error:
                raise error

    await awaited(kind.create(url, content_type="text/plain"))
    for text, error in (("a", KeyError()), ("b", api.StreamError("of another stream"))):
        with pytest.raises(type(error)):
            await write(text, error)
    assert not (await awaited(kind(url).head())).closed
    await write("c", None)
    head, page = await awaited(kind(url).head()), await awaited(kind(url).read())
    assert (head.closed, page.text, page.closed) == (True, "abc", True)
    with (
        pytest.raises(KeyError),
        pytest.warns(RuntimeWarning, match="1 of its messages were .*: Stream is clos"),
    ):
        await write("d", KeyError())


def test_threads_work_off_a_shared_stream_and_a_failure_comes_again(tidemark_url: str) -> None:
    stream = Stream.create(f"{tidemark_url}/v1/stream/work", content_type="application/json")
    asked = {"type": "shared", "streams": ["work"], "offset": "-1"}
    place = f"{tidemark_url}/v1/stream/__ds/subscriptions"
    httpx.put(f"{place}/workers", json=asked).raise_for_status()
    for n in range(9):
        stream.append(n)
    stream.close()
    seen = list[tuple[int, int]]()

    def handle(delivery: api.Delivery) -> None:
        if delivery.data == 4 and delivery.count == 1:
            raise ValueError("try again")
        seen.append((delivery.data, delivery.count))

    stream.work(handle, "workers", workers=2, max_messages=2)
    assert sorted(seen) == [(n, 1 + (n == 4)) for n in range(9)]
    with pytest.raises(api.NotFound, match="SUBSCRIPTION_NOT_FOUND"):
        stream.work(handle, "absent")


@both
@on_a_loop
async def test_headers_and_parameters_are_made_for_each_request(
    tidemark_url: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And httpx logs no parameter in which a token may be."""
    caplog.set_level("INFO")
    seen: list[tuple[str, str]] = []
    counted = Counter[str]()

    def token() -> str:
        counted["token"] += 1
        return f"token {counted['token']}"

    async def later() -> str:
        return token()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["X-Token"], str(request.url)))
        status = {1: 503, 2: 307}.get(len(seen), 200)
        headers = {"Stream-Next-Offset": "0", "Content-Type": "text/plain", "Location": str(request.url)}
        return httpx.Response(status, headers=headers)

    client = client_of(kind, httpx.MockTransport(answer))
    made: Callable[[], Any] = token if kind is Stream else later
    options = {"params": {"p": "a b"}, "client": client, "retry": FAST}
    await awaited(kind(f"{tidemark_url}/s?key=1", headers={"X-Token": made}, **options).read("5"))
    assert [header for header, _ in seen] == ["token 1", "token 2", "token 2"]
    assert {url for _, url in seen} == {f"{tidemark_url}/s?key=1&p=a+b&offset=5"}
    logged = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert [line.split()[3] for line in logged] == [f"{tidemark_url}/s"] * 3


@both
@pytest.mark.parametrize(
    ("of_client", "of_stream", "expected"),
    [
        ({"timeout": 2}, None, (2, 2, 47)),
        ({"timeout": httpx.Timeout(None)}, None, (None, None, None)),
        ({"timeout": 2}, timedelta(seconds=3), (3, 3, 48)),
        ({}, 5, (5, 5, 50)),
        ({}, None, (10, 30, 75)),  # httpx's default is no choice of the caller.
    ],
)
@on_a_loop
async def test_the_timeout_is_the_streams_or_the_clients_and_a_wait_is_longer(
    kind: Any, of_client: Any, of_stream: Any, expected: tuple[float, ...]
) -> None:
    asked: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.extensions["timeout"])
        raise httpx.ReadTimeout("silence")

    stream = kind(
        "http://server/s",
        timeout=of_stream,
        client=client_of(kind, httpx.MockTransport(answer), **of_client),
        retry=Retry(max_retries=0),
    )
    for live in (False, "long-poll"):
        with pytest.raises(api.Unreachable, match="silence") as lost:
            await awaited(stream.read(live=live))
        assert isinstance(lost.value.__cause__, httpx.ReadTimeout)
    assert (asked[0]["connect"], *(each["read"] for each in asked)) == expected
    with pytest.raises(ValueError, match="timeout is 0; it must be above 0, in seconds"):
        kind("http://server/s", timeout=0)


@both
@on_a_loop
async def test_a_function_of_a_header_that_raises_and_a_broken_answer_end_the_producer(kind: Any) -> None:
    def broken() -> str:
        raise LookupError("no token")

    answer = httpx.Response(403, headers={"Producer-Epoch": "9" * 5000})
    options = {"content_type": "text/plain", "client": client_of(kind, httpx.MockTransport(lambda _: answer))}
    for headers, why in (({"X": broken}, LookupError), ({}, ValueError)):
        producer = kind("http://server/s", headers=headers, **options).producer("p")
        await awaited(producer.append("a"))
        with pytest.raises(why):
            await awaited(producer.flush())


def test_a_producer_without_threads_ends(tidemark_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream.create(f"{tidemark_url}/v1/stream/threads", content_type="text/plain")
    kept, new = stream.producer("kept", max_batch_messages=1), stream.producer("new")
    kept.append("a")
    kept.flush()
    none = Mock(return_value=Mock(start=Mock(side_effect=RuntimeError("no more threads"))))
    threads = SimpleNamespace(Thread=none, Timer=none)
    monkeypatch.setattr(blocking, "threading", threads)  # The server goes on having some.
    for text in "bcd":
        kept.append(text)
    kept.flush()
    new.append("e")
    with pytest.raises(RuntimeError, match="no more threads"):
        new.flush()
    assert stream.read().text == "abcd"


def test_a_server_lists_the_streams_of_a_bucket_and_gives_no_token_to_the_object_store() -> None:
    entry = {"content_type": "text/plain", "status": "Closed", "tail_offset": 9, "retained_offset": "04"}
    entry |= {"etag": '"9"', "created_at_ms": 1000, "last_write_at_ms": 2000, "expires_at_ms": None}
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, str(request.url), request.headers.get("authorization")))
        if request.url.path == "/notes/streams":
            is_last = request.url.params.get("after") == "b c"
            rows = [entry | {"stream_id": "d/ü" if is_last else "b c"}]
            return httpx.Response(200, json={"streams": rows, "has_more": not is_last, "next_cursor": "b c"})
        place = {"method": "PUT", "url": "http://objects/x?sign=1", "headers": {}, "upload": "u"}
        return httpx.Response(200, json=place)

    client = httpx.Client(transport=httpx.MockTransport(answer), headers={"Authorization": "of the client"})
    server = Server("http://server/", token="t", client=client)
    first, last = server.streams("/notes/")
    assert (first.name, last.name) == ("/notes/b%20c", "/notes/d/%C3%BC")
    assert (first.closed, first.offset, first.size_bytes) == (True, f"{9:016}", 5)
    assert (first.last_write_at.timestamp(), first.expires_at) == (2.0, None)
    server.stream(last.name).publish_snapshot(b"x" * 4_194_305, offset=first.offset)
    at = f"http://server/notes/d/%C3%BC/snapshot/{9:016}"
    tokens = ("POST", f"{at}/upload", "Bearer t"), ("PUT", at, "Bearer t")
    assert seen[2:] == [tokens[0], ("PUT", "http://objects/x?sign=1", None), tokens[1]]


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


@pytest.mark.parametrize("error", sorted(set(subclasses(httpx.RequestError)), key=str))
def test_each_error_of_httpx_has_a_meaning(error: type[httpx.RequestError]) -> None:
    """One that says that the request is wrong is the caller's; the others mean that no whole reply came."""
    if issubclass(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        with pytest.raises(ValueError, match="cannot be sent: why"):
            wire.lost(error("why"))
    else:
        assert isinstance(wire.lost(error("why")), Lost)


class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The body of a page, an event stream, or a redirect."""

    def __init__(self, piece: bytes) -> None:
        self._piece, self.sent = piece, 0

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.sent += 1
            yield self._piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def answer(self, request: httpx.Request) -> httpx.Response:
        headers = {"Stream-Next-Offset": "1", "Content-Type": "text/plain"}
        if request.url.path == "/moved":
            assert request.headers["authorization"].startswith("Basic ")
            return httpx.Response(307, headers={"Location": "http://away/there"}, stream=self)
        assert "authorization" not in request.headers
        if request.method == "HEAD" or request.url.path == "/there":
            return httpx.Response(200, headers=headers | {"Stream-Closed": "true"})
        if request.url.params.get("live") == "sse":
            headers["Content-Type"] = "text/event-stream"
        return httpx.Response(200, headers=headers, stream=self)


@both
@pytest.mark.parametrize("live", ["sse", False])
@on_a_loop
async def test_an_answer_that_does_not_end_is_an_error(kind: Any, live: Any) -> None:
    endless = Endless(b"event: data\ndata:" + b"x" * (4 << 20) + b"\n\n")

    stream = kind("http://server/s", client=client_of(kind, httpx.MockTransport(endless.answer)))
    with pytest.raises(
        api.MalformedReply, match=r"^GET http://server/s: the answer is larger than 268,435,456 b"
    ):
        [_ async for _ in each(stream.follow(live=live))]
    assert endless.sent == 64


@on_a_loop
async def test_what_tells_where_the_socket_is_has_an_end_too() -> None:
    client = client_of(AsyncStream, httpx.MockTransport(Endless(b"x" * 70_000).answer))
    with pytest.raises(api.MalformedReply, match="larger than 65,536 bytes"):
        await asynchronous._ask(client, "http://server/v1/socket")


@both
@on_a_loop
async def test_a_byte_a_second_is_no_answer(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "monotonic", count().__next__)
    slow, once = Endless(b"x"), Retry(max_retries=0)
    stream = kind("http://server/s", client=client_of(kind, httpx.MockTransport(slow.answer)), retry=once)
    with pytest.raises(api.Unreachable, match="only 31 bytes came in 31 s"):
        await awaited(stream.read())
    assert slow.sent == 31


@both
@on_a_loop
async def test_the_body_of_a_redirect_is_not_read_and_gets_no_credentials_of_the_client(kind: Any) -> None:
    moved = Endless(b"x")
    client = client_of(kind, httpx.MockTransport(moved.answer))
    client.auth = ("user", "password")
    assert (await awaited(kind("http://server/moved", client=client).read())).closed
    assert moved.sent == 0


@both
@pytest.mark.parametrize("closed", [False, True])
@on_a_loop
async def test_a_backward_read_goes_on_in_no_other_stream(tidemark_url: str, kind: Any, closed: bool) -> None:
    """Neither to older messages nor to newer ones, whichever of cursor and incarnation is kept."""
    stream = kind(f"{tidemark_url}/v1/stream/replaced")
    await awaited(kind.create(stream.url, content_type="application/json"))
    for number in range(4):
        await awaited(stream.append(number))
    if closed:
        await awaited(stream.close())
    page = await awaited(stream.history(last=2))
    kept = {"cursor": page.cursor, "incarnation": page.incarnation}
    older = await awaited(stream.history(page.start, last=1, **kept))
    assert (older.messages, older.cursor, older.incarnation) == ([1], *kept.values())
    await awaited(stream.delete())
    await awaited(kind.create(stream.url, content_type="application/json"))
    for number in range(8):
        await awaited(stream.append(number))
    for name, error in (("cursor", api.StreamGone), ("incarnation", api.StreamReplaced)):
        with pytest.raises(error, match="deleted and created again"):
            await awaited(stream.history(page.start, **{name: kept[name]}))
        with pytest.raises(error, match="deleted and created again"):
            async for _ in each(stream.follow(page.offset, **{name: kept[name]})):
                pass
    with pytest.raises(api.StreamReplaced):
        await awaited(stream.history(page.start, **kept))
    await awaited(stream.delete())


@both
@pytest.mark.parametrize("live", ["auto", "sse", "long-poll", False])
@on_a_loop
async def test_a_filtered_reader_gets_matches_alone(tidemark_url: str, kind: Any, live: Any) -> None:
    stream = await awaited(kind.create(f"{tidemark_url}/v1/stream/where", content_type="application/json"))
    for number in (1, 2, 1):
        await awaited(stream.append({"n": number}))
    found, more = list[Any](), iter([{"n": 2}])
    async for chunk in each(stream.follow(where=["/n:eq:1", "/n:exists"], live=live)):
        found += chunk.messages
        if chunk.up_to_date and (other := next(more, None)):
            await awaited(stream.append(other))
            await awaited(stream.close({"n": 1}))
    assert found == [{"n": 1}] * (2 if live is False else 3)
    for read in (stream.read(where="/n:in:[2]"), stream.history(last=3, where="/n:eq:2")):
        assert {message["n"] for message in (await awaited(read)).messages} == {2}
    with pytest.raises(ValueError, match="has no where"):
        stream.follow(where="/n:eq:1", live="socket")
    await awaited(stream.delete())


@both
@on_a_loop
async def test_a_block_of_a_stream_ends_what_follows_and_leaves_the_stream_open(
    tidemark_url: str, kind: Any
) -> None:
    async with entered(await awaited(kind.create(f"{tidemark_url}/v1/stream/block"))) as stream:
        begun, other = each(stream.follow()), stream.follow()
        assert (await anext(begun)).up_to_date
    for followed in (begun, each(other)):
        assert [chunk async for chunk in followed] == []
    assert not (await awaited(stream.head())).closed


@both
@on_a_loop
async def test_a_reader_asks_the_writer_to_stop_and_the_stream_goes_on(tidemark_url: str, kind: Any) -> None:
    url = f"{tidemark_url}/v1/stream/stoppable"
    answer, reader = await awaited(kind.create(url, content_type="text/plain")), kind(url)
    with pytest.raises(api.NotFound):
        await awaited(reader.request_stop())
    for _ in range(2):
        async with entered(answer.stop_requests()) as stop:
            assert not stop.requested
            await awaited(answer.append("token "))
            await awaited(reader.request_stop())
            await awaited(reader.request_stop())
            if isinstance(stop, blocking.StopRequests):
                assert stop.wait(60)
            else:
                await stop.wait()
            assert stop.requested
            await awaited(answer.append("stopped "))
    with pytest.raises(api.NotFound):
        await awaited(reader.request_stop())
    assert (await awaited(reader.read())).text == "token stopped " * 2


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    if hasattr(block, "__aenter__"):
        async with block as value:
            yield value
    else:
        with block as value:
            yield value


def test_threads_of_a_producer_that_is_gone_end(tidemark_url: str) -> None:
    stream = Stream.create(f"{tidemark_url}/v1/stream/dropped", content_type="text/plain")

    others = threads_named("tidemark-producer")
    kept = stream.producer("kept")
    for number in range(20):
        dropped = stream.producer(f"dropped-{number}")
        dropped.append("x")
        dropped.flush()
    kept.append("x")
    kept.flush()
    until(lambda: threads_named("tidemark-producer") <= others)
    kept.append("y")
    assert kept.close() is not None, "it begins again when there is work"


@pytest.mark.parametrize("waits", [True, False])
def test_close_on_another_thread_ends_a_long_poll_of_an_own_client_and_a_pause(waits: bool) -> None:
    asked, gate = threading.Event(), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if "live" not in request.url.params:
            headers = {"Stream-Next-Offset": "1", "Content-Type": "text/plain", "Stream-Up-To-Date": "true"}
            return httpx.Response(200, headers=headers)
        asked.set()
        if waits:
            gate.wait(60)
        raise httpx.ReadError("broken")

    others, patient = (
        threads_named("tidemark-wait"),
        Retry(initial_delay_seconds=3600, max_delay_seconds=3600),
    )
    client = client_of(Stream, httpx.MockTransport(answer))
    following = Stream("http://server/s", client=client, retry=patient).follow(live="long-poll")
    thread = threading.Thread(target=list, args=(following,))
    thread.start()
    assert asked.wait(60)
    if not waits:
        time.sleep(0.3)  # The pause begins meanwhile.
    following.close()
    thread.join(60)
    assert not thread.is_alive()
    gate.set()
    until(lambda: threads_named("tidemark-wait") <= others)


def test_append_waits_while_too_much_is_held(tidemark_url: str) -> None:
    """Nothing is answered until the gate opens: what is held stays below its bound. A message that waits
    counts with 64 bytes more than one in a batch."""
    gate = threading.Event()

    class Gated(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            gate.wait(60)
            return super().handle_request(request)

    stream = Stream.create(f"{tidemark_url}/v1/stream/held", content_type="text/plain")
    client = httpx.Client(transport=Gated())
    slow = Stream(stream.url, content_type="text/plain", client=client)
    producer = slow.producer("p", max_held_bytes=1000, linger_seconds=0)
    appended = 0

    def append() -> None:
        nonlocal appended
        for _ in range(200):
            producer.append("x" * 10)
            appended += 1

    thread = threading.Thread(target=append)
    thread.start()
    while appended < 1000 // 74:
        thread.join(0.01)
    thread.join(0.2)
    assert 1000 // 74 <= appended <= 1000 // 10
    gate.set()
    thread.join(60)
    producer.close()
    client.close()
    assert len(stream.read().data) == 2000


# --- processes that end, and that fork ------------------------------------------------------------------

APPENDS = """
import asyncio, os, sys, threading
from tidemark import AsyncStream, Retry, Stream
url = sys.argv[1]
options = {"content_type": "text/plain", "retry": Retry(max_retries=0)}
producer = Stream(url, **options).producer("w", linger_seconds=60)
"""
AND_ENDS = """
for number in range(100):
    producer.append(f"{number},")
"""
WITH_ASYNCIO = """
async def main():
    producer = AsyncStream(url, **options).producer("w", linger_seconds=60)
    for number in range(3):
        await producer.append(f"{number},")
asyncio.run(main())
"""
AND_FORKS = """
producer.append("parent,")
producer.flush()
held, forked = threading.Event(), threading.Event()
def hold():
    with producer._changed:
        held.set()
        forked.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
forked.set()
if child == 0:
    for call in (lambda: producer.append("child,"), producer.detach):
        try:
            call()
        except RuntimeError as why:
            print(why, file=sys.stderr)
    Stream(url).producer("child", closes=False).append("child,")
    sys.exit()
os.wait()
"""


STOPS = """
with Stream(url, **options).stop_requests():
    if os.fork() == 0:
        sys.exit()
    os.wait()
    Stream(url).request_stop()
"""


def run_program(code: str, url: str) -> str:
    """What it said on standard error."""
    command = [sys.executable, "-c", code, url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stderr


def test_a_producer_that_nobody_closed_sends_what_it_has_when_the_process_ends(tidemark_url: str) -> None:
    stream = Stream.create(f"{tidemark_url}/v1/stream/ends", content_type="text/plain")
    assert run_program(APPENDS + AND_ENDS, stream.url) == ""
    assert stream.read().text == "".join(f"{number}," for number in range(100))


@both
def test_an_interrupted_block_waits_for_no_absent_server(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C, or because its task is cancelled."""
    monkeypatch.setattr(wire, "INTERRUPTED_SECONDS", 0.1)

    async def interrupted() -> None:
        patient = Retry(max_retries=1_000_000, initial_delay_seconds=3600, max_delay_seconds=3600)
        gone = f"http://127.0.0.1:{free_port()}/v1/stream/gone"
        producer = kind(gone, content_type="text/plain", retry=patient).producer("w", linger_seconds=60)
        async with entered(producer):
            await awaited(producer.append("last"))
            raise KeyboardInterrupt

    with pytest.warns(RuntimeWarning, match="1 of its messages"), pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())


def test_what_a_process_could_not_send_when_it_ended_is_told(tidemark_url: str) -> None:
    missing = f"{tidemark_url}/v1/stream/missing"
    said = run_program(APPENDS + AND_ENDS, missing)
    assert "100 of its messages were not acknowledged: POST http" in said
    assert "3 of its messages were not acknowledged; use it in a with block" in run_program(
        APPENDS + WITH_ASYNCIO, missing
    )


def test_a_forked_process_makes_a_producer_of_its_own(tidemark_url: str) -> None:
    """Threads are not forked: the parent's producer would wait for ever, and a lock that one has."""
    stream = Stream.create(f"{tidemark_url}/v1/stream/forks", content_type="text/plain")
    said = run_program(APPENDS + AND_FORKS, stream.url)
    assert said.count("this producer was made before os.fork") == 2
    assert "acknowledged" not in said
    assert stream.read().text == "parent,child,"
    run_program(APPENDS + STOPS, stream.url)  # The child's exit ends no signal of the parent's.
