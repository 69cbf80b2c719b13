"""Checked connections: names with several, hostile and rebound addresses, and the deadline."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from typing import Any

import httpcore
import pytest

from tests.waiting import PATIENCE_SECONDS
from tidemark.outbound import connection
from tidemark.outbound.connection import MOST_ADDRESSES, AddressRefused, NotConnected, answered
from tidemark.outbound.lookups import Lookups
from tidemark.outbound.url import IpAddress, Url, is_public
from tidemark.proxy.calls import RequestBody

PUBLIC = Url("https", "far.test", 443, "/")


async def status_of(url: Url, *, own: bool = False, seconds: float = PATIENCE_SECONDS) -> int:
    def may_connect(address: IpAddress) -> bool:
        return own or is_public(address)

    limits = {"header_seconds": seconds, "connect_seconds": seconds, "silent_seconds": seconds}
    asked = answered(url, "GET", [], RequestBody(b""), names=Lookups(), may_connect=may_connect, **limits)
    async with asked as answer:
        return answer.status


class Network:
    """Addresses of names, and the connections that were begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[list[str]] = []
        self.asked: list[tuple[str, int]] = []
        self.connected: list[tuple[str, float]] = []
        monkeypatch.setattr(connection, "resolve_host", self.resolve)

    def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.addresses.pop(0)

    async def connect(self, address: str, _port: int, timeout: float, **_named: Any) -> None:  # noqa: ASYNC109
        self.connected.append((address, timeout))
        raise httpcore.ConnectTimeout


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@pytest.fixture
def far(network: Network, monkeypatch: pytest.MonkeyPatch) -> Network:
    """No connection succeeds."""
    monkeypatch.setattr(
        "httpcore.AnyIOBackend.connect_tcp", lambda _self, *given, **named: network.connect(*given, **named)
    )
    return network


HOSTILE = [
    ["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"],
    ["2606:4700::1111", "::1"], ["::ffff:169.254.169.254"], ["64:ff9b::a9fe:a9fe"], ["fd00:ec2::254"],
    ["fe80::1"], ["fe80::1%eth0"], ["100.64.0.1"], ["0.0.0.0"], ["192.168.1.1", "192.168.1.2"], [],
]  # fmt: skip


@pytest.mark.parametrize("addresses", HOSTILE, ids=str)
def test_a_name_with_an_address_that_is_not_public_is_not_connected_to(
    far: Network, addresses: list[str]
) -> None:
    """One such address is enough, because the connection could take any of them."""
    far.addresses = [addresses]
    with pytest.raises(AddressRefused if addresses else NotConnected):
        asyncio.run(status_of(PUBLIC))
    assert far.connected == []


def test_a_name_that_is_rebound_is_looked_up_once_and_the_checked_address_gets_the_request(
    far: Network,
) -> None:
    far.addresses = [["8.8.8.8"], ["127.0.0.1"]]
    with pytest.raises(NotConnected, match="ConnectTimeout"):
        asyncio.run(status_of(PUBLIC))
    assert (far.asked, [address for address, _ in far.connected]) == ([("far.test", 443)], ["8.8.8.8"])


def test_a_silent_address_leaves_time_for_the_next_and_their_number_is_bounded(far: Network) -> None:
    far.addresses = [["8.8.8.8", "8.8.4.4"] * 100]
    with pytest.raises(NotConnected):
        asyncio.run(status_of(PUBLIC, seconds=100.0))
    assert [address for address, _ in far.connected] == ["8.8.8.8", "8.8.4.4"] * (MOST_ADDRESSES // 2)
    assert [timeout <= 50 for _, timeout in far.connected] == [True] * (MOST_ADDRESSES - 1) + [False]


@pytest.mark.parametrize("before", [[], ["::1"], ["127.0.0.2", "::1", "127.0.0.3"]], ids=str)
@pytest.mark.parametrize("after", [[], ["127.0.0.9"]], ids=str)
def test_each_address_is_tried(network: Network, before: list[str], after: list[str]) -> None:
    """This machine may have no IPv6."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 204 x\r\n\r\n")
        writer.close()

    async def asking() -> int:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            return await status_of(Url("http", "a.test", server.sockets[0].getsockname()[1], "/"), own=True)

    network.addresses = [[*before, "127.0.0.1", *after]]
    assert asyncio.run(asking()) == 204


def test_a_lookup_that_hangs_and_an_unknown_name_are_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def look(host: str, _port: int) -> list[str]:
        if host == "far.test":
            go_on.wait(PATIENCE_SECONDS)
        raise OSError

    monkeypatch.setattr(connection, "resolve_host", look)
    with pytest.raises(TimeoutError):
        asyncio.run(status_of(PUBLIC, seconds=0.01))
    go_on.set()
    with pytest.raises(NotConnected, match=r"unknown\.test has no address"):
        asyncio.run(status_of(Url("https", "unknown.test", 443, "/")))


def test_the_certificate_must_match_the_host() -> None:
    assert connection._tls().check_hostname
    assert connection._tls().verify_mode == ssl.CERT_REQUIRED


def test_httpcore_is_imported_with_the_first_call() -> None:
    """It costs a cold start 60 ms."""
    code = "import sys, tidemark.subscriptions.deliveries as _; sys.exit('httpcore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
