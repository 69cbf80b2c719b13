"""Calls of upstreams by a server, from the request to the end of the answer's stream."""

import gc
import http.client
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from types import FrameType

import httpcore
import httpx
import pytest

from tests.conformance.clients.node import SLOW_READER, run_node
from tests.proxy.conftest import NO_HEADERS, Behaviour, Client, UpstreamHandler, never_ends, says
from tests.waiting import PATIENCE_SECONDS, until
from tidemark.http import limits
from tidemark.http import proxy as endpoint
from tidemark.outbound import connection
from tidemark.protocol import proxy as rules
from tidemark.protocol.errors import StorageUnavailable
from tidemark.proxy import calls, pipe, upstream
from tidemark.proxy.upstream import CallLimits

KEY = {"Idempotency-Key": "k"}


def test_an_answer_becomes_a_stream(client: Client) -> None:
    client.upstream.behave = says(b"data: one\n\n", b"data: two\n\n", content_type="text/event-stream; x=y")
    asked = client.ask({"X-Custom": "7", "Cookie": "a=b"}, content=b'{"stream": true}')
    assert (asked.status_code, asked.content) == (201, b"")
    assert asked.headers["Upstream-Content-Type"] == "text/event-stream; x=y"
    data, last = client.read_to_the_end(asked.headers["Location"])
    assert data == b"data: one\n\ndata: two\n\n"
    assert last.headers["Upstream-Content-Type"] == "text/event-stream; x=y"
    assert "Upstream-Error" not in last.headers
    assert "upstreamError" not in client.close_of(asked.headers["Location"])
    assert "no-store" in last.headers["Cache-Control"]
    [(method, path, headers, body)] = client.upstream.requests
    assert (method, path, body) == ("POST", "/chat", b'{"stream": true}')
    assert headers["authorization"] == "Bearer marked-key"
    assert headers["Host"] == client.upstream.url.removeprefix("http://")
    assert (headers["x-custom"], "cookie" in headers) == ("7", False)


def test_a_slow_reader_of_the_npm_client_gets_an_answer_whole(client: Client) -> None:
    """Also what comes right before its end."""
    events = [b'data: {"token": %d}\n\n' % number for number in range(16)] + [b"data: [DONE]\n\n"]

    def a_model(handler: UpstreamHandler) -> None:
        handler.start()
        for event in events:
            handler.wfile.write(event)
            client.upstream.go_on.wait(0.1)

    client.upstream.behave = a_model
    run_node(SLOW_READER, ANSWER=client.ask().headers["Location"], WHOLE=b"".join(events).decode())


def test_an_answer_without_a_content_type_is_bytes(client: Client) -> None:
    client.upstream.behave = says(b"x", content_type="")
    assert client.ask().headers["Upstream-Content-Type"] == "application/octet-stream"


def test_answers_in_drips_are_written_before_the_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is due some time after its first byte, not after its last one: the time of the entry."""
    find = rules.allowing_entry
    monkeypatch.setattr(rules, "allowing_entry", lambda *given: replace(find(*given), linger=1.0))
    monkeypatch.setattr(pipe, "carry_out", partial(pipe.carry_out, limits=CallLimits(linger=600.0)))
    client.upstream.behave = drips
    location = client.ask().headers["Location"]
    assert client.http.get(f"{location}&offset=-1&live=long-poll").content.startswith(b".")
    assert client.http.patch(f"{location}&action=abort").status_code == 204


def test_an_answer_is_read_while_it_comes_and_can_be_stopped(client: Client) -> None:
    client.upstream.behave = never_ends
    location = client.ask().headers["Location"]
    first = client.http.get(f"{location}&offset=-1&live=long-poll")
    assert (first.content, "Stream-Closed" in first.headers) == (b"first ", False)
    client.upstream.go_on.set()
    for _ in range(2):
        assert client.http.patch(f"{location}&action=abort").status_code == 204
    data, last = client.read_to_the_end(location)
    assert data.startswith(b"first ")
    assert last.headers["Upstream-Error"] == "aborted"
    assert client.upstream.was_left.wait(PATIENCE_SECONDS), "the upstream goes on for nobody"


def cut(handler: UpstreamHandler) -> None:
    handler.start(content_length="1000")
    handler.wfile.write(b"begun")


def drips(handler: UpstreamHandler) -> None:
    handler.start()
    while True:
        handler.wfile.write(b".")
        threading.Event().wait(0.02)


def floods(handler: UpstreamHandler) -> None:
    handler.start()
    while True:
        handler.wfile.write(bytes(50_000))


@pytest.mark.parametrize(
    ("behave", "limits", "error"),
    [
        (cut, CallLimits(), "cut off by upstream: RemoteProtocolError"),
        (never_ends, CallLimits(silence=0.3), "cut off: upstream was silent for 0 s"),
        (drips, CallLimits(whole=0.5), "cut off: longer than 0 s or 0 MiB"),
        (floods, CallLimits(), "cut off: longer than 3600 s or 0 MiB"),
    ],
)
def test_an_answer_that_ends_early_says_why_in_each_way_to_read_it(
    client: Client, monkeypatch: pytest.MonkeyPatch, behave: Behaviour, limits: CallLimits, error: str
) -> None:
    monkeypatch.setattr(pipe, "LONGEST_ANSWER_BYTES", 500_000)
    monkeypatch.setattr(pipe, "carry_out", partial(pipe.carry_out, limits=limits))
    client.upstream.behave = behave
    location = client.ask().headers["Location"]
    with ThreadPoolExecutor(1) as pool:
        open_before = pool.submit(client.close_of, location)
        data, last = client.read_to_the_end(location)
    assert data
    assert len(data) < 1_000_000
    assert last.headers["Upstream-Error"] == error
    for close in (open_before.result(), client.close_of(location)):
        assert (close["streamClosed"], close["upstreamError"]) == (True, error)


def refuses(handler: UpstreamHandler) -> None:
    handler.start(429, content_type="application/json", retry_after="7", x_ratelimit_reset_tokens="6m0s")
    handler.wfile.write(b'{"error": "slow down"}' + bytes(100_000))


def quotes(handler: UpstreamHandler) -> None:
    handler.start(401, content_type="garbage")
    handler.wfile.write(f"no such key: {handler.headers['authorization']}".encode())


def stops_inside_the_key(handler: UpstreamHandler) -> None:
    handler.start(401)
    handler.wfile.write(f"no such key: {handler.headers['authorization'][:-2]}".encode())
    handler.upstream.go_on.wait(30)


def quotes_across_the_border(handler: UpstreamHandler) -> None:
    handler.start(401)
    for piece in (b"x" * (32 * 1024 - 7) + b"marked-", b"key" + bytes(100_000)):
        handler.wfile.write(piece)
        threading.Event().wait(0.2)


def redirects(handler: UpstreamHandler) -> None:
    handler.start(302, location="http://169.254.169.254/")


def says_nothing(handler: UpstreamHandler) -> None:
    handler.upstream.go_on.wait(30)


def test_what_a_client_gets_without_an_answer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.upstream.behave = refuses
    refused = client.ask()
    assert (refused.status_code, refused.headers["Upstream-Status"]) == (502, "429")
    assert (refused.headers["Content-Type"], len(refused.content)) == ("application/json", 32 * 1024)
    assert refused.headers["Content-Security-Policy"] == "sandbox"
    assert (refused.headers["Retry-After"], refused.headers["X-RateLimit-Reset-Tokens"]) == ("7", "6m0s")
    readable = client.ask({"Origin": "http://page.test"}).headers["Access-Control-Expose-Headers"].split(", ")
    assert {"Upstream-Status", "retry-after", "x-ratelimit-reset-tokens"} <= set(readable)
    client.upstream.behave = quotes_across_the_border
    assert client.ask().text.strip("x\0") == "***"
    monkeypatch.setattr(upstream, "_ERROR_SECONDS", 0.5)
    client.upstream.behave = stops_inside_the_key
    assert client.ask().text == "no such key: Bearer ***"
    client.upstream.go_on.set()
    client.upstream.behave = quotes
    quoted = client.ask({"X-Name": "\u00e9"})
    assert (quoted.status_code, quoted.headers["Upstream-Status"]) == (502, "401")
    assert quoted.text == "no such key: Bearer ***"
    assert quoted.headers["X-Should-Retry"] == "false"
    client.upstream.go_on.clear()
    client.upstream.behave = redirects
    assert code_of(client.ask()) == (400, "REDIRECT_NOT_ALLOWED")
    monkeypatch.setattr(pipe, "carry_out", partial(pipe.carry_out, limits=CallLimits(headers=0.2)))
    client.upstream.behave = says_nothing
    assert code_of(client.ask()) == (504, "UPSTREAM_TIMEOUT")
    monkeypatch.setattr(connection, "resolve_host", lambda _host, _port: ["127.0.0.1"])
    monkeypatch.delenv("MODEL_KEY")
    assert code_of(client.ask()) == (502, "UPSTREAM_ERROR")
    assert client.http.get("/proxy/streams", headers=client.token("read:*")).status_code == 404


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_name_that_leads_inside_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "resolve_host", lambda _host, _port: ["93.184.216.34", "192.168.0.1"])
    answer = client.ask({"Upstream-URL": "http://inside.test/x"})
    assert code_of(answer) == (403, "UPSTREAM_NOT_ALLOWED")


@pytest.mark.parametrize("given", [[""], ["Bearer a", "Bearer b"]])
def test_a_clients_key_that_is_empty_or_given_twice_is_refused(client: Client, given: list[str]) -> None:
    sent = client.token() | {"Upstream-URL": client.upstream.url + "/chat", "Upstream-Method": "POST"}
    own = [("Upstream-Authorization", value) for value in given]
    answer = client.http.post("/v1/proxy", headers=[*sent.items(), *own])
    assert (answer.status_code, "Upstream-Authorization" in answer.text) == (400, True)
    assert client.upstream.requests == []


def test_an_error_that_an_older_release_stored_has_no_headers() -> None:
    stored = {"status": 502, "upstream_status": 400, "content_type": "text/plain", "body": "eA=="}
    answer = endpoint._refused(calls.UpstreamCall(refusal=stored))
    assert (answer.status_code, answer.body, answer.headers["Upstream-Status"]) == (502, b"x", "400")


def holders(size: int) -> list[str]:
    """The objects of this process that hold bytes of this size."""
    found = [each for each in gc.get_objects() if type(each) is not FrameType]
    return [
        repr(each)[:200]
        for each in found
        if any(type(held) is bytes and len(held) == size for held in gc.get_referents(each))
    ]


def test_a_body_is_let_go_once_it_is_sent(client: Client) -> None:
    """While the upstream thinks, and while its answer comes."""

    def thinks(handler: UpstreamHandler) -> None:
        handler.upstream.requests.clear()
        handler.upstream.was_left.set()
        handler.upstream.go_on.wait(PATIENCE_SECONDS)
        never_ends(handler)

    client.upstream.behave = thinks
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(client.ask, content=itertools.repeat(bytes(1_111), 1_111))
        try:
            assert client.upstream.was_left.wait(PATIENCE_SECONDS)
            until(lambda: not holders(1_111 * 1_111))
        finally:
            client.upstream.go_on.set()
    location = asked.result().headers["Location"]
    assert client.http.get(f"{location}&offset=-1&live=long-poll").content.startswith(b"first ")
    assert holders(1_111 * 1_111) == []


def test_waiting_bodies_take_no_room_of_appends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, resolving = threading.Event(), list[str]()

    def hangs(host: str, _port: int) -> list[str]:
        resolving.append(host)
        go_on.wait(2 * PATIENCE_SECONDS)
        return ["127.0.0.1"]

    monkeypatch.setattr(endpoint, "_HELD_BYTES", 1_000_000)
    monkeypatch.setattr(limits, "MAX_HELD_BYTES", 1_000_000)
    monkeypatch.setattr(connection, "resolve_host", hangs)
    monkeypatch.setattr(upstream, "_CONNECT_SECONDS", 2 * PATIENCE_SECONDS)
    client.upstream.behave = says(b"x")
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(client.ask, content=bytes(800_000))
        try:
            until(lambda: resolving)
            refused = client.ask(KEY, content=bytes(800_000))
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            token = client.token("write:*")
            assert client.http.put("/v1/stream/large", headers=token, content=bytes(800_000)).is_success
        finally:
            go_on.set()
        assert waits.result().status_code == 201
    assert client.ask(KEY, content=bytes(800_000)).status_code == 201


def test_slow_names_hold_up_nobody(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the check of a new token nor a large append, for which threads are needed too."""
    go_on, resolving = threading.Event(), list[str]()

    def hangs(host: str, _port: int) -> list[str]:
        resolving.append(host)
        go_on.wait(2 * PATIENCE_SECONDS)
        return []

    def ask(host: str) -> str:
        answer = client.ask({"Upstream-URL": f"http://{host}/x"})
        assert code_of(answer) == (502, "UPSTREAM_ERROR")
        return str(answer.json()["error"]["message"])

    monkeypatch.setattr(connection, "resolve_host", hangs)
    monkeypatch.setattr(upstream, "_CONNECT_SECONDS", 1.0)
    bobs = client.token("read:* write:*", "bob")
    other = httpx.Client(base_url=client.http.base_url, headers=bobs, timeout=PATIENCE_SECONDS / 2)
    with other, ThreadPoolExecutor(50) as several:
        try:
            same = [several.submit(ask, "same.test") for _ in range(20)]
            alike = [several.submit(ask, f"{number}.one.test") for number in range(20)]
            until(lambda: len(resolving) >= 6)
            assert other.put("/v1/stream/large", content=bytes(1_000_000)).status_code == 201
            assert other.get("/v1/stream/large?offset=-1").status_code == 200
            reasons = [each.result() for each in (*same, *alike)]
        finally:
            go_on.set()
    assert sum("does not resolve in 1 s" in reason for reason in reasons) == 20 + 16
    assert resolving.count("same.test") == 1


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "all_proxy"])
def test_a_bypassed_proxy_is_named(client: Client, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """For a connection that fails, and for a name that only the proxy may know."""

    def unknown(*_: object) -> list[str]:
        raise OSError

    monkeypatch.setenv(variable, "http://user:secret@proxy.test:3128")
    for resolve in (unknown, lambda *_: ["93.184.216.34"]):
        monkeypatch.setattr(connection, "resolve_host", resolve)
        monkeypatch.setattr("httpcore.AnyIOBackend.connect_tcp", fails_to_connect)
        answer = client.ask({"Upstream-URL": "http://far.test/x"})
        assert code_of(answer) == (502, "UPSTREAM_ERROR")
        assert f"{variable} is set, but the durable proxy connects directly" in answer.text
        assert "secret" not in answer.text


async def fails_to_connect(*_: object, **__: object) -> None:
    raise httpcore.ConnectTimeout


def test_a_repeated_request_calls_once(client: Client) -> None:
    client.upstream.behave = never_ends
    with ThreadPoolExecutor(5) as several:
        answers = list(several.map(lambda _: client.ask(KEY), range(5)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({httpx.URL(answer.headers["Location"]).path for answer in answers}) == 1
    assert len(client.upstream.requests) == 1
    assert client.ask(KEY, content=b"other").status_code == 409
    assert client.ask(KEY, "/other").status_code == 409
    others = [client.ask({"Idempotency-Key": "k2"}), client.ask(KEY | client.token(subject="bob"))]
    paths = {httpx.URL(answer.headers["Location"]).path for answer in (*answers, *others)}
    assert (len(paths), len(client.upstream.requests)) == (3, 3), "bob has a call of his own"


def test_a_repeated_request_calls_anew_after_a_failure(client: Client) -> None:
    client.upstream.behave = refuses
    assert client.ask(KEY).status_code == 502
    client.upstream.behave = says(b"fine")
    again = client.ask(KEY)
    assert again.status_code == 201, again.text
    assert client.read_to_the_end(again.headers["Location"])[0] == b"fine"
    assert len(client.upstream.requests) == 2


def test_want_of_room_is_no_failure_of_the_call(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_CALLS_AT_ONCE", 0)
    for _ in range(11):
        refused = client.ask(KEY)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    monkeypatch.setattr(endpoint, "_CALLS_AT_ONCE", 1)
    client.upstream.behave = says(b"fine")
    answer = client.ask(KEY)
    assert answer.status_code == 201, answer.text
    assert client.read_to_the_end(answer.headers["Location"])[0] == b"fine"


@pytest.mark.parametrize("leaves", [True, False], ids=["it leaves", "its time ends"])
@pytest.mark.parametrize("headers", [NO_HEADERS, KEY], ids=["without a key", "with a key"])
def test_a_client_without_the_headers_stops_a_call_that_nobody_can_repeat(
    client: Client, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], leaves: bool
) -> None:
    def thinks(handler: UpstreamHandler) -> None:
        """Until it is left, or may go on."""
        handler.connection.settimeout(0.1)
        while not handler.upstream.go_on.is_set():
            with suppress(TimeoutError):
                assert handler.connection.recv(1) == b"", "nothing follows a request"
                raise ConnectionError
        says(b"thought")(handler)

    client.upstream.behave = thinks
    if leaves:
        with closing(http.client.HTTPConnection(client.http.base_url.netloc.decode())) as connection:
            connection.request("POST", "/v1/proxy", b"{}", client.asked(headers))
            until(lambda: client.upstream.requests)
    else:
        with monkeypatch.context() as hurried:
            hurried.setattr(endpoint, "_ANSWER_SECONDS", 0.5)
            assert code_of(client.ask(headers)) == (504, "UPSTREAM_TIMEOUT")
    if headers:
        client.upstream.go_on.set()
        location = client.ask(headers).headers["Location"]
        assert client.read_to_the_end(location)[0] == b"thought"
        assert len(client.upstream.requests) == 1
    else:
        half_the_limit = CallLimits().headers / 2
        assert client.upstream.was_left.wait(half_the_limit), "it is paid for, and nobody can read it"


def test_a_call_goes_on_while_its_upstream_thinks(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed before there are headers, and though storage fails meanwhile."""
    renewed, renew = 0, calls.Calls.renew

    async def renew_sometimes(self: calls.Calls, order: calls.UpstreamRequest) -> bool:
        nonlocal renewed
        renewed += 1
        if renewed % 2:
            raise StorageUnavailable
        return await renew(self, order)

    def thinks(handler: UpstreamHandler) -> None:
        until(lambda: renewed > 3)
        says(b"thought")(handler)

    monkeypatch.setattr(pipe, "_RENEW_SECONDS", 0.1)
    monkeypatch.setattr(pipe, "_PAUSES", (0.01,))
    monkeypatch.setattr(calls.Calls, "renew", renew_sometimes)
    client.upstream.behave = thinks
    assert client.read_to_the_end(client.ask().headers["Location"])[0] == b"thought"


def test_a_call_whose_process_is_gone_ends(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease runs out. Nobody calls a second time, and what was read stays."""
    monkeypatch.setattr(calls, "LEASE_MS", -1)
    client.upstream.behave = never_ends
    location = client.ask(KEY).headers["Location"]
    data, last = client.read_to_the_end(location)
    assert last.headers["Upstream-Error"].startswith("lost")
    client.upstream.go_on.set()
    assert client.upstream.was_left.wait(PATIENCE_SECONDS), "the process was there after all, and stops"
    again = client.ask(KEY)
    assert again.status_code == 201, again.text
    assert client.read_to_the_end(again.headers["Location"])[0] == data
    assert len(client.upstream.requests) == 1


def test_who_may_do_what(client: Client) -> None:
    client.upstream.behave = says(b"x")
    location = client.ask().headers["Location"]
    path, http = httpx.URL(location).path, client.http
    other, unfit = client.token(subject="bob"), client.token("read:* write:* manage:*")
    #: In this order: the deletion is near the end.
    answers = {
        "POST by no token": (401, http.post("/v1/proxy")),
        "POST by a wrong token": (401, client.ask({"Authorization": "Bearer x"})),
        "POST by another right": (403, client.ask(unfit)),
        "POST by a right to another entry": (403, client.ask(client.token("proxy:wild"))),
        "POST by a right to the entry": (201, client.ask(client.token("proxy:model"))),
        "GET by a token": (200, http.get(path, headers=client.token("proxy:model"))),
        "GET by another's token": (404, http.get(path, headers=other)),
        "GET by nothing": (401, http.get(path)),
        "GET by a wrong signature": (401, http.get(location + "x")),
        "HEAD by a token": (200, http.head(path, headers=client.token())),
        "HEAD by a signed URL": (401, http.head(location)),
        "PATCH by a token": (401, http.patch(f"{path}?action=abort", headers=client.token())),
        "PATCH of nothing": (400, http.patch(location)),
        "DELETE by a signed URL": (401, http.delete(location)),
        "DELETE by another's token": (204, http.delete(path, headers=other)),
        "GET by a signed URL": (200, http.get(location)),
        "DELETE by a token": (204, http.delete(path, headers=client.token())),
        "DELETE once more": (204, http.delete(path, headers=client.token())),
        "GET of what is deleted": (404, http.get(location)),
    }
    assert [name for name, (status, answer) in answers.items() if answer.status_code != status] == []


def test_the_upstreams_key_is_kept_nowhere(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the entry's nor the client's: not in what is stored, told or logged, whatever happens."""
    said = list[str]()
    for behave in (says(b"x"), refuses, cut, quotes):
        client.upstream.behave = behave
        for own in (NO_HEADERS, {"Upstream-Authorization": "Bearer marked-client"}):
            answer = client.ask(own, "/chat?key=marked-query")
            said += [answer.text, str(answer.headers)]
            if "Location" in answer.headers:
                said += [str(client.read_to_the_end(answer.headers["Location"])[1].headers)]
    everything = client.token("read:*")
    stored = client.http.get("/proxy-calls/streams", headers=everything).json()["streams"]
    assert len(stored) == 8
    for each in stored:
        said.append(client.http.get(f"/proxy-calls/{each['stream_id']}", headers=everything).text)
    assert "marked" not in "".join(said) + caplog.text
    assert "marked-key" in str(client.upstream.requests)
