"""Allowed URLs of webhooks (§12.8), and public addresses: tables of hostile ones."""

import ipaddress

import pytest

from tidemark.outbound.request import Url, is_public
from tidemark.protocol.errors import WebhookUrlRejected
from tidemark.subscriptions.configuration import parse_webhook_url

HOSTILE_URLS = [
    "http://example.com/hook", "http://10.0.0.1/hook", "ftp://example.com/", "file:///etc/passwd",
    "gopher://example.com/", "javascript:alert(1)", "//example.com/", "example.com/hook", "https://",
    "https:///x", "https:example.com", "https://localhost/", "https://LOCALHOST/", "https://localhost./",
    "https://a.localhost/", "https://127.0.0.1/", "https://127.1/", "https://2130706433/",
    "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://017700000001/",
    "https://127.0.0.1./", "https://0/", "https://0.0.0.0/", "https://10.0.0.1/", "https://172.16.0.1/",
    "https://172.31.255.255/", "https://192.168.0.1/", "https://169.254.169.254/latest/meta-data/",
    "https://169.254.170.2/", "https://100.64.0.1/", "https://192.0.0.1/", "https://198.18.0.1/",
    "https://224.0.0.1/", "https://255.255.255.255/", "https://240.0.0.1/", "https://[::]/",
    "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:10.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/", "https://[64:ff9b::a9fe:a9fe]/", "https://[64:ff9b::7f00:1]/",
    "https://[fd00:ec2::254]/", "https://[fe80::1]/", "https://[fe80::1%25eth0]/", "https://[ff02::1]/",
    "https://[fec0::1]/", "https://[2002:7f00:1::]/", "https://[2001::1]/", "https://[2001:db8::1]/",
    "https://[::127.0.0.1]/", "https://[127.0.0.1]/", "https://[::1", "https://::1/",
    "https://metadata.google.internal/", "https://printer.local/", "https://db.internal/",
    "https://intranet/", "https://router.lan/", "https://nas.home.arpa/", "https://example.com:8443/",
    "https://example.com:80/", "https://example.com:0/", "https://example.com:99999/",
    "https://example.com:x/", "https://user@example.com/", "https://user:pass@example.com/",
    "https://example.com@127.0.0.1/", "https://127.0.0.1#@example.com/", "https://example.com/#fragment",
    "https://example.com\\@127.0.0.1/", "https://exa mple.com/", "https://example.com/\r\nX-Injected: 1",
    "https://example.com/\tx", "https://例え.jp/", "https://%31%32%37.0.0.1/", "https://①②⑦.⓪.⓪.①/",
    "https://-example.com/", "https://example..com/", "https://.example.com/",
    "https://" + "a" * 64 + ".com/", "https://" + "a." * 130 + "com/", "https://example.com/" + "a" * 2_000,
]  # fmt: skip


@pytest.mark.parametrize("allow_local", [False, True])
@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_hostile_url_is_rejected(url: str, allow_local: bool) -> None:
    with pytest.raises(WebhookUrlRejected):
        parse_webhook_url(url, allow_local=allow_local)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://example.com", Url("https", "example.com", 443, "/")),
        ("https://Example.COM:443/a/b?c=d", Url("https", "example.com", 443, "/a/b?c=d")),
        ("https://xn--r8jz45g.jp/", Url("https", "xn--r8jz45g.jp", 443, "/")),
        ("https://8.8.8.8/", Url("https", "8.8.8.8", 443, "/")),
        ("https://[2606:4700::1111]/", Url("https", "2606:4700::1111", 443, "/")),
    ],
)
def test_a_url_of_the_public_internet_is_accepted(text: str, url: Url) -> None:
    assert parse_webhook_url(text, allow_local=False) == url


LOCAL = ("http://localhost:8080/hook", "http://127.0.0.1:8080/hook", "http://127.0.0.255/hook")
NOT_LOCAL = (
    "http://[::1]/", "http://127.1/", "http://localhost.example.com/", "http://10.0.0.1/", "http://127.1.2.3/",
    "http://127.0.0.256/", "http://127.0.0.01/",
)  # fmt: skip


@pytest.mark.parametrize("text", LOCAL + NOT_LOCAL)
def test_plain_http_is_for_this_machine_alone_and_for_development(text: str) -> None:
    if text in LOCAL:
        assert parse_webhook_url(text, allow_local=True).scheme == "http"
    for allow_local in {False, text not in LOCAL}:
        with pytest.raises(WebhookUrlRejected):
            parse_webhook_url(text, allow_local=allow_local)


HOSTILE_ADDRESSES = [
    "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1",
    "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.251",
    "239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1",
    "::ffff:192.168.0.1", "::ffff:169.254.169.254", "::7f00:1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2001:10::1", "2002:a00:1::1", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "2606:4700::1111%1", "fec0::1", "ff02::1", "ff05::2",
    # Own addresses of clouds: Azure, Oracle, Alibaba, AWS's containers, Google.
    "168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "192.0.0.192", "100.100.100.200",
    "169.254.170.23", "fd00:ec2::23", "fd20:ce::254",
]  # fmt: skip


PUBLIC_ADDRESSES = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES + PUBLIC_ADDRESSES)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert is_public(ipaddress.ip_address(address)) is (address in PUBLIC_ADDRESSES)
