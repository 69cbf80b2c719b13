"""Checked connections: hostile and rebound addresses of names, shared lookups, and the deadline."""

import asyncio
import gc
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpcore
import pytest

from tests.waiting import PATIENCE_SECONDS, until
from tidemark.outbound import connection
from tidemark.outbound.request import RequestBody, Url, is_public

Attempt = tuple[str, float]
PUBLIC = Url("https", "far.test", 443, "/")


async def status_of(url: Url, seconds: float = PATIENCE_SECONDS) -> int:
    body, timeouts = RequestBody(b""), connection.Timeouts(seconds, seconds, seconds)
    may_connect = is_public if url is PUBLIC else (lambda _: True)
    asked = connection.answered(
        url, "GET", [], body, names=connection.Lookups(), may_connect=may_connect, timeouts=timeouts
    )
    async with asked as answer:
        return answer.status


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Attempt]:
    """The address and the timeout of each attempt to connect. All fail."""
    begun = list[Attempt]()

    async def connect(_self: object, address: str, _port: int, *, timeout: float, **_: Any) -> None:  # noqa: ASYNC109
        begun.append((address, timeout))
        raise httpcore.ConnectTimeout

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect)
    return begun


def resolve(monkeypatch: pytest.MonkeyPatch, *results: list[str]) -> None:
    left = iter(results)
    monkeypatch.setattr(connection, "resolve_host", lambda _host, _port: next(left))


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1", "8.8.8.8"], ["fe80::1%eth0"], []], ids=str
)
def test_a_name_with_an_address_that_is_not_public_is_not_connected_to(
    attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    resolve(monkeypatch, addresses)
    with pytest.raises(connection.AddressRefused if addresses else connection.NotConnected):
        asyncio.run(status_of(PUBLIC))
    assert attempts == []


@pytest.mark.parametrize(
    ("results", "tried"),
    [
        ([["8.8.8.8"], ["127.0.0.1"]], ["8.8.8.8"]),
        ([["8.8.8.8", "8.8.4.4"] * 100], ["8.8.8.8", "8.8.4.4"] * 2),
    ],
    ids=["a rebound name", "many silent addresses"],
)
def test_only_checked_addresses_are_tried_and_a_silent_one_leaves_time_for_the_next(
    attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch, results: list[list[str]], tried: list[str]
) -> None:
    resolve(monkeypatch, *results)
    with pytest.raises(connection.NotConnected, match="ConnectTimeout"):
        asyncio.run(status_of(PUBLIC, 100.0))
    assert [address for address, _ in attempts] == tried
    assert [timeout <= 50 for _, timeout in attempts] == [True] * (len(tried) - 1) + [False]


@pytest.mark.parametrize("first", [[], ["::1"], ["127.0.0.2", "::1", "127.0.0.3"]], ids=str)
@pytest.mark.parametrize("last", [[], ["127.0.0.9"]], ids=str)
def test_each_address_is_tried(monkeypatch: pytest.MonkeyPatch, first: list[str], last: list[str]) -> None:
    """For a machine without IPv6."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 x\r\n\r\n")
        writer.close()

    async def asking() -> int:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await status_of(Url("http", "a.test", server.sockets[0].getsockname()[1], "/"))

    resolve(monkeypatch, [*first, "127.0.0.1", *last])
    assert asyncio.run(asking()) == 204


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_callers_with_the_same_question_share_one_answer(go_on: threading.Event) -> None:
    asked = list[str]()

    def look(name: str) -> str:
        asked.append(name)
        go_on.wait(PATIENCE_SECONDS)
        return name.upper()

    lookups = connection.Lookups()
    first = lookups.ask(look, "a.test")
    assert (lookups.ask(look, "a.test") is first, first.cancel()) == (True, False)
    go_on.set()
    assert first.result(PATIENCE_SECONDS) == "A.TEST"
    assert lookups.ask(look, "a.test").result(PATIENCE_SECONDS) == "A.TEST"
    assert asked == ["a.test"] * 2


def test_slow_names_of_one_domain_leave_room_and_no_name_waits_in_a_line(go_on: threading.Event) -> None:
    lookups, wait = connection.Lookups(), lambda _name: go_on.wait(PATIENCE_SECONDS)
    answers = [lookups.ask(wait, f"{number}.one.test") for number in range(16)]
    with pytest.raises(connection.TooManyLookups, match=r"16 of .*one\.test"):
        lookups.ask(wait, "17.one.test")
    answers += [lookups.ask(wait, f"{number}.test") for number in range(48)]
    with pytest.raises(connection.TooManyLookups):
        lookups.ask(wait, "another.test")
    go_on.set()
    assert all(answer.result(PATIENCE_SECONDS) for answer in answers)
    until(lambda: not lookups._asked)
    lookups.ask(wait, "another.test").result(PATIENCE_SECONDS)


def test_a_failure_is_the_answer_and_leaves_no_garbage() -> None:
    def fail(_name: str) -> None:
        raise OSError("no address")

    gc.collect()
    with pytest.raises(OSError, match="no address"):
        connection.Lookups().ask(fail, "a.test").result(PATIENCE_SECONDS)
    assert not [
        each for each in gc.get_objects() if isinstance(each, OSError) and each.args == ("no address",)
    ]


def test_the_certificate_must_match_the_host() -> None:
    assert connection._TLS.check_hostname
    assert connection._TLS.verify_mode == ssl.CERT_REQUIRED


def test_httpcore_is_imported_with_the_first_call() -> None:
    """A cold start would need 60 ms more."""
    code = "import sys, tidemark.subscriptions.deliveries as _; sys.exit('httpcore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
