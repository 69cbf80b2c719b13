"""A function's response is read as API Gateway reads format 2.0; an invalid one is refused in the same
way."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tidemark.local.gateway import MalformedResponse, for_method, gateway_response, read_response

PLAIN = ("content-type", "text/plain; charset=utf-8")
BYTES = bytes(range(256))
ALL_PARTS = {
    "statusCode": 201,
    "headers": {"Content-Type": "text/css", "X-Count": 3, "X-Flag": True},
    "cookies": ["a=1; Path=/", "b=2"],
    "body": "é",
}
COOKIES = (("set-cookie", "a=1; Path=/"), ("set-cookie", "b=2"))
IN_BASE64 = {"statusCode": 200, "body": base64.b64encode(BYTES).decode(), "isBase64Encoded": True}
OF_A_CONNECTION = {"Connection": "close", "Transfer-Encoding": "chunked"}


@pytest.mark.parametrize(
    ("given", "status", "headers", "body"),
    [
        (
            ALL_PARTS,
            201,
            (
                ("content-type", "text/css"),
                ("x-count", "3"),
                ("x-flag", "true"),
                *COOKIES,
                ("content-length", "2"),
            ),
            "é".encode(),
        ),
        (IN_BASE64, 200, (PLAIN, ("content-length", "256")), BYTES),
        # A result without a status is the body as JSON.
        ({"a": 1}, 200, (("content-type", "application/json"), ("content-length", "8")), b'{"a": 1}'),
        # A body that goes with such a status is dropped, and its length and type with it.
        ({"statusCode": 204, "headers": {"content-length": "5"}, "body": "stray"}, 204, (), b""),
        ({"statusCode": 304, "headers": {"content-length": "5"}, "body": "stray"}, 304, (), b""),
        # The gateway computes the length itself.
        (
            {"statusCode": 200, "headers": {"Content-Length": "99"}, "body": "abc"},
            200,
            (PLAIN, ("content-length", "3")),
            b"abc",
        ),
        ({"statusCode": 200, "headers": OF_A_CONNECTION}, 200, (("content-length", "0"),), b""),
    ],
    ids=["all parts", "base64", "no status", "204", "304", "length", "of the connection"],
)
def test_a_response_has_the_functions_status_headers_cookies_and_body(
    given: dict[str, Any], status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    answer = read_response(given, "GET")
    assert (answer.status, sorted(answer.headers), answer.body) == (status, sorted(headers), body)


def test_head_keeps_the_functions_content_length_and_has_no_body_even_in_an_error() -> None:
    answer = read_response({"statusCode": 200, "headers": {"content-length": "99"}, "body": ""}, "HEAD")
    assert dict(answer.headers)["content-length"] == "99"
    assert for_method(gateway_response(500, "Internal Server Error"), "HEAD").body == b""


@pytest.mark.parametrize(
    "answer",
    [
        *({"statusCode": status} for status in ("two hundred", None, True, 99, 600)),
        {"statusCode": 200, "body": {"not": "a string"}},
        {"statusCode": 200, "body": "not base64!", "isBase64Encoded": True},
        {"statusCode": 200, "headers": ["a"]},
        {"statusCode": 200, "cookies": "a=1"},
        *({"statusCode": 200, "headers": {"x": value}} for value in (None, "a\r\nset-cookie: b=1", "☃")),
    ],
)
def test_a_malformed_response_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(MalformedResponse):
        read_response(answer, "GET")
