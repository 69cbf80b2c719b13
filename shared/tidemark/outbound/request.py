"""URL and body of a request to another server, and the addresses of the public internet."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

PORTS: Final = {"http": 80, "https": 443}
#: IPv6 addresses that NAT64 translates to an embedded IPv4 address. (64:ff9b:1::/48 is private NAT64.)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
#: Networks that are not public; `ipaddress` knows only some, depending on Python's version. IPv4: this
#: network, CGNAT, protocol assignments, Azure's wire server, relay anycast, benchmarks, reserved. IPv6:
#: discard-only, local NAT64, protocol assignments (Teredo, ORCHID), documentation, 6to4, site-local.
_REFUSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15",
        "240.0.0.0/4", "100::/64", "64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
        "5f00::/16", "fec0::/10",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Url:
    """`host` is in lower case, an IPv6 address without brackets; `target` is path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class RequestBody:
    """A body that is let go once it is sent: an answer may take an hour."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content, self.content = self.content, b""
        yield content


def split_url(text: str) -> tuple[Url, str]:
    """Return the unchecked URL without its fragment, and its authority as written. Raises ValueError."""
    url = urlsplit(text)
    port = PORTS.get(url.scheme, 0) if url.port is None else url.port
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return Url(url.scheme, url.hostname or "", port, target), url.netloc


def is_public(address: IpAddress) -> bool:
    """False for an address that is loopback, private, link-local (metadata services), shared, multicast or
    reserved, and for IPv6 forms of such addresses."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    refused = any(address.version == network.version and address in network for network in _REFUSED)
    return not (refused or not address.is_global or address.is_multicast or address.is_reserved)
