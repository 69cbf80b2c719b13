"""Headers that no client should send: no value gives a 5xx or a stack trace."""

import logging
from typing import Any

import pytest

from tests.lambdas.functions import Functions, http_event

HOSTS = {
    "two colons": "a:b:c",
    "IPv6": "[::1]:4437",
    "IPv6 without brackets": "::1",
    "open bracket": "[::1",
    "port that is too large": "a:99999999999999999999",
    "empty": "",
    "twice": "a.example,b.example",
    "Latin-1": "caf\xe9.example",
    "not Latin-1": "例え.example",
    "half a character": "\ud800",
    "huge": "a" * 100_000,
    "slashes": "a/b?c#d",
    "control characters": "a\x00b\x7f",
}
OTHERS = {
    "X-Forwarded-Port: x": {"x-forwarded-port": "x"},
    "X-Forwarded-Port, no host": {"x-forwarded-port": "x", "host": "plain"},
    "X-Forwarded-Proto": {"x-forwarded-proto": "x\ud800://"},
    "X-Forwarded-For": {"x-forwarded-for": "::, \ud800"},
    "Content-Length, negative": {"content-length": "-1"},
    "Content-Length, many digits": {"content-length": "9" * 5000},
    "Content-Type, half a character": {"content-type": "text/\udfff"},
    "If-None-Match": {"if-none-match": '"\ud800'}, "Accept-Encoding": {"accept-encoding": "\x00"},
    "Expect": {"expect": "200-maybe"}, "Upgrade": {"connection": "upgrade", "upgrade": "websocket"},
    "Transfer-Encoding": {"transfer-encoding": "x"}, "a name with half a character": {"x-\ud800": "1"},
    "an empty name": {"": "1"}, "Authorization": {"authorization": "Bearer \ud800"},
    "Range": {"range": "bytes=9-1"}, "Date": {"if-modified-since": "\ud800"},
}  # fmt: skip
HEADERS: dict[str, dict[str, str]] = {f"Host: {name}": {"host": value} for name, value in HOSTS.items()}
HEADERS |= OTHERS
METHODS = ["PUT", "POST", "GET", "HEAD", "DELETE"]


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_no_header_gives_a_5xx(
    functions: Functions, path: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain = {"content-type": "text/plain"}
    assert functions(http_event("PUT", path, headers=plain)).status == 201
    for method in METHODS:
        body = b"x" if method == "POST" else b""
        answer = functions(http_event(method, path, headers=plain | headers, body=body))
        assert answer.status < 500, (method, answer)
        assert "Traceback" not in caplog.text, method


@pytest.mark.parametrize("changes", [{"headers": None}, {"headers": {}}, {"cookies": ["\ud800"]}])
def test_events_without_headers_get_answers(functions: Functions, path: str, changes: dict[str, Any]) -> None:
    assert functions(http_event("GET", path) | changes).status == 404
