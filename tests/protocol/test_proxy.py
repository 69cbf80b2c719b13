"""The allow-list of the durable proxy, what is sent to upstreams, and signed URLs."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.protocol import proxy
from tidemark.protocol.errors import ProxyError

LIST = proxy.parse_allowed(
    "https://api.openai.com/v1/* name=openai key=env:OPENAI, *.example.com/api/** , http://localhost:*/**,"
    "https://exact.test:8443/one header=x-api-key, api-*.models.test, https://[2606:4700::1]:443/*,"
    "https://keyed.test/* key=env:K linger=0.5"
)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1/chat/completions?x=1", "openai"),
        ("HTTPS://API.OpenAI.com:443/v1", "openai"),
        ("http://sub.example.com/api/x", "*.example.com"),
        ("https://a.b.example.com:8000/api", "*.example.com"),
        ("http://localhost:9/any", "localhost"),
        ("https://exact.test:8443/one", "exact.test"),
        ("http://api-1.models.test/", "api-*.models.test"),
        ("https://[2606:4700::1]/x", "2606:4700::1"),
        ("https://keyed.test/caf%C3%A9%20100%25/v1.2/..x", "keyed.test"),
    ],
)
def test_an_allowed_url_finds_its_entry(url: str, name: str) -> None:
    assert proxy.allowing_entry(LIST, proxy.parse_upstream_url(url)).name == name


REFUSED = (
    # Of another scheme, host, port or path than an entry's.
    "http://api.openai.com/v1/x", "ftp://api.openai.com/v1/x", "https://api.openai.com/v2/x",
    "https://api.openai.com/v1x", "https://api.openai.com.evil.test/v1/x", "https://example.com/api/x",
    "https://evilexample.com/api/x", "https://exact.test:8444/one", "https://exact.test:8443/one/two",
    "https://api-1.evil.test/?.models.test",
    # Written so that another reader finds another host,
    "https://api.openai.com@evil.test/v1/x", "https://evil.test\\@api.openai.com/v1/x",
    "https://api.openai.com:443@evil.test/v1/x", "https://api.openai.com%2eevil.test/v1/x",
    "https://evil.test%00.example.com/api/x", "https://api.openai.com./v1/x", "https://ａpi.openai.com/v1/x",
    "https://api.openai。com/v1/x", "https://api.openai.com\t.evil.test/v1/x", "https://api.openai.com\n/v1/x",
    "https:///v1/x", "https://:443/v1/x", "https://api.openai.com:/v1/x", "https://api.openai.com:0/v1/x",
    "https://api.openai.com:99999/v1/x", "https://[::ffff:127.0.0.1]/v1/x", "https://[::1%25eth0]/v1/x",
    "//api.openai.com/v1/x", "api.openai.com/v1/x",
    # or another path.
    "https://api.openai.com/v1/../admin", "https://api.openai.com/v1/%2e%2e/admin",
    "https://api.openai.com/v1/%252e%252e%252fadmin", "https://api.openai.com/v1/..%2fadmin",
    "https://api.openai.com/v1/..%5cadmin", "https://api.openai.com/v1/..;/admin",
    "https://api.openai.com/v1/%252e%252e%253bx/admin",
    "https://api.openai.com/v1/%25252525252e%25252525252e/admin", "https://api.openai.com/v1/.%09./x",
    "https://api.openai.com/v1/..%20/x", "https://api.openai.com/v1/x%00",
    # With the key in clear text, or to a port that is not named.
    "http://keyed.test/v1/x", "https://keyed.test:8443/v1/x", "https://api.openai.com/v1/x#@evil.test",
    "https://2130706433/", "https://0x7f.1/", "http://169.254.169.254/latest/meta-data/", "",
)  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_every_other_url_is_refused(url: str) -> None:
    with pytest.raises(ProxyError) as refused:
        proxy.allowing_entry(LIST, proxy.parse_upstream_url(url))
    assert (refused.value.status, refused.value.code) == (403, "UPSTREAM_NOT_ALLOWED")


@given(st.text(max_size=40))
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://api.openai.com/{text}"):
        with suppress(ProxyError):
            assert proxy.parse_upstream_url(url).host.isascii()


def test_an_entry_may_have_its_own_linger() -> None:
    assert [entry.linger for entry in LIST] == [None] * 6 + [0.5]


def test_only_an_entry_with_host_and_port_may_lead_to_a_private_network() -> None:
    assert [entry.name for entry in LIST if entry.is_exact] == ["localhost", "exact.test", "2606:4700::1"]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        *(
            (each, "/path")
            for each in ("https://", "a.test:port", "a.test nme=x", "a.test 1", "ftp://a.test")
        ),
        *((each, "key=") for each in ("https://a.test key=foo:bar", "https://a.test key=env:")),
        *((each, "key=") for each in ("https://a.test key=", "https://a.test key=sk-secret")),
        ("a.test key=env:K", "https://"),
        ("a.test name=", "name="),
        ("a.test header=x:y", "header="),
        *((each, "linger=") for each in ("a.test linger=6", "a.test linger=", "a.test linger=0.5s")),
        ("a.test name=a name=b", "once"),
        # Patterns that match no URL.
        *((each, "no user") for each in ("u@a.test", "https://u@a.test/*", "a..test", ".a.test", "a.test.")),
        *((each, "65535") for each in ("a.test:0", "a.test:99999", "https://a.test:65536/* key=env:K")),
        *((each, r"no \*") for each in ("a.test/v1/*/x", "a.test/*x/*", "a.test/v1*", "a.test/**/x")),
        *((each, "of a URL") for each in ("a.test/v1?x=1", "a.test/#x", "a.test/../x", "a.test/caf\u00e9")),
        *(
            (each, "host")
            for each in ("caf\u00e9.test", "[::1%eth0]", "[a.test]", "a%2e.test", "a.test:\u0665")
        ),
    ],
)
def test_an_entry_that_matches_no_url_or_names_no_key_is_refused(text: str, right: str) -> None:
    """The error names the entry, without a key that somebody wrote into it."""
    shown = re.escape(re.sub("key=.+", "key=…", text))
    with pytest.raises(ValueError, match=f"^PROXY_ALLOW: .*{right}.* expected, got '{shown}"):
        proxy.parse_allowed(f"good.test, {text}")


def test_without_a_list_nothing_is_allowed() -> None:
    with pytest.raises(ProxyError):
        proxy.allowing_entry(proxy.parse_allowed(""), proxy.parse_upstream_url("https://api.openai.com/"))


def test_the_headers_that_an_upstream_gets() -> None:
    sent = [
        *[("Host", "us"), ("Authorization", "Bearer ours"), ("Cookie", "a=b"), ("Origin", "https://page")],
        *[("Upstream-URL", "x"), ("Upstream-Authorization", "Bearer theirs"), ("Via", "1.1 x")],
        *[("Connection", "close, X-Hop"), ("x-hop", "1"), ("TE", "trailers"), ("Accept-Encoding", "br")],
        *[("X-Forwarded-For", "1.2.3.4"), ("X-Tidemark-Edge-Secret", "s"), ("X-Amzn-Trace-Id", "t")],
        *[("X-Custom", "7"), ("Content-Type", "application/json"), ("Idempotency-Key", "k")],
        *[("Traceparent", "00-1-2-01"), ("Tracestate", "a=b")],
    ]
    assert list(proxy.forwarded(sent)) == [
        ("authorization", "Bearer theirs"),
        ("x-custom", "7"),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
        ("traceparent", "00-1-2-01"),
        ("tracestate", "a=b"),
        ("accept-encoding", "identity"),
    ]


def test_an_entrys_key_is_sent_unless_the_client_has_one() -> None:
    openai, exact = LIST[0], LIST[3]
    assert proxy.with_key([], openai, "k") == [("authorization", "Bearer k")]
    assert proxy.with_key([("authorization", "own")], openai, "k") == [("authorization", "own")]
    assert proxy.with_key([], exact, "k") == [("x-api-key", "k")]
    assert proxy.with_key([("x-api-key", "own")], exact, "k") == [("x-api-key", "own")]
    assert proxy.with_key([], openai, "") == []
    assert "OPENAI" not in repr(openai)
    sent = [("authorization", "Bearer secret-1"), ("x-api-key", "secret-2"), ("x-name", "no-secret")]
    assert list(proxy.keys_in(sent, exact)) == ["secret-1", "secret-2"]
    assert list(proxy.keys_in([("authorization", "Bearer a")], exact)) == []


@pytest.mark.parametrize(
    ("body", "hidden"),
    [
        ("key sk-abcdefgh, key sk-abcdefghij", "key ***, key ***"),
        ("it ends in sk-abcdefghi", "it ends in ***"),
        ("it ends in sk-abcdefg", "it ends in ***"),
        ("it ends in sk-a", "it ends in ***"),
        ("a short end is of any text sk-", "a short end is of any text sk-"),
        ("sk-ab in the middle", "sk-ab in the middle"),
    ],
)
def test_no_key_is_in_an_error_nor_most_of_one_at_its_end(body: str, hidden: str) -> None:
    assert proxy.without_keys(body.encode(), [b"sk-abcdefgh", b"sk-abcdefghij"]).decode() == hidden


@pytest.mark.parametrize(
    ("status", "sent", "handed_on"),
    [
        (429, {"Retry-After": "7", "retry-after-ms": "6500"}, {"retry-after": "7", "retry-after-ms": "6500"}),
        (500, {"X-Request-Id": "r", "request-id": "q"}, {"x-request-id": "r", "request-id": "q"}),
        (503, {"X-RateLimit-Limit-Requests": "60"}, {"x-ratelimit-limit-requests": "60"}),
        (400, {"X-Should-Retry": "true", "x-a": "b"}, {"x-should-retry": "true"}),
        (401, {}, {"x-should-retry": "false"}),
        *((status, {"Set-Cookie": "a", "Location": "b"}, {}) for status in (408, 409, 429, 500)),
        # Values that no header may have, and one with the key.
        (500, {"retry-after": "", "request-id": "\x00", "x-request-id": "a" * 257}, {}),
        (500, {"request-id": "a\r\nb", "x-request-id": "\u00e9", "x-ratelimit-x": "of marked-key"}, {}),
    ],
)
def test_the_headers_of_an_error(status: int, sent: dict[str, str], handed_on: dict[str, str]) -> None:
    headers = [(name.encode(), value.encode()) for name, value in sent.items()]
    assert proxy.handed_on(status, headers, [b"marked-key"]) == handed_on
    many = [(b"x-ratelimit-%d" % number, b"1") for number in range(1000)]
    assert len(proxy.handed_on(500, many)) == 32


def test_a_signed_url_holds_for_its_call_until_its_end() -> None:
    old, new = b"o" * 32, b"n" * 32
    proxy.check_signature([new, old], "id", "1000", proxy.sign(old, "id", "1000"), 999)
    for call_id, expires, signature, code in [
        ("other", "1000", proxy.sign(old, "id", "1000"), "SIGNATURE_INVALID"),
        ("id", "2000", proxy.sign(old, "id", "1000"), "SIGNATURE_INVALID"),
        ("id", "1000", proxy.sign(b"x" * 32, "id", "1000"), "SIGNATURE_INVALID"),
        ("id", "1000", "ü", "SIGNATURE_INVALID"),
        ("id", "999", proxy.sign(old, "id", "999"), "SIGNATURE_EXPIRED"),
        ("id", "soon", proxy.sign(old, "id", "soon"), "SIGNATURE_EXPIRED"),
        ("id", "1000", None, "MISSING_SIGNATURE"),
        ("id", None, proxy.sign(old, "id", "1000"), "MISSING_SIGNATURE"),
    ]:
        with pytest.raises(ProxyError) as refused:
            proxy.check_signature([new, old], call_id, expires, signature, 999)
        assert (refused.value.status, refused.value.code) == (401, code)
