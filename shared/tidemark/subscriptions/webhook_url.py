"""The allowed URLs of webhooks, and the allowed addresses of their hosts (§6.2, §12.8).

The text of a URL is checked when a subscription is created. The resolved address is checked at each delivery,
and the connection goes to exactly that address.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tidemark.protocol.errors import WebhookUrlRejected

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_BYTES: Final = 2_000
HTTPS_PORT: Final = 443
#: A label of a host name, in its ASCII form.
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
#: Names of this machine and of the local network (RFC 6761, RFC 6762, RFC 8375).
_LOCAL_NAMES: Final = (
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home.arpa",
    "localdomain",
    "test",
)
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
class WebhookUrl:
    """A URL that may be called. `host` is in lower case and in ASCII, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_local(self) -> bool:
        """Whether this is plain HTTP to this machine, which is for development only."""
        return self.scheme == "http"

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (HTTPS_PORT if self.scheme == "https" else 80) else f"{host}:{self.port}"


def parse_webhook_url(text: str, *, allow_local: bool) -> WebhookUrl:
    """Raises WebhookUrlRejected. `allow_local` also accepts plain HTTP to localhost and 127.0.0.x."""
    if len(text.encode()) > MAX_URL_BYTES or not text.isascii() or re.search(r"[\x00-\x20\x7f\\]", text):
        raise WebhookUrlRejected(
            f"webhook.url must be ASCII without spaces and backslashes, at most {MAX_URL_BYTES} bytes"
        )
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise WebhookUrlRejected("webhook.url is not a valid URL") from None
    if url.scheme not in {"http", "https"}:
        raise WebhookUrlRejected("webhook.url must begin with https://")
    if "@" in url.netloc or "#" in text or "%" in url.netloc:
        raise WebhookUrlRejected("webhook.url must have no user, no fragment and no escapes in its host")
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    if url.scheme == "http":
        if allow_local and is_local_host(host):
            return WebhookUrl("http", host, port or 80, target)
        allowed = " (or http:// to localhost)" if allow_local else ""
        raise WebhookUrlRejected(f"webhook.url must begin with https://{allowed}")
    if port not in {None, HTTPS_PORT}:
        raise WebhookUrlRejected(f"webhook.url must use port {HTTPS_PORT}, got {port}")
    _check_host(host, is_bracketed="[" in url.netloc)
    return WebhookUrl("https", host, HTTPS_PORT, target)


def is_local_host(host: str) -> bool:
    """Whether the host is `localhost` or `127.0.0.x`. §6.2 allows no other address of 127.0.0.0/8."""
    last = host.removeprefix("127.0.0.")
    return host == "localhost" or (last != host and last in map(str, range(256)))


def _check_host(host: str, *, is_bracketed: bool) -> None:
    """Accept a public name, or a public address in its canonical form. Some resolvers read other forms as
    addresses too (`2130706433`, `0x7f.1`, `127.1`): those are refused. Raises WebhookUrlRejected."""
    if is_bracketed:
        try:
            address: IpAddress = ipaddress.IPv6Address(host)
        except ValueError:
            raise WebhookUrlRejected("webhook.url has no valid host") from None
        return check_address(address)
    labels = host.removesuffix(".").split(".")
    if re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)", labels[-1]):
        try:
            return check_address(ipaddress.IPv4Address(host))
        except ValueError:
            raise WebhookUrlRejected("webhook.url has no valid host") from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise WebhookUrlRejected(
            "webhook.url has no valid host; a name beyond ASCII is written in its xn-- form"
        )
    if len(labels) < 2 or any(host.removesuffix(".").endswith(f".{name}") for name in _LOCAL_NAMES):
        raise WebhookUrlRejected("webhook.url must name a host of the public internet")
    return None


def check_address(address: IpAddress) -> None:
    """Raises WebhookUrlRejected for an address that is not public: loopback, private, link-local (metadata
    services), shared, multicast, reserved, and IPv6 forms of such addresses."""
    inner = _embedded(address)
    if inner is not None:
        return check_address(inner)
    refused = any(address.version == network.version and address in network for network in _REFUSED)
    if refused or not address.is_global or address.is_multicast or address.is_reserved:
        raise WebhookUrlRejected("webhook.url must lead to an address of the public internet")
    return None


def _embedded(address: IpAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside an IPv6 address: mapped, or translated by NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
